"""The built-in corpus: random English-German sentence pairs.

The training set is the beginning of an endless stream of pairs. The dev and test sets have a fixed size. The grammar
in this file generates version 1; the package `contextual` generates version 2.
"""

from collections.abc import Iterator
from functools import cache

from experiments.data.corpora import lexicon
from experiments.data.corpora.contextual import draw as contextual
from experiments.data.corpora.contextual.rendered import Rendered
from experiments.data.corpora.lexicon import Dice, Noun
from experiments.data.corpora.phrases import (
    ACCUSATIVE,
    GENITIVE,
    NOMINATIVE,
    NOT_A,
    THE,
    THIS,
    WE,
    A,
    Clause,
    Content,
    Determiner,
    Phrase,
    Words,
    build,
    compound,
    copula,
    name_phrase,
    noun_phrase,
    number,
    pair_phrase,
    place_phrase,
    possessive,
    pronoun_for,
    relative_pronoun,
)
from experiments.identity import digest

VERSIONS = (1, 2)  # versions of the corpus, each with different pairs
SPLITS = {"train": 0, "dev": 300, "test": 300}  # number of pairs; the caller chooses the size of train
_SEEDS = {"held out": 20_170_612, "train": 20_171_206}

Pair = tuple[str, str]
# Version of the corpus → revision, for versions whose sentences have changed since they were introduced. The revision
# is part of the identity of the corpus. Increment it if any sentence changes. A test compares hashes of the sentences.
REVISIONS = {2: 2}


def recipe_digest(pairs: int, version: int = 1) -> str:
    """Return 16 hex digits that identify a generated corpus: its version, settings and number of training pairs."""
    recipe = {"builtin": version, "pairs": pairs, "splits": SPLITS, "seeds": _SEEDS}
    if version in REVISIONS:
        recipe["revision"] = REVISIONS[version]
    return digest(recipe)


def generate(split: str, pairs: int = 0, version: int = 1) -> Iterator[Pair]:
    """Yield the (English, German) pairs of a split. `pairs` is the size of "train"; "dev" and "test" have a fixed size.

    A sentence of dev or test, in either language, occurs only once in that split and in no other split. A short pair
    may occur more than once in train, as in real text.
    """
    return _train(pairs, version) if split == "train" else iter(_held_out(version)[split])


def training(pairs: int) -> list[Rendered]:
    """Return the first `pairs` training pairs of version 2. Each lists the words that decide each German word."""
    held_out, dice, found = _in_held_out(2), Dice(_SEEDS["train"]), list[Rendered]()
    while len(found) < pairs:
        _, rendered = contextual.draw(dice)
        if held_out.isdisjoint(rendered.pair):
            found.append(rendered)
    return found


def _train(pairs: int, version: int) -> Iterator[Pair]:
    held_out, dice = _in_held_out(version), Dice(_SEEDS["train"])
    draw = _SENTENCE[version]
    while pairs > 0:
        pair = draw(dice)
        if held_out.isdisjoint(pair):
            yield pair
            pairs -= 1


def _in_held_out(version: int) -> set[str]:
    return {side for split in _held_out(version).values() for pair in split for side in pair}


@cache
def _held_out(version: int) -> dict[str, tuple[Pair, ...]]:
    """Return dev and test. No sentence of either language occurs twice."""
    dice, seen, pairs = Dice(_SEEDS["held out"]), set[str](), list[Pair]()
    draw = _SENTENCE[version]
    while len(pairs) < SPLITS["dev"] + SPLITS["test"]:
        pair = draw(dice)
        if seen.isdisjoint(pair):
            seen.update(pair)
            pairs.append(pair)
    return {"dev": tuple(pairs[: SPLITS["dev"]]), "test": tuple(pairs[SPLITS["dev"] :])}


# The antecedent of a pronoun is never ambiguous. It is the subject or the direct object of the preceding clause. If
# both have the same English pronoun, the antecedent is always the subject.


MIN_WORDS, MAX_WORDS = 5, 22  # length of the English sentence


def sentence(dice: Dice) -> Words:
    """Draw a pair of sentences as plain text: (English, German)."""
    while True:
        en, de = dice.pick(_SENTENCES)(dice)
        if MIN_WORDS <= en.count(" ") + 1 <= MAX_WORDS:
            # A relative clause ends with a comma. Remove it before another punctuation mark.
            de = de.replace(" ,", ",").replace(",,", ",").replace(",.", ".").replace(",?", "?")
            return en[0].upper() + en[1:], de[0].upper() + de[1:]


