"""Write a sentence in English and German, and record which words decide each German word.

An English word decides a German word if another choice of the English word would change the German word. For each
German word, `render` records the English words that decide its sense, gender, number or case. The English word that the
German word translates is not included. `render` also records the earlier German words with which the word agrees or
forms one verb.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from experiments.data.corpora.contextual.choices import Adjunct, Clause, NounPhrase, Pronoun, Sentence, antecedent, at
from experiments.data.corpora.contextual.entries import (
    DETERMINERS,
    NUMBERS,
    PREPOSITIONS,
    EnglishVerb,
    Preposition,
    beside,
    like,
)
from experiments.data.corpora.contextual.rendered import Rendered, Source, Target
from experiments.data.corpora.lexicon import FORMS
from experiments.data.corpora.phrases import NOMINATIVE, noun_forms

_OBJECT_PRONOUNS = {"he": "him", "she": "her", "it": "it", "they": "them"}
_BE = {"present": (("is", "ist"), ("are", "sind")), "past": (("was", "war"), ("were", "waren"))}


class Governor(NamedTuple):
    """The domain and case that a verb or preposition gives to a noun phrase."""

    domain: str
    case: int
    others: tuple[tuple[str, str, int], ...] = ()  # for each alternative verb or preposition: slot, domain, case


def other_verbs(verb: EnglishVerb) -> tuple[list[EnglishVerb], list[EnglishVerb]]:
    """Return other English verbs with the same particle, and the same English verb with other particles."""
    every = [one for one in beside(verb) if one != verb]
    same_particle = [one for one in every if one.particle == verb.particle]
    return same_particle, [one for one in every if one.german.base == verb.german.base]


def other_prepositions(one: Preposition) -> tuple[list[Preposition], list[Preposition]]:
    """Return other adverbs with the same English preposition, and the same adverb with other prepositions."""
    adverbs = [other for other in PREPOSITIONS if other.preposition == one.preposition and other != one]
    return adverbs, [other for other in PREPOSITIONS if other.adverb == one.adverb and other != one]


def _choices(slot: str, others: Sequence[EnglishVerb | Preposition]) -> set[tuple[str, str, int]]:
    return {(slot, other.domain, other.case) for other in others}


@cache
def _governor(one: EnglishVerb | Preposition, first: str, second: str) -> Governor:
    """Return the governor of a verb or preposition.

    first, second: slots of the two English words that together determine the domain and the case.
    """
    if isinstance(one, EnglishVerb):
        found = _choices(first, other_verbs(one)[0]) | _choices(second, other_verbs(one)[1])
    else:
        found = _choices(first, other_prepositions(one)[0]) | _choices(second, other_prepositions(one)[1])
    return Governor(one.domain, one.case, tuple(sorted(found)))


@cache
def _words(phrase: NounPhrase, domain: str, case: int) -> tuple[str, str, str]:
    """Return the German determiner, adjective ("" if none) and noun."""
    noun, determiner = phrase.noun.sense(domain), DETERMINERS[phrase.determiner]
    gender = "p" if phrase.plural else noun.gender
    adjective = ""
    if phrase.adjective:
        adjective = phrase.adjective.stem(noun) + determiner.adjective[gender][case]
    return determiner.forms[gender][case], adjective, noun_forms(noun, phrase.plural)[case]


def other_nouns(phrase: NounPhrase) -> list[NounPhrase]:
    """Return the phrase with every possible noun, and in both numbers if the determiner does not show the number."""
    numbers = (False, True) if phrase.determiner == "the" else (phrase.plural,)
    return [replace(phrase, noun=noun, plural=plural) for noun in like(phrase.noun) for plural in numbers]


def other_determiners(phrase: NounPhrase) -> list[NounPhrase]:
    """Return the phrase with every possible determiner of the same number."""
    others = ("the", "this", *(NUMBERS if phrase.plural else ("a",)))
    return [replace(phrase, determiner=determiner) for determiner in others]


@cache
def _changed(phrase: NounPhrase, domain: str, case: int) -> tuple[tuple[str, tuple[str, str, str]], ...]:
    """Return pairs of a slot's name and the German words that an alternative choice in that slot gives."""
    nouns = {("noun", _words(other, domain, case)) for other in other_nouns(phrase)}
    determiners = {("determiner", _words(other, domain, case)) for other in other_determiners(phrase)}
    return tuple(sorted(nouns | determiners))


