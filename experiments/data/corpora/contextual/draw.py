"""Draw random sentences, each with exactly one translation, and change single choices of a sentence."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from experiments.data.corpora.contextual.choices import Adjunct, Clause, NounPhrase, Pronoun, Relative, Sentence, at
from experiments.data.corpora.contextual.entries import (
    ADJECTIVES,
    CONJUNCTIONS,
    CONTRASTS,
    HOMONYMS,
    NUMBERS,
    OF_PERSONS,
    OF_THINGS,
    PERSONS,
    PLAIN,
    PREPOSITIONS,
    Entry,
)
from experiments.data.corpora.contextual.render_pair import (
    other_determiners,
    other_nouns,
    other_prepositions,
    other_verbs,
    render,
)
from experiments.data.corpora.contextual.rendered import Rendered
from experiments.data.corpora.lexicon import FREQUENCIES, TIMES, Dice
from experiments.data.corpora.phrases import Words

MIN_WORDS, MAX_WORDS = 5, 24  # length of the English sentence
_TODAY = ("today", "heute")  # correct with every tense


def sentence(dice: Dice) -> Words:
    """Draw a pair of sentences as plain text: (English, German)."""
    return draw(dice)[1].pair


def draw(dice: Dice) -> tuple[Sentence, Rendered]:
    """Draw the choices of one sentence. Return the choices, and the sentence in both languages."""
    while True:
        drawn = _sentence(dice)
        if valid(drawn):
            rendered = render(drawn)
            if MIN_WORDS <= sum(len(word.text.split()) for word in rendered.source if word.slot) <= MAX_WORDS:
                return drawn, rendered


def _sentence(dice: Dice) -> Sentence:
    tense = dice.pick(("present", "past", "past", "past", "past", "future", "future"))
    kind = dice.below(20)
    alone = kind < 9
    first = _action(dice, _person(dice, relative=dice.chance(12)), tense, (1, 2, 2, 3) if alone else (0, 1, 1))
    time = dice.pick(TIMES[tense]) if dice.chance(15) else None
    later = tense if tense != "future" else "present"
    if alone:
        return Sentence(_adjunct_first(dice, first, time), time)
    if kind < 12:
        other = _action(dice, _person(dice), tense, (0, 1, 1))
        return Sentence(_adjunct_first(dice, first, time), time, dice.pick(CONTRASTS), other)
    fronted = kind < 16
    joint = dice.pick(CONJUNCTIONS)
    roll = dice.below(10)
    if roll < 4:
        second = Clause(Pronoun("first.object"), later, predicate=dice.pick(ADJECTIVES))
    elif roll < 7:
        second = Clause(_person(dice), later, dice.pick(PLAIN), Pronoun("first.object"))
    else:
        second = _action(dice, Pronoun("first.subject"), later, (0, 1))
    return Sentence(first, None, joint, second, fronted)


def _adjunct_first(dice: Dice, clause: Clause, time: Words | None) -> Clause:
    return replace(clause, adjunct_first=bool(clause.adjuncts) and time is None and dice.chance(40))


def _adjuncts(dice: Dice, count: int) -> tuple[Adjunct, ...]:
    """Draw adjuncts with different prepositions, in random order."""
    left, found = list(PREPOSITIONS), list[Adjunct]()
    for _ in range(count):
        found.append(
            Adjunct(left.pop(dice.below(len(left))), _phrase(dice, dice.pick(PERSONS if dice.chance(25) else HOMONYMS)))
        )
    return tuple(found)


def _action(dice: Dice, subject: NounPhrase | Pronoun, tense: str, counts: tuple[int, ...]) -> Clause:
    """Draw a clause whose object is a thing. counts: the possible numbers of adjuncts."""
    frequency = dice.pick(FREQUENCIES) if tense != "future" and dice.chance(15) else None
    thing = _phrase(dice, dice.pick(HOMONYMS))
    if dice.chance(15):
        seen = Relative(dice.pick(PLAIN), _person(dice), dice.pick(("present", "past", "past")), active=False)
        thing = replace(thing, relative=seen)
    return Clause(subject, tense, dice.pick(OF_THINGS), thing, None, frequency, _adjuncts(dice, dice.pick(counts)))


def _person(dice: Dice, relative: bool = False) -> NounPhrase:
    phrase = _phrase(dice, dice.pick(PERSONS))
    if not relative:
        return phrase
    tense = dice.pick(("present", "past", "past"))
    clause = Relative(dice.pick(OF_PERSONS), _phrase(dice, dice.pick(PERSONS)), tense, dice.chance(60))
    return replace(phrase, relative=clause)


def _phrase(dice: Dice, noun: Entry) -> NounPhrase:
    determiner = dice.pick(("the",) * 6 + ("a", "a", "this", dice.pick(tuple(NUMBERS))))
    plural = determiner in NUMBERS or (determiner == "the" and dice.chance(35))
    return NounPhrase(noun, determiner, dice.pick(ADJECTIVES) if dice.chance(40) else None, plural)


def valid(sentence: Sentence) -> bool:
    """Return whether every pronoun has exactly one possible antecedent, and no person occurs twice."""
    first, second = sentence.first, sentence.second
    clauses = [first] if second is None else [first, second]
    persons = [person for clause in clauses for part in (clause.subject, clause.object) for person in _persons(part)]
    beside = [adjunct.phrase for clause in clauses for adjunct in clause.adjuncts]
    persons += [phrase for phrase in beside if phrase.of_person]
    if len({phrase.noun for phrase in persons}) < len(persons):
        return False
    if second is None:
        return True
    things = [first.object] if isinstance(first.object, NounPhrase) else []
    things += [phrase for phrase in beside if not phrase.of_person]
    for part in (second.subject, second.object):
        if not isinstance(part, Pronoun):
            continue
        taken: NounPhrase = at(sentence, part.antecedent)
        if not taken.of_person and taken.plural:
            return False
        if [_english_pronoun(each) for each in (*persons, *things)].count(_english_pronoun(taken)) > 1:
            return False
    return True


def _english_pronoun(phrase: NounPhrase) -> str:
    return "they" if phrase.plural else phrase.noun.outdoors.pronoun


def _persons(phrase: NounPhrase | Pronoun | None) -> list[NounPhrase]:
    """Return the persons that a phrase and its relative clause name."""
    if not isinstance(phrase, NounPhrase):
        return []
    return [each for each in (phrase, phrase.relative and phrase.relative.other) if each and each.of_person]


def alternatives(sentence: Sentence, slot: str) -> Iterator[Sentence]:
    """Yield the sentences that differ from a sentence in the content of one slot.

    The slot contains a noun with its number, a determiner, a verb with its tense, a particle, an adverb or a
    preposition. For the slot of a pronoun, the noun of its antecedent changes. If the tense changes, an adverb of time
    becomes "today". The sentences need not be `valid`, because a pronoun may have more than one possible antecedent.
    """
    parent, _, name = slot.rpartition(".")
    if name in ("subject", "object") and isinstance(at(sentence, slot), Pronoun):
        parent = at(sentence, slot).antecedent
        found = [_with(sentence, parent, other) for other in other_nouns(at(sentence, parent))]
    elif name == "noun":
        found = [_with(sentence, parent, other) for other in other_nouns(at(sentence, parent))]
    elif name == "determiner":
        found = [_with(sentence, parent, other) for other in other_determiners(at(sentence, parent))]
    elif name == "verb":
        found = [*_other_verbs(sentence, parent, 0), *_other_tenses(sentence, parent)]
    elif name == "particle":
        found = _other_verbs(sentence, parent, 1)
    elif name in ("adverb", "preposition"):
        others = other_prepositions(at(sentence, f"{parent}.preposition"))[name == "preposition"]
        found = [_with(sentence, f"{parent}.preposition", other) for other in others]
    else:
        found = []
    yield from (other for other in found if other != sentence)


def _other_verbs(sentence: Sentence, slot: str, index: int) -> list[Sentence]:
    holder: Clause | Relative = at(sentence, slot)
    if holder.verb is None:
        return []
    return [_with(sentence, f"{slot}.verb", verb) for verb in other_verbs(holder.verb)[index]]


def _other_tenses(sentence: Sentence, slot: str) -> list[Sentence]:
    holder: Clause | Relative = at(sentence, slot)
    often = isinstance(holder, Clause) and holder.frequency is not None
    tenses = ("present", "past") if often or (isinstance(holder, Clause) and holder.predicate) else tuple(TIMES)
    found: list[Sentence] = [_with(sentence, f"{slot}.tense", tense) for tense in tenses]
    return [replace(other, time=_TODAY) if other.time else other for other in found]


def _with(record: Any, slot: str, value: Any) -> Any:
    """Return a copy of a record with another value in a slot."""
    name, _, rest = slot.partition(".")
    if isinstance(record, tuple):
        index = int(name)
        return (*record[:index], _with(record[index], rest, value), *record[index + 1 :])
    return replace(record, **{name: _with(getattr(record, name), rest, value) if rest else value})