def _statement(dice: Dice) -> Words:
    made = state(dice) if dice.chance(22) else build(content(dice, actor(dice)))
    if made.time and dice.chance(45):
        front, rest = made.time, made._replace(time=None)
        return f"{front[0]} {rest.english()}.", f"{front[1]} {rest.inverted()}."
    return f"{made.english()}.", f"{made.main()}."


def _question(dice: Dice) -> Words:
    if dice.chance(25):
        made = state(dice, question=True)
    else:
        made = build(content(dice, actor(dice, 1), question=True))
    en, de = made.english_question(), made.inverted()
    return (f"why {en}?", f"warum {de}?") if dice.chance(35) else (f"{en}?", f"{de}?")


def _complex(dice: Dice) -> Words:
    """Draw a sentence with a main clause and a subordinate clause, in either order."""
    first = content(dice, actor(dice, 1), 1)
    main, second = build(first), _taking_up(dice, first)
    en, de = dice.pick(lexicon.CONJUNCTIONS)
    if dice.chance(70):
        return _main_first(main, en, de, second)
    return _subordinate_first(en, de, main, second)


def _when(dice: Dice) -> Words:
    """Draw a sentence with "when". The German word is "als" in the past and "wenn" in the present."""
    tense = "past" if dice.chance(50) else "present"
    first = content(dice, actor(dice, 1), 1, tense)
    main, second = build(first), build(content(dice, pronoun_for(first.subject), 1, tense))
    de = "als" if tense == "past" else "wenn"
    if dice.chance(50):
        return _main_first(main, "when", de, second)
    return _subordinate_first("when", de, main, second)


def _main_first(main: Clause, en: str, de: str, second: Clause) -> Words:
    return f"{main.english()} {en} {second.english()}.", f"{main.main()}, {de} {second.subordinate()}."


def _subordinate_first(en: str, de: str, first: Clause, main: Clause) -> Words:
    return f"{en} {first.english()}, {main.english()}.", f"{de} {first.subordinate()}, {main.inverted()}."


def _taking_up(dice: Dice, first: Content) -> Clause:
    """Draw a second clause, in which a pronoun usually refers to the subject or direct object of the first clause."""
    subject, direct = first.subject, first.direct
    if direct and (direct.negative or direct.pronoun == subject.pronoun):
        direct = None
    if direct and dice.chance(45):
        if direct.letter in "tp" or dice.chance(40):
            return state(dice, pronoun_for(direct))
        return build(content(dice, pronoun_for(direct), 1))
    if dice.chance(75):
        return build(content(dice, pronoun_for(subject), 1, taken_up=direct))
    return build(content(dice, actor(dice, 1), 1))


def _report(dice: Dice) -> Words:
    """Draw a sentence with reported speech."""
    speaker = phrase(dice, "h", None, 1)
    outer = build(Content(speaker, dice.pick(lexicon.SAYING_VERBS), "past" if dice.chance(40) else "present"))
    inner = state(dice, depth=1) if dice.chance(20) else build(content(dice, actor(dice, 1), 1))
    return f"{outer.english()} that {inner.english()}.", f"{outer.main()}, dass {inner.subordinate()}."


def _contrast(dice: Dice) -> Words:
    first, second = build(content(dice, actor(dice, 1), 1)), build(content(dice, actor(dice, 1), 1))
    en, de = dice.pick((("but", "aber"), ("and", "und")))
    return f"{first.english()}, {en} {second.english()}.", f"{first.main()}, {de} {second.main()}."


_SENTENCES = (  # kinds of sentences, repeated by frequency
    (_statement,) * 12 + (_complex,) * 5 + (_report,) * 3 + (_question,) * 2 + (_when,) + (_contrast,)
)


Tense = str | tuple[str, str, str]

_VERBS = {
    "plain": tuple(verb for verb in lexicon.VERBS if not verb.objects),
    "direct": tuple(verb for verb in lexicon.VERBS if verb.objects),
    "dative": lexicon.DATIVE_VERBS,
    "giving": lexicon.GIVING_VERBS,
    "placing": lexicon.PLACING_VERBS,
    "going": lexicon.GOING_VERBS,
}
_VERBS_OF = {  # verbs by kind and subject: "h" is a human, "a" an animal
    (kind, letter): tuple(verb for verb in verbs if letter in verb.subjects)
    for letter in "ha"
    for kind, verbs in _VERBS.items()
}
_KINDS = {  # kinds of verbs, repeated by frequency
    "h": ("direct",) * 9 + ("plain",) * 4 + ("giving",) * 2 + ("placing",) * 2 + ("going",) * 2 + ("dative",) * 2,
    "a": ("direct",) * 4 + ("plain",) * 3 + ("going",) + ("dative",),
}
_DAYS = tuple((f"on {en}", f"am {de}") for en, de in lexicon.DAYS)


