"""The words of the built-in corpus, version 2, read from words.toml."""

import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from experiments.data.corpora.lexicon import Noun, Verb
from experiments.data.corpora.phrases import ACCUSATIVE, DATIVE, THE, THIS, A, Determiner, Words, number

_READ = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))


class Entry(NamedTuple):
    """An English noun, with what it is to persons of either domain: one noun, or the two of a homonym."""

    outdoors: Noun
    trade: Noun

    @property
    def homonym(self) -> bool:
        return self.outdoors != self.trade

    def sense(self, domain: str) -> Noun:
        """The noun in a clause whose subject has this domain, "n" or "t"."""
        return self.outdoors if domain == "n" else self.trade


class EnglishVerb(NamedTuple):
    """An English verb with its German verbs: one, or several for objects of different classes."""

    senses: tuple[Verb, ...]
    participle: str
    case: int  # of its object
    of_persons: bool  # whether its objects are persons

    def sense(self, noun_class: str) -> Verb:
        """The German verb for an object of this class."""
        return next(verb for verb in self.senses if verb.objects in ("*", "") or noun_class in verb.objects)

    def takes(self, noun_class: str, homonym: bool) -> bool:
        """Return whether a thing may be its object. Homonyms are objects of verbs with one sense alone."""
        if self.of_persons:
            return False
        return any(verb.objects == "*" or (not homonym and noun_class in verb.objects) for verb in self.senses)


def _rows(table: str) -> list[list[str]]:
    return [
        ["" if cell == "-" else cell.replace("_", " ") for cell in line.split()] for line in table.strip().split("\n")
    ]


def _verbs(name: str, case: int, of_persons: bool) -> tuple[EnglishVerb, ...]:
    senses: dict[tuple[str, str], list[Verb]] = {}
    for base, third, past, participle, *german, objects in _rows(_READ["verbs"][name]):
        prefix, singular, plural, german_participle, auxiliary = german
        verb = Verb(base, third, past, prefix, singular, plural, german_participle, auxiliary, "", objects)
        senses.setdefault((base, participle), []).append(verb)
    return tuple(EnglishVerb(tuple(v), participle, case, of_persons) for (_, participle), v in senses.items())


def _nouns(name: str) -> list[Noun]:
    return [Noun(*row) for row in _rows(_READ[name])]


def _pairs(name: str) -> tuple[Words, ...]:
    return tuple((en.replace("_", " "), de) for en, de in _READ[name])


PERSONS = tuple(Entry(noun, noun) for noun in _nouns("persons"))
THINGS = tuple(Entry(noun, noun) for noun in _nouns("things"))
PLACES = tuple(Entry(noun, noun) for noun in _nouns("places"))
_SENSES = _nouns("homonyms")
HOMONYMS = tuple(Entry(*pair) for pair in zip(_SENSES[::2], _SENSES[1::2], strict=True))
OF_THINGS = _verbs("things", ACCUSATIVE, False)
OF_PERSONS = (*_verbs("persons", ACCUSATIVE, True), *_verbs("dative", DATIVE, True))
ONE_SENSE = tuple(verb for verb in OF_THINGS if len(verb.senses) == 1)
SEVERAL_SENSES = tuple(verb for verb in OF_THINGS if len(verb.senses) > 1)
ADJECTIVES = {
    person: tuple((row[0], row[column]) for row in _rows(_READ["adjectives"]) if row[column])
    for person, column in ((True, 1), (False, 2))
}
NUMBERS = {en: number(en, de) for en, de in _READ["numbers"]}
DETERMINERS: dict[str, Determiner] = {"the": THE, "this": THIS, "a": A, **NUMBERS}
PREPOSITIONS, PREDICATES, CONJUNCTIONS, CONTRASTS = (
    _pairs(name) for name in ("place_prepositions", "predicates", "conjunctions", "contrasts")
)


@cache
def candidates(verb: EnglishVerb | None, person: bool) -> tuple[Entry, ...]:
    """Nouns that may stand in place of a noun: persons; places and homonyms (no verb); things that the verb takes."""
    if person:
        return PERSONS
    if verb is None:
        return (*PLACES, *HOMONYMS)
    return tuple(each for each in (*THINGS, *HOMONYMS) if verb.takes(each.outdoors.classes, each.homonym))
