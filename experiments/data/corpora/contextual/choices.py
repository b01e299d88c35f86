"""Records of the choices that determine a sentence. A slot is the dotted name of a choice: "first.object.noun"."""

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
    """A noun phrase: determiner, adjective, noun and relative clause."""

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
    """A relative clause. The antecedent is its subject (a person) or its object (a person or thing)."""

    verb: EnglishVerb
    other: NounPhrase  # the object of the clause if `active`, else the subject
    tense: str
    active: bool  # whether the antecedent is the subject of the relative clause


@dataclass(frozen=True, slots=True)
class Pronoun:
    """A pronoun of the second clause, which refers to a phrase of the first clause."""

    antecedent: str  # slot of that phrase: "first.subject" or "first.object"


@dataclass(frozen=True, slots=True)
class Adjunct:
    """An adverb and a preposition with a noun phrase, for example "up to the bank"."""

    preposition: Preposition
    phrase: NounPhrase


@dataclass(frozen=True, slots=True)
class Clause:
    """A clause with a verb and an object, or with a form of "be" and a predicate."""

    subject: NounPhrase | Pronoun
    tense: str  # present, past, future
    verb: EnglishVerb | None = None
    object: NounPhrase | Pronoun | None = None
    predicate: Adjective | None = None
    frequency: Words | None = None
    adjuncts: tuple[Adjunct, ...] = ()  # in English order
    adjunct_first: bool = False  # whether the first adjunct stands before the English subject


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence with one or two clauses."""

    first: Clause
    time: Words | None = None  # adverb of time, which stands before the first clause
    joint: Words | None = None  # the conjunction of the second clause
    second: Clause | None = None
    fronted: bool = False  # whether the second clause is subordinate and stands before the first clause in English

    @property
    def subordinate(self) -> bool:
        """Return whether the second clause is subordinate. If so, its German verb stands last."""
        return self.joint in CONJUNCTIONS

    @property
    def german_fronted(self) -> bool:
        """Return whether the second clause stands first in German.

        With "although", the second clause stands first in German. With "while", the order is that of the English
        sentence. With all other conjunctions, the second clause stands last.
        """
        if self.joint is None or self.joint[0] == "while":
            return self.fronted
        return self.joint[0] == "although"


def at(sentence: Sentence, slot: str) -> Any:
    """Return the choice in a slot."""
    found: Any = sentence
    for name in slot.split("."):
        found = found[int(name)] if name.isdigit() else getattr(found, name)
    return found


def antecedent(sentence: Sentence, phrase: NounPhrase | Pronoun, slot: str) -> tuple[NounPhrase, str]:
    """Return the antecedent of a pronoun and its slot. For a noun phrase, return the phrase and `slot`."""
    return (at(sentence, phrase.antecedent), phrase.antecedent) if isinstance(phrase, Pronoun) else (phrase, slot)