def _noun_phrase(phrase: NounPhrase, slot: str, governor: Governor) -> tuple[list[Source], list[Target]]:
    """Render a noun phrase without its relative clause."""
    english = phrase.noun.outdoors
    noun = english.plural if phrase.plural else english.singular
    determiner = DETERMINERS[phrase.determiner]
    article = determiner.en_plural if phrase.plural else determiner.en_singular
    if article == "a" and (phrase.adjective.en if phrase.adjective else noun)[0] in "aeiou":
        article = "an"
    words = _words(phrase, governor.domain, governor.case)
    changed = [(f"{slot}.{name}", other) for name, other in _changed(phrase, governor.domain, governor.case)]
    changed += [(name, _words(phrase, domain, case)) for name, domain, case in governor.others]
    source, target = list[Source](), list[Target]()
    named = (("determiner", article), ("adjective", phrase.adjective.en if phrase.adjective else ""), ("noun", noun))
    for index, (name, text) in enumerate(named):
        if not text:
            continue
        here = f"{slot}.{name}"
        source.append(Source(text, here))
        deciders = dict.fromkeys(who for who, other in changed if who != here and other[index] != words[index])
        agrees = name == "adjective" and any(o[0] != words[0] and o[1] != words[1] for _, o in changed)
        target.append(Target(words[index], here, here, tuple(deciders), (f"{slot}.determiner",) * agrees))
    return source, target


class _GermanVerb(NamedTuple):
    """The German words of a verb: the finite verb, and the word at the end of the clause."""

    finite: tuple[str, tuple[str, ...]]  # text, deciders
    end: tuple[str, tuple[str, ...]]
    prefix: str  # attached to the finite verb at the end of a subordinate clause


def _verb_forms(verb: EnglishVerb, tense: str, plural: bool) -> tuple[str, str, str]:
    """Return the finite verb, the last word of a main clause, and the prefix of the finite verb if it stands last."""
    one = verb.german
    if tense == "present":
        return one.plural_de if plural else one.singular_de, one.prefix, one.prefix
    if tense == "future":
        return "werden" if plural else "wird", one.prefix + one.plural_de, ""
    have = ("haben", "hat") if one.auxiliary == "haben" else ("sind", "ist")
    return have[0 if plural else 1], one.participle, ""


def _german_verb(verb: EnglishVerb, slot: str, tense: str, plural: bool, counts: str) -> _GermanVerb:
    """Return the German words of a verb with their deciders.

    counts: the slot of the subject if no other English word shows the number, else "".
    """
    texts = _verb_forms(verb, tense, plural)
    _, particles = other_verbs(verb)
    found = []
    for index in (0, 1):
        deciders: tuple[str, ...] = ()
        if any(_verb_forms(other, tense, plural)[index] != texts[index] for other in particles):
            deciders += (f"{slot}.particle",)
        if counts and _verb_forms(verb, tense, not plural)[index] != texts[index]:
            deciders += (counts,)
        found.append((texts[index], deciders))
    return _GermanVerb(found[0], found[1], texts[2])


def _english_verb(verb: EnglishVerb, tense: str, plural: bool) -> str:
    one = verb.german
    if tense == "future":
        return f"will {one.base}"
    if tense == "past":
        return one.past
    return one.base if plural else one.third


def _particle(verb: EnglishVerb, slot: str) -> list[Source]:
    return [Source(verb.particle, f"{slot}.particle")] if verb.particle else []


