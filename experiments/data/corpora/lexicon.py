"""The words of the built-in corpora, read from words.toml, and the random numbers that choose among them."""

import random
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast


class Noun(NamedTuple):
    """An English noun and its German translation."""

    singular: str
    plural: str
    nominative: str  # German nominative singular
    genitive: str  # German genitive singular
    plural_de: str  # German nominative plural
    gender: str  # grammatical gender of the German word: m, f, n
    pronoun: str  # English pronoun of the singular: he, she, it
    classes: str  # letters of its classes, such as h (human), a (animal), t (thing), p (place)


class Verb(NamedTuple):
    """An English verb and its German translation."""

    base: str
    third: str  # third person singular
    past: str
    prefix: str  # separable prefix, "" if none
    singular_de: str  # third person singular, without the prefix
    plural_de: str  # third person plural and infinitive, without the prefix
    participle: str  # German past participle
    auxiliary: str  # haben or sein
    subjects: str  # classes of nouns that may be its subject
    objects: str  # classes of nouns that may be its object


_READ = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))


def _rows(table: str) -> list[list[str]]:
    return [line.split() for line in table.strip().split("\n")]


def _verbs(name: str) -> tuple[Verb, ...]:
    rows = _rows(_READ["verbs"][name])
    return tuple(Verb(*("" if cell == "-" else cell.replace("_", " ") for cell in row)) for row in rows)


def _tuples(value: Any) -> Any:
    """Convert lists to tuples, also within lists and dicts."""
    if isinstance(value, dict):
        return {name: _tuples(item) for name, item in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


Pairs = tuple[tuple[str, str], ...]  # (English, German), or (name, gender)

NOUNS = tuple(Noun(*row) for row in _rows(_READ["nouns"]))
VERBS = _verbs("plain_or_direct")
DATIVE_VERBS = _verbs("dative")
GIVING_VERBS = _verbs("giving")
PLACING_VERBS = _verbs("placing")
GOING_VERBS = _verbs("going")
SAYING_VERBS = _verbs("saying")
ADJECTIVES = {
    letter: tuple((row[0], row[column]) for row in _rows(_READ["adjectives"]) if row[column] != "-")
    for column, letter in enumerate("hatp", 1)
}
MODIFIERS, NAMES, NUMBERS, TENS, DAYS, FREQUENCIES, CONJUNCTIONS = (
    cast(Pairs, _tuples(_READ[name]))
    for name in ("modifiers", "names", "numbers", "tens", "days", "frequencies", "conjunctions")
)
SURNAME_STARTS, SURNAME_ENDS = (cast(tuple[str, ...], _tuples(_READ[f"surname_{part}"])) for part in ("starts", "ends"))
TIMES, PLACE_PREPOSITIONS = (cast(dict[str, Pairs], _tuples(_READ[name])) for name in ("times", "place_prepositions"))
MODALS: tuple[tuple[str, str, str], ...] = _tuples(_READ["modals"])
NOT_MODALS: dict[str, tuple[str, str]] = _tuples(_READ["not_modals"])  # German forms that differ after "not"
INTO: dict[str, str] = _READ["into"]
FORMS: dict[str, dict[str, tuple[str, str, str, str]]] = _tuples(_READ["forms"])  # German forms by gender and case


T = TypeVar("T")


class Dice:
    """A random generator that gives the same numbers on every version of Python.

    Every draw uses 32 random bits and integer arithmetic. Other methods of `random` may change between versions.
    """

    def __init__(self, seed: int) -> None:
        self._bits = random.Random(seed).getrandbits

    def below(self, count: int) -> int:
        """Return a uniform random integer from 0 to count − 1."""
        return (self._bits(32) * count) >> 32

    def chance(self, percent: int) -> bool:
        """Return True with a probability of `percent` %."""
        return self._bits(32) * 100 < percent << 32

    def pick(self, options: Sequence[T]) -> T:
        """Return a random option. All options are equally likely."""
        return options[(self._bits(32) * len(options)) >> 32]

    def pick_early(self, options: Sequence[T]) -> T:
        """Return an early option more often than a late one: P(one of the first i of n) = √(i / n).

        This imitates the uneven frequencies of words in real text.
        """
        bits = self._bits(32)
        return options[(bits * bits * len(options)) >> 64]
