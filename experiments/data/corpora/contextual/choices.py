"""A sentence as a record of choices, each with a slot: a dotted name such as "first.object.noun"."""

from dataclasses import dataclass
from typing import Any

from experiments.data.corpora.contextual.entries import (
    CONJUNCTIONS,
    PERSONS,
    Adjective,
    EnglishVerb,
    Entry,
    Preposition,
)
from experiments.data.corpora.phrases import Words


@dataclass(frozen=True, slots=True)
class NounPhrase:
    """Determiner, adjective, noun, and a relative clause after it."""

    noun: Entry
    determiner: str  # a key of DETERMINERS
    adjective: Adjective | None = None
    plural: bool = False
    relative: "Relative | None" = None

    @property
    def of_person(self) -> bool:
        return self.noun in PERSONS


@dataclass(frozen=True, slots=True)
class Relative:
    """A relative clause: what a person does to another, or another person to the person or thing."""

    verb: EnglishVerb
    other: NounPhrase
    tense: str
    active: bool  # the antecedent is its subject


@dataclass(frozen=True, slots=True)
class Pronoun:
    """A pronoun of the second clause, by the slot of the phrase that it takes up: "first.subject" or "first.object"."""

    antecedent: str


@dataclass(frozen=True, slots=True)
class Adjunct:
    """Up to, off by, down with … someone or something."""

    preposition: Preposition
    phrase: NounPhrase


@dataclass(frozen=True, slots=True)
class Clause:
    """Someone does something (verb, object), or something is so (predicate)."""

    subject: NounPhrase | Pronoun
    tense: str  # present, past, future
    verb: EnglishVerb | None = None
    object: NounPhrase | Pronoun | None = None
    predicate: Adjective | None = None
    frequency: Words | None = None
    adjuncts: tuple[Adjunct, ...] = ()  # in English order
    adjunct_first: bool = False  # the first one stands before the English subject


@dataclass(frozen=True, slots=True)
class Sentence:
    first: Clause
    time: Words | None = None  # stands before the first clause
    joint: Words | None = None  # the conjunction of the second clause
    second: Clause | None = None
    fronted: bool = False  # the second clause, a subordinate one, stands before the first

    @property
    def subordinate(self) -> bool:
        """Return whether the second clause is one: its German verb stands last."""
        return self.joint in CONJUNCTIONS

    @property
    def german_fronted(self) -> bool:
        """Return whether the German second clause stands first: "because" and "although" decide it."""
        if self.joint is None or self.joint[0] == "while":
            return self.fronted
        return self.joint[0] == "although"


def at(sentence: Sentence, slot: str) -> Any:
    """The choice of a slot."""
    found: Any = sentence
    for name in slot.split("."):
        found = found[int(name)] if name.isdigit() else getattr(found, name)
    return found


def antecedent(sentence: Sentence, phrase: NounPhrase | Pronoun, slot: str) -> tuple[NounPhrase, str]:
    """The noun phrase of a pronoun with its slot, or the phrase itself."""
    return (at(sentence, phrase.antecedent), phrase.antecedent) if isinstance(phrase, Pronoun) else (phrase, slot)