def _verb_words(german: _GermanVerb, slot: str, last: bool, subject: str) -> tuple[list[Target], list[Target]]:
    """Return the words in the position of the finite verb, and the words at the end of the clause.

    last: whether the finite verb stands at the end of the clause, too.
    subject: the name of the subject if it stands before the finite verb and its form shows the number, else "".
    """
    (finite, of_finite), (end, of_end) = german.finite, german.end
    agrees: tuple[str, ...] = (subject,) if subject in of_finite else ()
    if last and german.prefix:
        deciders = tuple(dict.fromkeys(of_end + of_finite))
        return [], [Target(german.prefix + finite, f"{slot}.finite", slot, deciders, agrees)]
    if last:
        ending = [Target(end, f"{slot}.end", slot, of_end)] if end else []
        agrees += (f"{slot}.end",) if end else ()
        return [], [*ending, Target(finite, f"{slot}.finite", slot, of_finite, agrees)]
    ending = [Target(end, f"{slot}.end", slot, of_end, (f"{slot}.finite",))] if end else []
    return [Target(finite, f"{slot}.finite", slot, of_finite, agrees)], ending


def _relative(phrase: NounPhrase, slot: str, governor: Governor) -> tuple[list[Source], list[Target]]:
    """Render a relative clause: "who helped the lawyers", "whom the lawyers helped", "that the lawyers saw".

    governor: the governor of the antecedent.
    """
    relative = phrase.relative
    assert relative is not None
    slot, noun_slot = f"{slot}.relative", f"{slot}.noun"
    verb_slot = f"{slot}.verb"
    forms = FORMS["relative"]

    def pronoun(antecedent: NounPhrase, domain: str, verb: EnglishVerb) -> str:
        gender = "p" if antecedent.plural else antecedent.noun.sense(domain).gender
        return forms[gender][NOMINATIVE if relative.active else verb.case]

    text = pronoun(phrase, governor.domain, relative.verb)
    deciders = list[str]()
    if any(pronoun(other, governor.domain, relative.verb) != text for other in other_nouns(phrase)):
        deciders.append(noun_slot)
    deciders += [who for who, domain, _ in governor.others if pronoun(phrase, domain, relative.verb) != text]
    earlier = (noun_slot,) if deciders else ()
    if any(pronoun(phrase, governor.domain, other) != text for other in beside(relative.verb)):
        deciders.append(verb_slot)
    de_pronoun = Target(text, f"{slot}.pronoun", f"{slot}.pronoun", tuple(dict.fromkeys(deciders)), earlier)
    cases = {other.case for other in beside(relative.verb)}
    of_other = Governor("", NOMINATIVE)
    if relative.active:
        of_other = Governor("", relative.verb.case, tuple((verb_slot, "", case) for case in sorted(cases)))
    en_other, de_other = _noun_phrase(relative.other, f"{slot}.other", of_other)
    actor, actor_slot = (phrase, noun_slot) if relative.active else (relative.other, f"{slot}.other.noun")
    counts = _counts(actor, actor_slot, relative.tense)
    german = _german_verb(relative.verb, verb_slot, relative.tense, actor.plural, counts)
    _, end = _verb_words(german, verb_slot, True, counts)
    who = Source("that" if not phrase.of_person else "who" if relative.active else "whom", f"{slot}.pronoun")
    verb = Source(_english_verb(relative.verb, relative.tense, actor.plural), verb_slot)
    source = [who, verb, *en_other] if relative.active else [who, *en_other, verb]
    comma = Target(",", "")
    return source, [comma, de_pronoun, *de_other, *end, comma]


def _counts(phrase: NounPhrase, slot: str, tense: str) -> str:
    """Return the slot of a verb's subject if no other English word shows the number, else ""."""
    return slot if tense != "present" and phrase.determiner == "the" else ""


