"""Random clauses: what someone does or is, with tense, objects, place and time; and relative clauses inside phrases."""

from experiments.data.builtin import lexicon
from experiments.data.builtin.clauses import Clause, Content, Words, build, copula
from experiments.data.builtin.dice import Dice
from experiments.data.builtin.nominals import owned_phrase, person, place, simple_phrase
from experiments.data.builtin.phrases import ACCUSATIVE, WE, Phrase, pronoun_for, relative_pronoun

Tense = str | tuple[str, str, str]

_VERBS = {
    "plain": tuple(verb for verb in lexicon.VERBS if not verb.objects),
    "direct": tuple(verb for verb in lexicon.VERBS if verb.objects),
    "dative": lexicon.DATIVE_VERBS,
    "giving": lexicon.GIVING_VERBS,
    "placing": lexicon.PLACING_VERBS,
    "going": lexicon.GOING_VERBS,
}
_VERBS_OF = {  # what a human or an animal may do
    (kind, letter): tuple(verb for verb in verbs if letter in verb.subjects)
    for letter in "ha"
    for kind, verbs in _VERBS.items()
}
_KINDS = {  # how often each kind
    "h": ("direct",) * 9 + ("plain",) * 4 + ("giving",) * 2 + ("placing",) * 2 + ("going",) * 2 + ("dative",) * 2,
    "a": ("direct",) * 4 + ("plain",) * 3 + ("going",) + ("dative",),
}
_DAYS = tuple((f"on {en}", f"am {de}") for en, de in lexicon.DAYS)


def phrase(dice: Dice, letters: str, owner: Phrase | None = None, depth: int = 0, negated: bool = False) -> Phrase:
    """A noun phrase; at depth 0 sometimes with a possessor, a place or a relative clause."""
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
    """The relative pronoun is the clause's subject, or the accusative object of what someone does."""
    who = relative_pronoun(base)
    if base.letter in "ha" and dice.chance(55):
        inner = build(content(dice, who, depth=1))
        return base.extended(inner.english(), f", {inner.subordinate()},")
    subject = phrase(dice, "h", depth=1)
    verbs = [verb for verb in _VERBS_OF["direct", "h"] if base.letter in verb.objects]
    inner = build(Content(subject, dice.pick_early(verbs), _tense(dice)))
    return base.extended(f"{who.en} {inner.english()}", f", {who.de[ACCUSATIVE]} {inner.subordinate()},")


def actor(dice: Dice, depth: int = 0) -> Phrase:
    """Who may be the subject of a verb."""
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
    """What the subject does; `taken_up` is a phrase that a pronoun as direct object may stand for.

    A question is never negated.
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
    """Subject is adjective; a question is never negated."""
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
