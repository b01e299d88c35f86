"""Random noun phrases without clauses in them: who and what a sentence is about, and where."""

from experiments.data.builtin import lexicon
from experiments.data.builtin.clauses import Words, place_phrase
from experiments.data.builtin.dice import Dice
from experiments.data.builtin.lexicon import Noun
from experiments.data.builtin.phrases import (
    GENITIVE,
    NOMINATIVE,
    NOT_A,
    THE,
    THIS,
    WE,
    A,
    Determiner,
    Phrase,
    compound,
    name_phrase,
    noun_phrase,
    number,
    pair_phrase,
    possessive,
)

NOUN_LETTERS = ("h", "a", "t", "p", "pt")  # classes asked for here, beside those that verbs name
_VERBS = lexicon.VERBS + lexicon.DATIVE_VERBS + lexicon.GIVING_VERBS + lexicon.PLACING_VERBS
_NOUNS = {  # nouns of any class among the letters
    letters: tuple(noun for noun in lexicon.NOUNS if set(letters) & set(noun.classes))
    for letters in {*NOUN_LETTERS, *(verb.objects for verb in _VERBS)}
}
_NUMBERS = tuple(number(*words) for words in lexicon.NUMBERS)
_COMPOSED_NUMBERS = tuple(  # twenty-three: dreiundzwanzig
    number(f"{ten}-{one}", f"{one_de}und{ten_de}") for ten, ten_de in lexicon.TENS for one, one_de in lexicon.NUMBERS
)
_PEOPLE = tuple(name_phrase(name, name, gender) for name, gender in lexicon.NAMES)


def simple_phrase(dice: Dice, letters: str, owner: Phrase | None = None, negated: bool = False) -> Phrase:
    """Determiner, perhaps an adjective, and a noun of one of the classes.

    `owner` is whom "his" or "their" would mean, "our" if None. In a negated clause "a" becomes kein.
    """
    noun = _noun(dice, letters)
    determiner, plural = _determiner(dice, owner)
    if negated and determiner is A:
        determiner = NOT_A
    return noun_phrase(noun, determiner, _adjective(dice, noun, 28), plural)


def person(dice: Dice) -> Phrase:
    """A given name, two of them, or Mr or Mrs with a surname."""
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
    """the teacher's dog, Anna's dog: der Hund des Lehrers, der Hund von Anna."""
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
    """Where something happens, or where to."""
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
    """A determiner, and whether the noun is plural."""
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
