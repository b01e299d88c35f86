"""Draw random sentences with one translation each, and change one choice of a sentence."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from experiments.data.corpora.contextual.choices import Clause, NounPhrase, Place, Pronoun, Relative, Sentence, at
from experiments.data.corpora.contextual.entries import (
    ADJECTIVES,
    CONJUNCTIONS,
    CONTRASTS,
    HOMONYMS,
    NUMBERS,
    OF_PERSONS,
    OF_THINGS,
    ONE_SENSE,
    PERSONS,
    PLACES,
    PREDICATES,
    PREPOSITIONS,
    SEVERAL_SENSES,
    Entry,
    candidates,
)
from experiments.data.corpora.contextual.render_pair import render
from experiments.data.corpora.contextual.rendered import Rendered
from experiments.data.corpora.lexicon import FREQUENCIES, TIMES, Dice
from experiments.data.corpora.phrases import Words

MIN_WORDS, MAX_WORDS = 5, 24  # of the English side
_TODAY = ("today", "heute")  # goes with every tense


def sentence(dice: Dice) -> Words:
    """One pair of sentences in plain text: (English, German)."""
    return draw(dice)[1].pair


def draw(dice: Dice) -> tuple[Sentence, Rendered]:
    """The choices of one sentence, and the sentence."""
    while True:
        drawn = _sentence(dice)
        if valid(drawn):
            rendered = render(drawn)
            if MIN_WORDS <= sum(len(word.text.split()) for word in rendered.source if word.slot) <= MAX_WORDS:
                return drawn, rendered


def _sentence(dice: Dice) -> Sentence:
    tense = dice.pick(("present", "past", "past", "past", "future"))
    first = _action(dice, _person(dice, relative=dice.chance(45)), tense)
    time = dice.pick(TIMES[tense]) if dice.chance(15) else None
    later = tense if tense != "future" else "present"
    kind = dice.below(10)
    if kind < 2:
        return Sentence(first, time)
    if kind < 4:
        return Sentence(first, time, dice.pick(CONTRASTS), _action(dice, _person(dice), tense))
    joint = dice.pick(CONJUNCTIONS)
    if kind < 7:
        before = _action(dice, Pronoun("first.subject"), later)
        return Sentence(first, None, joint, before, fronted=True)
    of_person = first.verb is not None and first.verb.of_persons
    if not of_person and dice.chance(40):
        about = Clause(Pronoun("first.object"), later, predicate=dice.pick(PREDICATES))
        return Sentence(first, time, joint, about)
    if not of_person and dice.chance(30):
        again = Clause(Pronoun("first.subject"), later, dice.pick(ONE_SENSE), Pronoun("first.object"))
        return Sentence(first, time, joint, again)
    taken_up = "first.object" if of_person and dice.chance(50) else "first.subject"
    return Sentence(first, time, joint, _action(dice, Pronoun(taken_up), later))


def _action(dice: Dice, subject: NounPhrase | Pronoun, tense: str) -> Clause:
    """A clause with a verb: most of its objects are homonyms, half of these in the passive."""
    frequency = dice.pick(FREQUENCIES) if tense != "future" and dice.chance(15) else None
    place = None
    if dice.chance(25):
        place = Place(dice.pick(PREPOSITIONS), _phrase(dice, dice.pick(dice.pick((PLACES, HOMONYMS))), False))
    roll = dice.below(10)
    if roll < 2:
        return Clause(subject, tense, dice.pick(OF_PERSONS), _person(dice), None, frequency, place)
    passive = isinstance(subject, NounPhrase) and dice.chance(45)
    verb = dice.pick(ONE_SENSE if roll < 8 else SEVERAL_SENSES)
    noun = dice.pick(HOMONYMS if roll < 8 else candidates(verb, False))
    return Clause(subject, tense, verb, _phrase(dice, noun, False), None, frequency, place, passive)


def _person(dice: Dice, relative: bool = False) -> NounPhrase:
    phrase = _phrase(dice, dice.pick(PERSONS), True)
    if not relative:
        return phrase
    tense = dice.pick(("present", "past", "past"))
    clause = Relative(dice.pick(OF_PERSONS), _phrase(dice, dice.pick(PERSONS), True), tense, dice.chance(60))
    return replace(phrase, relative=clause)


def _phrase(dice: Dice, noun: Entry, person: bool) -> NounPhrase:
    determiner = dice.pick(("the",) * 6 + ("a", "a", "this", dice.pick(tuple(NUMBERS))))
    plural = determiner in NUMBERS or (determiner == "the" and dice.chance(35))
    adjective = dice.pick(ADJECTIVES[person]) if dice.chance(40) else None
    return NounPhrase(noun, determiner, adjective, plural)


# --- Which sentences have one translation; one choice changed


def valid(sentence: Sentence) -> bool:
    """Return whether every pronoun has one fitting antecedent, and no clause relates its subject to itself."""
    first, second = sentence.first, sentence.second
    persons = _persons(first.subject) + _persons(first.object)
    if second is not None:
        persons += _persons(second.subject) + _persons(second.object)
    if len({phrase.noun for phrase in persons}) < len(persons):
        return False
    if second is None:
        return True
    things = [first.object] if isinstance(first.object, NounPhrase) and first.object.noun not in PERSONS else []
    for part in (second.subject, second.object):
        if not isinstance(part, Pronoun):
            continue
        taken: NounPhrase = at(sentence, part.antecedent)
        if taken in things:
            if taken.plural or first.place is not None:
                return False
        elif [_english_pronoun(each) for each in (*persons, *things)].count(_english_pronoun(taken)) > 1:
            return False
    return True


def _english_pronoun(phrase: NounPhrase) -> str:
    return "they" if phrase.plural else phrase.noun.outdoors.pronoun


def _persons(phrase: NounPhrase | Pronoun | None) -> list[NounPhrase]:
    """The persons of a phrase: itself, and the other one of its relative clause."""
    if not isinstance(phrase, NounPhrase) or phrase.noun not in PERSONS:
        return []
    return [phrase, phrase.relative.other] if phrase.relative else [phrase]


def alternatives(sentence: Sentence, slot: str) -> Iterator[Sentence]:
    """The sentences that differ in the choice of one slot: a noun with its number, a determiner, a verb or its tense.

    A pronoun's are those of the noun that it takes up. With another tense an adverb of time becomes "today". Some of
    them would not be drawn, because a pronoun has another possible antecedent.
    """
    parent, _, name = slot.rpartition(".")
    if name in ("subject", "object") and isinstance(at(sentence, slot), Pronoun):
        found = _other_nouns(sentence, at(sentence, slot).antecedent)
    elif name == "noun":
        found = _other_nouns(sentence, parent)
    elif name == "determiner":
        phrase: NounPhrase = at(sentence, parent)
        others = ("the", "this", *(NUMBERS if phrase.plural else ("a",)))
        found = [_with(sentence, parent, replace(phrase, determiner=determiner)) for determiner in others]
    elif name == "verb":
        found = [*_other_verbs(sentence, parent), *_other_tenses(sentence, parent)]
    elif name == "be":
        found = _other_tenses(sentence, parent.rpartition(".")[0])
    else:
        found = []
    yield from (other for other in found if other != sentence)


def _other_nouns(sentence: Sentence, slot: str) -> list[Sentence]:
    phrase, holder = at(sentence, slot), at(sentence, slot.rpartition(".")[0])
    numbers = (False, True) if phrase.determiner == "the" else (phrase.plural,)
    verb = holder.verb if isinstance(holder, Clause) else None
    return [
        _with(sentence, slot, replace(phrase, noun=noun, plural=plural))
        for noun in candidates(verb, phrase.noun in PERSONS)
        for plural in numbers
    ]


def _other_verbs(sentence: Sentence, slot: str) -> list[Sentence]:
    holder: Clause | Relative = at(sentence, slot)
    of_persons = isinstance(holder, Relative) or (holder.verb is not None and holder.verb.of_persons)
    thing = None
    if isinstance(holder, Clause) and isinstance(holder.object, NounPhrase) and not of_persons:
        thing = holder.object.noun
    return [
        _with(sentence, f"{slot}.verb", verb)
        for verb in (OF_PERSONS if of_persons else OF_THINGS)
        if thing is None or verb.takes(thing.outdoors.classes, thing.homonym)
    ]


def _other_tenses(sentence: Sentence, slot: str) -> list[Sentence]:
    holder: Clause | Relative = at(sentence, slot)
    often = isinstance(holder, Clause) and holder.frequency is not None
    found: list[Sentence] = [
        _with(sentence, f"{slot}.tense", tense) for tense in TIMES if tense != "future" or not often
    ]
    return [replace(other, time=_TODAY) if other.time else other for other in found]


def _with(record: Any, slot: str, value: Any) -> Any:
    """The record with another value in a slot below it."""
    name, _, rest = slot.partition(".")
    return replace(record, **{name: _with(getattr(record, name), rest, value) if rest else value})
