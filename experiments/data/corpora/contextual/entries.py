"""The words of the built-in corpus, version 2, read from words.toml."""

import tomllib
from pathlib import Path
from typing import NamedTuple

from experiments.data.corpora.lexicon import Noun, Verb
from experiments.data.corpora.phrases import ACCUSATIVE, DATIVE, THE, THIS, A, Determiner, Words, number

_READ = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))


class Entry(NamedTuple):
    """An English noun, with what it is as the object of verbs of either domain: one noun, or the two of a homonym."""

    outdoors: Noun
    trade: Noun

    @property
    def homonym(self) -> bool:
        return self.outdoors != self.trade

    def sense(self, domain: str) -> Noun:
        """The noun as the object of a verb of this domain: "n", "t", or "" outside both."""
        return self.trade if domain == "t" else self.outdoors


class EnglishVerb(NamedTuple):
    """An English verb with its particle, and the German verb that both together choose."""

    german: Verb
    participle: str
    particle: str  # "" if it has none
    case: int  # of its object
    domain: str  # "n" or "t"; "" of verbs that leave a homonym open


class Preposition(NamedTuple):
    """An English adverb and a preposition, and the German preposition that both together choose."""

    adverb: str
    preposition: str
    de: str
    case: int
    domain: str  # "n" or "t"
    rank: int  # German prepositions of a clause stand in this order


class Adjective(NamedTuple):
    """An English adjective and its German stems."""

    en: str
    of_persons: str
    outdoors: str
    trade: str

    def stem(self, noun: Noun) -> str:
        """The German stem beside this noun."""
        return {"n": self.outdoors, "t": self.trade}.get(noun.classes, self.of_persons)


def _rows(table: str) -> list[list[str]]:
    return [
        ["" if cell == "-" else cell.replace("_", " ") for cell in line.split()] for line in table.strip().split("\n")
    ]


def _verbs(name: str) -> tuple[EnglishVerb, ...]:
    found = list[EnglishVerb]()
    for base, third, past, participle, particle, *german, case, domain in _rows(_READ["verbs"][name]):
        prefix, singular, plural, german_participle, auxiliary = german
        verb = Verb(base, third, past, prefix, singular, plural, german_participle, auxiliary, "", "")
        found.append(EnglishVerb(verb, participle, particle, ACCUSATIVE if case == "a" else DATIVE, domain))
    return tuple(found)


def _nouns(name: str) -> list[Noun]:
    return [Noun(*row) for row in _rows(_READ[name])]


def _pairs(name: str) -> tuple[Words, ...]:
    return tuple((en.replace("_", " "), de) for en, de in _READ[name])


PERSONS = tuple(Entry(noun, noun) for noun in _nouns("persons"))
_SENSES = _nouns("homonyms")
HOMONYMS = tuple(Entry(*pair) for pair in zip(_SENSES[::2], _SENSES[1::2], strict=True))
OF_THINGS, PLAIN, OF_PERSONS = (_verbs(name) for name in ("things", "plain", "persons"))
ADJECTIVES = tuple(Adjective(*row) for row in _rows(_READ["adjectives"]))
NUMBERS = {en: number(en, de) for en, de in _READ["numbers"]}
DETERMINERS: dict[str, Determiner] = {"the": THE, "this": THIS, "a": A, **NUMBERS}
PREPOSITIONS = tuple(
    Preposition(adverb, preposition, de, ACCUSATIVE if case == "a" else DATIVE, domain, rank)
    for rank, (adverb, preposition, de, case, domain) in enumerate(_rows(_READ["prepositions"]))
)
CONJUNCTIONS, CONTRASTS = (_pairs(name) for name in ("conjunctions", "contrasts"))


def like(noun: Entry) -> tuple[Entry, ...]:
    """The nouns that may stand in place of a noun."""
    return next(group for group in (PERSONS, HOMONYMS) if noun in group)


def beside(verb: EnglishVerb) -> tuple[EnglishVerb, ...]:
    """The verbs that may stand in place of a verb."""
    return next(group for group in (OF_THINGS, PLAIN, OF_PERSONS) if verb in group)