def phrase(dice: Dice, letters: str, owner: Phrase | None = None, depth: int = 0, negated: bool = False) -> Phrase:
    """Draw a noun phrase. At depth 0, it may have a possessor, a place or a relative clause."""
    if "h" in letters and dice.chance(30):
        return person(dice)
    if depth or dice.chance(82):
        return simple_phrase(dice, letters, owner, negated)
    roll = dice.below(10)
    if roll < 3:
        return owned_phrase(dice, letters)
    base = simple_phrase(dice, letters, owner, negated)
    if roll < 5 and base.letter != "p":
        return base.extended(*place(dice))
    return _with_relative_clause(dice, base)


def _with_relative_clause(dice: Dice, base: Phrase) -> Phrase:
    """Add a relative clause to a phrase. The relative pronoun is the subject or accusative object of the clause."""
    who = relative_pronoun(base)
    if base.letter in "ha" and dice.chance(55):
        inner = build(content(dice, who, depth=1))
        return base.extended(inner.english(), f", {inner.subordinate()},")
    subject = phrase(dice, "h", depth=1)
    verbs = [verb for verb in _VERBS_OF["direct", "h"] if base.letter in verb.objects]
    inner = build(Content(subject, dice.pick_early(verbs), _tense(dice)))
    return base.extended(f"{who.en} {inner.english()}", f", {who.de[ACCUSATIVE]} {inner.subordinate()},")


def actor(dice: Dice, depth: int = 0) -> Phrase:
    """Draw a subject for a verb."""
    if dice.chance(6):
        return WE
    return phrase(dice, "h" if dice.chance(78) else "a", None, depth)


def content(
    dice: Dice,
    subject: Phrase,
    depth: int = 0,
    tense: Tense | None = None,
    taken_up: Phrase | None = None,
    question: bool = False,
) -> Content:
    """Draw the content of a clause. A question is never negated.

    taken_up: a phrase of the preceding clause; the direct object may be a pronoun that refers to it.
    """
    tense = tense or _tense(dice)
    kind = dice.pick(_KINDS[subject.letter])
    negated = kind != "plain" and not question and dice.chance(16)
    verb = dice.pick_early(_VERBS_OF[kind, subject.letter])
    direct = indirect = where = None
    if kind in ("direct", "giving", "placing"):
        if kind == "direct" and taken_up and taken_up.letter in verb.objects and dice.chance(75):
            direct = pronoun_for(taken_up)
        else:
            direct = phrase(dice, verb.objects, subject, depth or int(kind != "direct"), negated)
    if kind in ("giving", "dative"):
        indirect = phrase(dice, "h", subject, 1)
    towards = kind in ("placing", "going")
    if towards or (kind == "plain" and dice.chance(50)) or dice.chance(6):
        where = place(dice, towards)
    frequency = dice.pick(lexicon.FREQUENCIES) if not negated and dice.chance(12) else None
    time = _time(dice, tense) if not frequency and not depth and dice.chance(24) else None
    return Content(subject, verb, tense, direct, indirect, where, time, frequency, negated, question)


def state(dice: Dice, subject: Phrase | None = None, depth: int = 0, question: bool = False) -> Clause:
    """Draw a clause of the form "subject is adjective". A question is never negated."""
    subject = subject or phrase(dice, dice.pick("hatp"), None, depth)
    tense = dice.pick(("present", "present", "past", "future"))
    adjective = dice.pick_early(lexicon.ADJECTIVES[subject.letter])
    time = _time(dice, tense) if dice.chance(15) else None
    return copula(subject, adjective, tense, not question and dice.chance(20), time)


def _tense(dice: Dice) -> Tense:
    roll = dice.below(100)
    if roll < 48:
        return "present"
    if roll < 74:
        return "past"
    return "future" if roll < 84 else dice.pick(lexicon.MODALS)


def _time(dice: Dice, tense: Tense) -> Words:
    if dice.chance(35):
        return dice.pick(_DAYS)
    return dice.pick(lexicon.TIMES[tense if isinstance(tense, str) else "future"])


