"""Random sentences: which words and which constructions. All chance comes from a Dice.

`sentence` gives one pair in plain text. What a pronoun refers to is decided by the sentence: the subject or the
direct object of the clause before it, and never where both would take the same English pronoun.
"""

import random
from collections.abc import Sequence
from typing import TypeVar

from experiments.data.builtin import lexicon
from experiments.data.builtin.clauses import Clause, Content, Words, build, copula, place_phrase
from experiments.data.builtin.lexicon import Noun, Verb
from experiments.data.builtin.phrases import (
    A,
    ACCUSATIVE,
    DATIVE,
    EVERY,
    NOT_A,
    THE,
    THIS,
    WE,
    Determiner,
    Phrase,
    compound,
    name_phrase,
    noun_phrase,
    number,
    pair_phrase,
    possessive,
    pronoun_for,
    relative_pronoun,
)

T = TypeVar("T")
MIN_WORDS, MAX_WORDS = 5, 22  # of the English side


class Dice:
    """Chance from 32 random bits at a time: the same on every Python and platform."""

    def __init__(self, seed: int) -> None:
        self._bits = random.Random(seed).getrandbits

    def below(self, count: int) -> int:
        return (self._bits(32) * count) >> 32

    def pick(self, options: Sequence[T]) -> T:
        return options[(self._bits(32) * len(options)) >> 32]

    def pick_early(self, options: Sequence[T]) -> T:
        """Early options more often than late ones, as words of a text are: P(first i of n) = √(i / n)."""
        bits = self._bits(32)
        return options[(bits * bits * len(options)) >> 64]

    def chance(self, percent: int) -> bool:
        return self._bits(32) * 100 < percent << 32


def _by_letters() -> dict[str, tuple[Noun, ...]]:
    """Nouns of any class among the letters, for every combination that a verb names."""
    wanted = {verb.objects for group in (lexicon.VERBS, lexicon.DATIVE_VERBS, lexicon.GIVING_VERBS,
              lexicon.PLACING_VERBS) for verb in group} | {"h", "a", "ha", "t", "p", "pt"}
    return {letters: tuple(n for n in lexicon.NOUNS if set(letters) & set(n.classes)) for letters in wanted}


_NOUNS = _by_letters()
_SUBJECT_VERBS = {  # verbs that a subject of this class may have, by kind
    (kind, letter): tuple(verb for verb in verbs if letter in verb.subjects)
    for letter in "ha"
    for kind, verbs in (
        ("plain", tuple(v for v in lexicon.VERBS if not v.objects)),
        ("direct", tuple(v for v in lexicon.VERBS if v.objects)),
        ("dative", lexicon.DATIVE_VERBS),
        ("giving", lexicon.GIVING_VERBS),
        ("placing", lexicon.PLACING_VERBS),
        ("going", lexicon.GOING_VERBS),
    )
}
_KINDS = {
    "h": ("direct",) * 9 + ("plain",) * 4 + ("giving",) * 2 + ("placing",) * 2 + ("going",) * 2 + ("dative",) * 2,
    "a": ("direct",) * 4 + ("plain",) * 3 + ("going",) + ("dative",),
}
_NUMBERS = tuple(number(*words) for words in lexicon.NUMBERS)
_TWENTIES = tuple(
    number(f"{ten[0]}-{one[0]}", f"{one[1]}und{ten[1]}") for ten in lexicon.TENS for one in lexicon.NUMBERS
)
_DAYS = tuple((f"on {en}", f"am {de}") for en, de in lexicon.DAYS)
_PEOPLE = tuple(name_phrase(name, name, gender) for name, gender in lexicon.NAMES)


def _determiner(dice: Dice, owner: Phrase | None) -> tuple[Determiner, bool]:
    """A determiner and whether the noun is plural."""
    roll = dice.below(100)
    if roll < 46:
        return THE, dice.chance(25)
    if roll < 68:
        return A, dice.chance(20)
    if roll < 84:
        return possessive(owner or WE), dice.chance(20)
    if roll < 91:
        return THIS, dice.chance(30)
    if roll < 95:
        return EVERY, dice.chance(40)
    return dice.pick(_TWENTIES if roll == 99 else _NUMBERS), True


def _noun(dice: Dice, letters: str) -> Noun:
    noun = dice.pick_early(_NOUNS[letters])
    return compound(dice.pick_early(lexicon.MODIFIERS), noun) if "k" in noun.classes and dice.chance(22) else noun


def _adjective(dice: Dice, noun: Noun, percent: int = 30) -> Words | None:
    options = lexicon.ADJECTIVES[noun.classes[0]]
    return dice.pick_early(options) if options and dice.chance(percent) else None


def simple_phrase(dice: Dice, letters: str, owner: Phrase | None = None, negated: bool = False) -> Phrase:
    """A noun phrase with nothing after the noun."""
    noun = _noun(dice, letters)
    determiner, plural = _determiner(dice, owner)
    if negated and determiner is A:
        determiner = NOT_A
    return noun_phrase(noun, determiner, _adjective(dice, noun), plural)