def _governor_of(sentence: Sentence, name: str) -> Governor:
    """Return the governor of the object of a clause. name: "first" or "second"."""
    clause: Clause = at(sentence, name)
    assert clause.verb is not None
    return _governor(clause.verb, f"{name}.verb", f"{name}.particle")


def _pronoun(sentence: Sentence, phrase: Pronoun, slot: str, case: int) -> tuple[Source, Target]:
    """Render a pronoun. English shows the antecedent's sex or number; German shows its grammatical gender."""
    taken: NounPhrase = at(sentence, phrase.antecedent)
    forms, deciders = FORMS["pronouns"], list[str]()
    if taken.of_person:
        noun = taken.noun.sense("")
    else:
        governor = _governor_of(sentence, "first")
        noun = taken.noun.sense(governor.domain)
        genders = {other.sense(governor.domain).gender for other in like(taken.noun)}
        if not taken.plural and any(forms[gender][case] != forms[noun.gender][case] for gender in genders):
            deciders.append(f"{phrase.antecedent}.noun")
        for who, domain, _ in governor.others:
            if not taken.plural and forms[taken.noun.sense(domain).gender][case] != forms[noun.gender][case]:
                deciders.append(who)
    en = "they" if taken.plural else noun.pronoun
    gender = "p" if taken.plural else noun.gender
    earlier = (f"{phrase.antecedent}.noun",) if deciders and not sentence.german_fronted else ()
    text = en if case == NOMINATIVE else _OBJECT_PRONOUNS[en]
    return Source(text, slot), Target(forms[gender][case], slot, slot, tuple(dict.fromkeys(deciders)), earlier)


def _clause(sentence: Sentence, name: str, order: str) -> tuple[list[Source], list[Target]]:
    """Render a clause. name: "first" or "second".

    order: the position of the German verb: "main" (second), "inverted" (before the subject) or "last".
    """
    clause: Clause = at(sentence, name)
    if clause.predicate is not None:
        return _predicate(sentence, name)
    subject, subject_slot = antecedent(sentence, clause.subject, f"{name}.subject")
    if isinstance(clause.subject, Pronoun):
        en_word, de_word = _pronoun(sentence, clause.subject, f"{name}.subject", NOMINATIVE)
        en_subject, de_subject = [en_word], [de_word]
        counts = _counts(subject, f"{name}.subject", clause.tense)
    else:
        en_subject, de_subject = _full_phrase(clause.subject, subject_slot, Governor("", NOMINATIVE))
        counts = _counts(clause.subject, f"{subject_slot}.noun", clause.tense)
    verb, slot = clause.verb, f"{name}.verb"
    assert verb is not None and clause.object is not None
    if isinstance(clause.object, Pronoun):
        en_word, de_word = _pronoun(sentence, clause.object, f"{name}.object", verb.case)
        en_object, de_object = [en_word], [de_word]
    else:
        en_object, de_object = _full_phrase(clause.object, f"{name}.object", _governor_of(sentence, name))
    german = _german_verb(verb, name, clause.tense, subject.plural, counts)
    # The singular pronoun "sie" has the same form as the plural, so it does not show the number.
    same = isinstance(clause.subject, Pronoun) and de_subject[0].text == "sie" and not subject.plural
    agrees = "" if order == "inverted" or same else counts
    finite, end = _verb_words(german, slot, order == "last", agrees)
    en_front, en_place, de_place = _adjuncts(clause, name)
    en_often, de_often = _frequency(clause, name)
    source = [
        *en_front,
        *en_subject,
        *en_often,
        Source(_english_verb(verb, clause.tense, subject.plural), slot),
        *en_object,
    ]
    rest = [*de_object, *de_often] if isinstance(clause.object, Pronoun) else [*de_often, *de_object]
    front = {"main": [*de_subject, *finite], "inverted": [*finite, *de_subject], "last": de_subject}[order]
    return [*source, *_particle(verb, name), *en_place], [*front, *rest, *de_place, *end]