NOUN_LETTERS = ("h", "a", "t", "p", "pt")  # noun classes that this module uses in addition to those of the verbs
_VERBS_WITH_OBJECT = lexicon.VERBS + lexicon.DATIVE_VERBS + lexicon.GIVING_VERBS + lexicon.PLACING_VERBS
_NOUNS = {  # letters → nouns that have one of these classes
    letters: tuple(noun for noun in lexicon.NOUNS if set(letters) & set(noun.classes))
    for letters in {*NOUN_LETTERS, *(verb.objects for verb in _VERBS_WITH_OBJECT)}
}
_NUMBERS = tuple(number(*words) for words in lexicon.NUMBERS)
_COMPOSED_NUMBERS = tuple(  # twenty-three: dreiundzwanzig
    number(f"{ten}-{one}", f"{one_de}und{ten_de}") for ten, ten_de in lexicon.TENS for one, one_de in lexicon.NUMBERS
)
_PEOPLE = tuple(name_phrase(name, name, gender) for name, gender in lexicon.NAMES)


def simple_phrase(dice: Dice, letters: str, owner: Phrase | None = None, negated: bool = False) -> Phrase:
    """Draw a determiner, possibly an adjective, and a noun of one of the classes.

    owner: the phrase to which "his" or "their" refers; if None, the possessive is "our".
    negated: whether the clause is negated, in which case the determiner "a" becomes "kein" in German.
    """
    noun = _noun(dice, letters)
    determiner, plural = _determiner(dice, owner)
    if negated and determiner is A:
        determiner = NOT_A
    return noun_phrase(noun, determiner, _adjective(dice, noun, 28), plural)


def person(dice: Dice) -> Phrase:
    """Draw a given name, two given names, or "Mr" or "Mrs" with a surname."""
    roll = dice.below(10)
    if roll < 7:
        return dice.pick(_PEOPLE)
    if roll == 7:
        first, second = dice.pick(_PEOPLE), dice.pick(_PEOPLE)
        return pair_phrase(first, second) if first is not second else first
    surname = dice.pick(lexicon.SURNAME_STARTS) + dice.pick(lexicon.SURNAME_ENDS)
    if roll == 8:
        return name_phrase(f"Mr {surname}", f"Herr {surname}", "m", f"Herrn {surname}")
    return name_phrase(f"Mrs {surname}", f"Frau {surname}", "f")


def owned_phrase(dice: Dice, letters: str) -> Phrase:
    """Draw a phrase with a possessor: "the teacher's dog" (der Hund des Lehrers), "Anna's dog" (der Hund von Anna)."""
    noun = _noun(dice, letters)
    plural = dice.chance(20)
    bare = noun_phrase(noun, THE, _adjective(dice, noun, 28), plural)
    if dice.chance(40):
        owner = dice.pick(_PEOPLE)
        suffix, mark = f"von {owner.de[NOMINATIVE]}", "'s"
    else:
        owner = noun_phrase(dice.pick_early(_NOUNS["h"]), THE, None, dice.chance(20))
        suffix, mark = owner.de[GENITIVE], "'" if owner.plural and owner.en.endswith("s") else "'s"
    en = f"{owner.en}{mark} {bare.en.removeprefix('the ')}"
    return bare.extended("", suffix)._replace(en=en, en_object=en)


def place(dice: Dice, towards: bool = False) -> Words:
    """Draw a phrase of place, or of direction if `towards`."""
    noun = _noun(dice, "pt" if dice.chance(35) else "p")
    determiner, plural = (THE, dice.chance(15)) if dice.chance(75) else (A, False)
    where = noun_phrase(noun, determiner, _adjective(dice, noun, 20), plural)
    return place_phrase(dice.pick_early(lexicon.PLACE_PREPOSITIONS[where.letter]), where, towards)


def _noun(dice: Dice, letters: str) -> Noun:
    noun = dice.pick_early(_NOUNS[letters])
    joined = "k" in noun.classes and dice.chance(18)
    return compound(dice.pick_early(lexicon.MODIFIERS), noun) if joined else noun


def _adjective(dice: Dice, noun: Noun, percent: int) -> Words | None:
    return dice.pick_early(lexicon.ADJECTIVES[noun.classes[0]]) if dice.chance(percent) else None


def _determiner(dice: Dice, owner: Phrase | None) -> tuple[Determiner, bool]:
    """Draw a determiner, and whether the noun is plural."""
    roll = dice.below(100)
    if roll < 54:
        return THE, dice.chance(25)
    if roll < 76:
        return A, dice.chance(20)
    if roll < 90:
        return possessive(owner or WE), dice.chance(15)
    if roll < 95:
        return THIS, dice.chance(20)
    return dice.pick(_COMPOSED_NUMBERS if roll == 99 else _NUMBERS), True


_SENTENCE = {1: sentence, 2: contextual.sentence}  # by version of the corpus