def person(dice: Dice) -> Phrase:
    """A given name, Mr or Mrs with a surname, or two people."""
    roll = dice.below(10)
    if roll < 6:
        return dice.pick(_PEOPLE)
    if roll < 8:
        first, second = dice.pick(_PEOPLE), dice.pick(_PEOPLE)
        return pair_phrase(first, second) if first is not second else first
    surname = dice.pick(lexicon.SURNAME_STARTS) + dice.pick(lexicon.SURNAME_ENDS)
    if roll == 8:
        return name_phrase(f"Mr {surname}", f"Herr {surname}", "m", f"Herrn {surname}")
    return name_phrase(f"Mrs {surname}", f"Frau {surname}", "f")


def phrase(dice: Dice, letters: str, owner: Phrase | None = None, depth: int = 0, negated: bool = False) -> Phrase:
    """A noun phrase, at depth 0 sometimes with a possessor, a place or a relative clause."""
    if "h" in letters and dice.chance(30):
        return person(dice)
    if depth or dice.chance(76):
        return simple_phrase(dice, letters, owner, negated)
    roll = dice.below(10)
    if roll < 3:
        return _owned(dice, letters)
    base = simple_phrase(dice, letters, owner, negated)
    if roll < 5 and base.letter != "p":
        en, de = _place(dice)
        return base.extended(en, de)
    return _with_relative(dice, base)


def _owned(dice: Dice, letters: str) -> Phrase:
    """the teacher's dog, Anna's dog: der Hund des Lehrers, der Hund von Anna."""
    noun = _noun(dice, letters)
    plural = dice.chance(20)
    bare = noun_phrase(noun, THE, _adjective(dice, noun), plural)
    if dice.chance(40):
        owner = dice.pick(_PEOPLE)
        suffix, marker = f"von {owner.de[0]}", "'s"
    else:
        owner = noun_phrase(dice.pick_early(_NOUNS["h"]), THE, None, dice.chance(20))
        suffix, marker = owner.de[3], "'" if owner.plural and owner.en.endswith("s") else "'s"
    en = f"{owner.en}{marker} {bare.en.removeprefix('the ')}"
    return bare._replace(en=en, en_object=en, de=tuple(f"{form} {suffix}" for form in bare.de))  # type: ignore[arg-type]


def _with_relative(dice: Dice, base: Phrase) -> Phrase:
    """A relative clause: its pronoun is the subject, or the accusative object of someone else's doing."""
    who = relative_pronoun(base)
    if base.letter in "ha" and dice.chance(55):
        inner = clause(dice, who, depth=1)
        return base.extended(inner.english(), f", {inner.subordinate()},")
    subject = phrase(dice, "h", depth=1)
    verbs = [v for v in _SUBJECT_VERBS["direct", "h"] if base.letter in v.objects]
    inner = build(Content(subject, dice.pick_early(verbs or _SUBJECT_VERBS["direct", "h"][:1]), _tense(dice)))
    return base.extended(f"{who.en} {inner.english()}", f", {who.de[ACCUSATIVE]} {inner.subordinate()},")


def _place(dice: Dice, towards: bool = False) -> Words:
    noun = _noun(dice, "pt" if dice.chance(35) else "p")
    determiner, plural = (THE, dice.chance(15)) if dice.chance(75) else (A, False)
    where = noun_phrase(noun, determiner, _adjective(dice, noun, 20), plural)
    return place_phrase(dice.pick_early(lexicon.PLACE_PREPOSITIONS[where.letter]), where, towards)


def _tense(dice: Dice) -> str | tuple[str, str, str]:
    roll = dice.below(100)
    if roll < 42:
        return "present"
    if roll < 68:
        return "past"
    return "future" if roll < 80 else dice.pick(lexicon.MODALS)


def _time(dice: Dice, tense: str | tuple[str, str, str]) -> Words:
    if dice.chance(35):
        return dice.pick(_DAYS)
    return dice.pick(lexicon.TIMES[tense if isinstance(tense, str) else "future"])


def content(
    dice: Dice,
    subject: Phrase,
    depth: int = 0,
    tense: str | tuple[str, str, str] | None = None,
    taken_up: Phrase | None = None,
) -> Content:
    """What the subject does; `taken_up` is a phrase that a pronoun among the objects may refer to."""
    tense = tense or _tense(dice)
    kind = dice.pick(_KINDS[subject.letter])
    negated = kind != "plain" and dice.chance(16)
    verb = dice.pick_early(_SUBJECT_VERBS[kind, subject.letter])
    direct = indirect = place = None
    if kind in ("direct", "giving", "placing"):
        fits = kind == "direct" and taken_up is not None and taken_up.letter in verb.objects
        if fits and taken_up and dice.chance(75):
            direct = pronoun_for(taken_up)
        else:
            direct = phrase(dice, verb.objects, subject, depth or int(kind != "direct"), negated)
    if kind in ("giving", "dative"):
        indirect = phrase(dice, "h", subject, 1)
    if kind in ("placing", "going") or (kind == "plain" and dice.chance(50)) or dice.chance(6):
        place = _place(dice, towards=kind in ("placing", "going"))
    frequency = dice.pick(lexicon.FREQUENCIES) if not negated and dice.chance(12) else None
    time = _time(dice, tense) if not frequency and not depth and dice.chance(24) else None
    return Content(subject, verb, tense, direct, indirect, place, time, frequency, negated)