def _predicate(sentence: Sentence, name: str) -> tuple[list[Source], list[Target]]:
    """Render a subordinate clause with a predicate, such as "it was bright"."""
    clause: Clause = at(sentence, name)
    assert isinstance(clause.subject, Pronoun) and clause.predicate is not None
    taken: NounPhrase = at(sentence, clause.subject.antecedent)
    governor = _governor_of(sentence, "first")
    en_word, de_word = _pronoun(sentence, clause.subject, f"{name}.subject", NOMINATIVE)
    en, de = _BE[clause.tense][taken.plural]
    here, text = f"{name}.predicate", clause.predicate.stem(taken.noun.sense(governor.domain))
    deciders = dict.fromkeys(
        who for who, domain, _ in governor.others if clause.predicate.stem(taken.noun.sense(domain)) != text
    )
    source = [en_word, Source(en, f"{name}.verb"), Source(clause.predicate.en, here)]
    return source, [
        de_word,
        Target(text, here, here, tuple(deciders)),
        Target(de, f"{name}.verb.finite", f"{name}.verb"),
    ]


def _full_phrase(phrase: NounPhrase, slot: str, governor: Governor) -> tuple[list[Source], list[Target]]:
    """Render a noun phrase with its relative clause."""
    source, target = _noun_phrase(phrase, slot, governor)
    if phrase.relative:
        en_more, de_more = _relative(phrase, slot, governor)
        return source + en_more, target + de_more
    return source, target


def _frequency(clause: Clause, name: str) -> tuple[list[Source], list[Target]]:
    if clause.frequency is None:
        return [], []
    (en, de), slot = clause.frequency, f"{name}.frequency"
    return [Source(en, slot)], [Target(de, slot, slot)]


def _adjuncts(clause: Clause, name: str) -> tuple[list[Source], list[Source], list[Target]]:
    """Render the adjuncts of a clause. Return English words before the subject, English words at the end, German words.

    English adjuncts have the order in which they were drawn. German adjuncts are sorted by the rank of the preposition.
    """
    rendered = [(_adjunct(one, f"{name}.adjuncts.{index}"), one) for index, one in enumerate(clause.adjuncts)]
    english = [source for (source, _), _ in rendered]
    front = [*english.pop(0), Source(",", "")] if clause.adjunct_first else []
    ordered = sorted(rendered, key=lambda each: each[1].preposition.rank)
    return front, [word for words in english for word in words], [word for (_, words), _ in ordered for word in words]


def _adjunct(adjunct: Adjunct, slot: str) -> tuple[list[Source], list[Target]]:
    own, slots = adjunct.preposition, (f"{slot}.adverb", f"{slot}.preposition")
    governor = _governor(own, *slots)
    en, de = _noun_phrase(adjunct.phrase, f"{slot}.phrase", governor)
    source = [Source(own.adverb, slots[0]), Source(own.preposition, slots[1])]
    return [*source, *en], [Target(own.de, slots[1], slots[1], (slots[0],)), *de]


def render(sentence: Sentence) -> Rendered:
    """Render a sentence in both languages, with the words that decide each German word."""
    before = sentence.time is not None or sentence.german_fronted
    source, target = _clause(sentence, "first", "inverted" if before else "main")
    if sentence.time:
        source.insert(0, Source(sentence.time[0], "time"))
        target.insert(0, Target(sentence.time[1], "time", "time"))
    if sentence.second is not None and sentence.joint is not None:
        en, de = _clause(sentence, "second", "last" if sentence.subordinate else "main")
        en.insert(0, Source(sentence.joint[0], "joint"))
        de.insert(0, Target(sentence.joint[1], "joint", "joint"))
        if sentence.fronted:
            source = [*en, Source(",", ""), *source]
        else:
            source = [*source, *([] if sentence.subordinate else [Source(",", "")]), *en]
        target = [*de, Target(",", ""), *target] if sentence.german_fronted else [*target, Target(",", ""), *de]
    return Rendered((*source, Source(".", "")), (*target, Target(".", "")))
