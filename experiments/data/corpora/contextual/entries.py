"""The words of the built-in corpus, version 2, read from words.toml."""

import tomllib
from pathlib import Path
from typing import NamedTuple

from experiments.data.corpora.lexicon import Noun, Verb
from experiments.data.corpora.phrases import ACCUSATIVE, DATIVE, THE, THIS, A, Determiner, Words, number

_READ = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))


class Entry(NamedTuple):
    """An English noun with its German noun in each domain. The two German nouns of a homonym differ.

    The domains are "n" (outdoors) and "t" (trade). The verb or preposition of the noun determines the domain.
    """

    outdoors: Noun
    trade: Noun

    @property
    def homonym(self) -> bool:
        return self.outdoors != self.trade

    def sense(self, domain: str) -> Noun:
        """Return the noun as the object of a verb with this domain: "n", "t", or "" for none."""
        return self.trade if domain == "t" else self.outdoors


class EnglishVerb(NamedTuple):
    """An English verb with its particle, and the German verb that translates verb and particle together."""

    german: Verb
    participle: str
    particle: str  # "" if it has none
    case: int  # case of the German object
    domain: str  # "n" or "t"; "" for verbs with objects of either domain


class Preposition(NamedTuple):
    """An English adverb and a preposition, and the German preposition that translates the two words together."""

    adverb: str
    preposition: str
    de: str
    case: int
    domain: str  # "n" or "t"
    rank: int  # position among the German prepositions of a clause


class Adjective(NamedTuple):
    """An English adjective and its German stems."""

    en: str
    of_persons: str
    outdoors: str
    trade: str

    def stem(self, noun: Noun) -> str:
        """Return the German stem of the adjective for use with a noun."""
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
    """Return the nouns that may replace a noun."""
    return next(group for group in (PERSONS, HOMONYMS) if noun in group)


def beside(verb: EnglishVerb) -> tuple[EnglishVerb, ...]:
    """Return the verbs that may replace a verb."""
    return next(group for group in (OF_THINGS, PLAIN, OF_PERSONS) if verb in group)