def clause(dice: Dice, subject: Phrase, depth: int = 0) -> Clause:
    return build(content(dice, subject, depth))


def _subject(dice: Dice, depth: int = 0) -> Phrase:
    if dice.chance(6):
        return WE
    return phrase(dice, "h" if dice.chance(78) else "a", None, depth)


def _state(dice: Dice, subject: Phrase | None = None, question: bool = False, depth: int = 0) -> Clause:
    """Subject is adjective."""
    subject = subject or phrase(dice, dice.pick("hatp"), None, depth)
    tense = ("present", "present", "past", "future")[dice.below(4)]
    adjective = dice.pick_early(lexicon.ADJECTIVES[subject.letter])
    time = _time(dice, tense) if dice.chance(15) else None
    return copula(subject, adjective, tense, not question and dice.chance(20), time, question)


def _statement(dice: Dice) -> Words:
    made = _state(dice) if dice.chance(22) else clause(dice, _subject(dice))
    if made.time and dice.chance(45):
        front, rest = made.time, made._replace(time=None)
        return f"{front[0]} {rest.english()}.", f"{front[1]} {rest.inverted()}."
    return f"{made.english()}.", f"{made.main()}."


def _question(dice: Dice) -> Words:
    if dice.chance(25):
        made = _state(dice, question=True)
    else:
        made = build(content(dice, _subject(dice, 1))._replace(negated=False, question=True))
    en, de = made.english_question(), made.inverted()
    return (f"why {en}?", f"warum {de}?") if dice.chance(35) else (f"{en}?", f"{de}?")


def _second(dice: Dice, first: Content) -> Clause:
    """A clause that takes up the subject or the direct object of the first by a pronoun."""
    subject, direct = first.subject, first.direct
    told_apart = direct is not None and direct.pronoun != subject.pronoun and not direct.negative
    if told_apart and direct and dice.chance(45):
        pronoun = pronoun_for(direct)
        if direct.letter in "tp" or dice.chance(40):
            return _state(dice, pronoun)
        return build(content(dice, pronoun, 1))
    if dice.chance(75):
        known = direct if told_apart else None
        return build(content(dice, pronoun_for(subject), 1, taken_up=known))
    return build(content(dice, _subject(dice, 1), 1))


def _complex(dice: Dice) -> Words:
    """A main clause and a subordinate one, before or after it."""
    first = content(dice, _subject(dice, 1), 1)
    main, second = build(first), _second(dice, first)
    en, de = dice.pick(lexicon.CONJUNCTIONS)
    if dice.chance(70):
        return f"{main.english()} {en} {second.english()}.", f"{main.main()}, {de} {second.subordinate()}."
    return f"{en} {main.english()}, {second.english()}.", f"{de} {main.subordinate()}, {second.inverted()}."


def _when(dice: Dice) -> Words:
    """when is als in the past and wenn otherwise."""
    tense = "past" if dice.chance(50) else "present"
    first = content(dice, _subject(dice, 1), 1, tense)
    main, second = build(first), build(content(dice, pronoun_for(first.subject), 1, tense))
    de = "als" if tense == "past" else "wenn"
    if dice.chance(50):
        return f"{main.english()} when {second.english()}.", f"{main.main()}, {de} {second.subordinate()}."
    return f"when {main.english()}, {second.english()}.", f"{de} {main.subordinate()}, {second.inverted()}."


def _report(dice: Dice) -> Words:
    """Someone says that something is so."""
    speaker = phrase(dice, "h", None, 1)
    outer = build(Content(speaker, dice.pick(lexicon.SAYING_VERBS), "past" if dice.chance(40) else "present"))
    inner = _state(dice, depth=1) if dice.chance(20) else clause(dice, _subject(dice, 1), 1)
    return f"{outer.english()} that {inner.english()}.", f"{outer.main()}, dass {inner.subordinate()}."


def _contrast(dice: Dice) -> Words:
    first, second = clause(dice, _subject(dice, 1), 1), clause(dice, _subject(dice, 1), 1)
    en, de = dice.pick((("but", "aber"), ("and", "und")))
    return f"{first.english()}, {en} {second.english()}.", f"{first.main()}, {de} {second.main()}."


_SENTENCES = (_statement,) * 10 + (_complex,) * 5 + (_question,) * 3 + (_report,) * 3 + (_when,) * 2 + (_contrast,)


def sentence(dice: Dice) -> Words:
    """One pair of sentences in plain text: (English, German)."""
    while True:
        en, de = dice.pick(_SENTENCES)(dice)
        if MIN_WORDS <= en.count(" ") + 1 <= MAX_WORDS:
            de = de.replace(" ,", ",").replace(",,", ",").replace(",.", ".").replace(",?", "?")
            return en[0].upper() + en[1:], de[0].upper() + de[1:]
