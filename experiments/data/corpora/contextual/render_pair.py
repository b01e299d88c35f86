"""Write a sentence in English and German, and state what decides each German word.

`render` states for each German word which English words decide it besides the one that it translates (its sense,
gender, number or case), and which earlier German words it agrees with or forms one verb with.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from experiments.data.corpora.contextual.choices import Clause, NounPhrase, Place, Pronoun, Sentence, antecedent, at
from experiments.data.corpora.contextual.entries import (
    DETERMINERS,
    NUMBERS,
    PERSONS,
    EnglishVerb,
    Entry,
    candidates,
)
from experiments.data.corpora.contextual.rendered import Rendered, Source, Target
from experiments.data.corpora.lexicon import FORMS, Noun, Verb
from experiments.data.corpora.phrases import ACCUSATIVE, DATIVE, NOMINATIVE, THE, A, noun_forms

_OBJECT_PRONOUNS = {"he": "him", "she": "her", "it": "it", "they": "them"}
_BE = {"present": (("is", "ist"), ("are", "sind")), "past": (("was", "war"), ("were", "waren"))}
_PASSIVE = {  # singular and plural: English, German finite verb
    "present": (("is", "wird"), ("are", "werden")),
    "past": (("was", "wurde"), ("were", "wurden")),
    "future": (("will be", "wird"), ("will be", "werden")),
}


def _differ(forms: Iterator[str]) -> bool:
    """Return whether not all forms are equal, so that what chooses among them decides the word."""
    return len(set(forms)) > 1


class _Sense(NamedTuple):
    """The domain in a clause, and the slot of the noun that has it."""

    domain: str
    slot: str


def _sense_at(sentence: Sentence, clause: str) -> _Sense:
    """The sense of a clause: that of its subject's noun, or of the noun that its pronoun takes up.

    clause: "first" or "second".
    """
    phrase, slot = antecedent(sentence, at(sentence, f"{clause}.subject"), f"{clause}.subject")
    return _Sense(phrase.noun.outdoors.classes, f"{slot}.noun")


@cache
def _genders(nouns: tuple[Entry, ...], domain: str, determiner: str, plural: bool) -> tuple[str, ...]:
    """German genders that a noun in this place may have under the same determiner; p: plural."""
    singular = {entry.sense(domain).gender for entry in nouns}
    if determiner == "the":
        return tuple(sorted(singular | {"p"}))
    return ("p",) if plural else tuple(sorted(singular))


class _Phrase(NamedTuple):
    """How a noun phrase stands in its clause."""

    phrase: NounPhrase
    slot: str
    case: int
    nouns: tuple[Entry, ...]  # that may stand here
    sense: _Sense
    verb: str = ""  # slot of the verb that decides the case, if another verb could govern another one

    @property
    def noun(self) -> Noun:
        return self.phrase.noun.sense(self.sense.domain)

    @property
    def gender(self) -> str:
        return "p" if self.phrase.plural else self.noun.gender

    def others(self) -> Iterator[tuple[str, str, int]]:
        """Slots that decide the form, each with the gender and case that another choice there could give."""
        phrase = self.phrase
        for gender in _genders(self.nouns, self.sense.domain, phrase.determiner, phrase.plural):
            yield f"{self.slot}.noun", gender, self.case
        if phrase.noun.homonym and not phrase.plural:
            for noun in phrase.noun:
                yield self.sense.slot, noun.gender, self.case
        if self.verb:
            for case in (ACCUSATIVE, DATIVE):
                yield self.verb, self.gender, case

    def deciders(self, forms: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
        """Slots that decide a word with these forms, by gender and case: of the noun, a homonym's decider, the verb."""
        here = forms[self.gender][self.case]
        return tuple(dict.fromkeys(slot for slot, gender, case in self.others() if forms[gender][case] != here))


def _noun_phrase(one: _Phrase) -> tuple[list[Source], list[Target]]:
    """Without its relative clause."""
    phrase, slot, noun, case = one.phrase, one.slot, one.noun, one.case
    determiner, english = DETERMINERS[phrase.determiner], phrase.noun.outdoors
    words = english.plural if phrase.plural else english.singular
    article = determiner.en_plural if phrase.plural else determiner.en_singular
    if article == "a" and (phrase.adjective[0] if phrase.adjective else words)[0] in "aeiou":
        article = "an"
    source = [Source(article, f"{slot}.determiner")]
    forms = determiner.forms
    deciders = () if phrase.determiner in NUMBERS else one.deciders(forms)
    target = [Target(forms[one.gender][case], f"{slot}.determiner", f"{slot}.determiner", deciders)]
    if phrase.adjective:
        source.append(Source(phrase.adjective[0], f"{slot}.adjective"))
        stem, endings = phrase.adjective[1], determiner.adjective
        others = (THE, *NUMBERS.values()) if phrase.plural else (THE, A)
        decided, ending = one.deciders(endings), endings[one.gender][case]
        agrees = any(other.adjective[one.gender][case] != ending for other in others)
        if agrees:
            decided += (f"{slot}.determiner",)
        both = ((forms[gender][other], endings[gender][other]) for _, gender, other in one.others())
        agrees = agrees or any(form != forms[one.gender][case] and other != ending for form, other in both)
        earlier = (f"{slot}.determiner",) if agrees else ()
        text = stem + ending
        target.append(Target(text, f"{slot}.adjective", f"{slot}.adjective", decided, earlier))
    source.append(Source(words, f"{slot}.noun"))
    decided = (one.sense.slot,) * phrase.noun.homonym
    forms_of = noun_forms(noun, phrase.plural)
    if one.verb and forms_of[ACCUSATIVE] != forms_of[DATIVE]:
        decided += (one.verb,)
    target.append(Target(forms_of[case], f"{slot}.noun", f"{slot}.noun", decided))
    return source, target


class _GermanVerb(NamedTuple):
    """The German words of a verb: the finite one, and what stands at the end of the clause."""

    finite: tuple[str, tuple[str, ...]]  # text, deciders
    end: tuple[str, tuple[str, ...]]
    prefix: str  # joins the finite verb at the end of a subordinate clause


def _german_verb(
    verb: EnglishVerb, noun_class: str, tense: str, plural: bool, decides: str, counts: str
) -> _GermanVerb:
    """decides: slot of the object if it decides the sense. counts: slot of the subject if only it shows the number."""

    def forms(one: Verb, many: bool) -> tuple[str, str, str]:
        if tense == "present":
            return one.plural_de if many else one.singular_de, one.prefix, one.prefix
        if tense == "future":
            return "werden" if many else "wird", one.prefix + one.plural_de, ""
        have = ("haben", "hat") if one.auxiliary == "haben" else ("sind", "ist")
        return have[0 if many else 1], one.participle, ""

    chosen = verb.sense(noun_class)
    texts = forms(chosen, plural)
    found = []
    for index in (0, 1):
        deciders: tuple[str, ...] = ()
        if decides and _differ(forms(each, plural)[index] for each in verb.senses):
            deciders += (decides,)
        if counts and _differ(forms(chosen, many)[index] for many in (False, True)):
            deciders += (counts,)
        found.append((texts[index], deciders))
    return _GermanVerb(found[0], found[1], texts[2])


def _english_verb(verb: EnglishVerb, tense: str, plural: bool) -> str:
    first = verb.senses[0]
    if tense == "future":
        return f"will {first.base}"
    if tense == "past":
        return first.past
    return first.base if plural else first.third


def _verb_words(german: _GermanVerb, slot: str, last: bool, subject: str) -> tuple[list[Target], list[Target]]:
    """The finite verb where it stands second or first, and what ends the clause; `last`: the finite verb does, too.

    subject: name of the subject if it stands before the finite verb and its form shows the number, or "".
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


def _relative(antecedent: _Phrase) -> tuple[list[Source], list[Target]]:
    """ "who helped the lawyers", "whom the lawyers helped", with commas in German."""
    relative, slot = antecedent.phrase.relative, f"{antecedent.slot}.relative"
    assert relative is not None
    verb_slot, noun_slot = f"{slot}.verb", f"{antecedent.slot}.noun"
    case = NOMINATIVE if relative.active else relative.verb.case
    forms = FORMS["relative"]
    genders = _genders(PERSONS, "n", antecedent.phrase.determiner, antecedent.phrase.plural)
    earlier = (noun_slot,) if _differ(forms[gender][case] for gender in genders) else ()
    deciders: tuple[str, ...] = earlier
    if not relative.active:
        deciders += (verb_slot,)
    pronoun = Target(forms[antecedent.gender][case], f"{slot}.pronoun", f"{slot}.pronoun", deciders, earlier)
    case = relative.verb.case if relative.active else NOMINATIVE
    other = _Phrase(
        relative.other, f"{slot}.other", case, PERSONS, antecedent.sense, verb_slot if relative.active else ""
    )
    en_other, de_other = _noun_phrase(other)
    actor = antecedent if relative.active else other
    counts = _counts(actor.phrase, f"{actor.slot}.noun", relative.tense)
    german = _german_verb(relative.verb, "", relative.tense, actor.phrase.plural, "", counts)
    _, end = _verb_words(german, verb_slot, True, counts)
    finite = _english_verb(relative.verb, relative.tense, actor.phrase.plural)
    who = Source("who" if relative.active else "whom", f"{slot}.pronoun")
    verb = Source(finite, verb_slot)
    source = [who, verb, *en_other] if relative.active else [who, *en_other, verb]
    comma = Target(",", "")
    return source, [comma, pronoun, *de_other, *end, comma]


def _counts(phrase: NounPhrase, slot: str, tense: str) -> str:
    """The slot of a verb's subject if no other English word shows the number, or ""."""
    return slot if tense != "present" and phrase.determiner == "the" else ""


def _pronoun(sentence: Sentence, phrase: Pronoun, slot: str, case: int) -> tuple[Source, Target]:
    """A pronoun: English by sex or number, German by the gender of the noun that it takes up."""
    taken: NounPhrase = at(sentence, phrase.antecedent)
    sense = _sense_at(sentence, "first")
    noun = taken.noun.sense(sense.domain)
    en = "they" if taken.plural else noun.pronoun
    forms, gender = FORMS["pronouns"], "p" if taken.plural else noun.gender
    deciders: tuple[str, ...] = ()
    if en == "it":
        verb = sentence.first.verb
        nouns = candidates(verb, False)
        if _differ(forms[entry.sense(sense.domain).gender][case] for entry in nouns):
            deciders = (f"{phrase.antecedent}.noun",)
        if taken.noun.homonym and _differ(forms[each.gender][case] for each in taken.noun):
            deciders += (sense.slot,)
    earlier = (f"{phrase.antecedent}.noun",) if deciders else ()
    text = en if case == NOMINATIVE else _OBJECT_PRONOUNS[en]
    return Source(text, slot), Target(forms[gender][case], slot, slot, deciders, earlier)


def _clause(sentence: Sentence, name: str, order: str) -> tuple[list[Source], list[Target]]:
    """A clause, "first" or "second"; its German order is "main", "inverted" (something stands before) or "last"."""
    clause: Clause = at(sentence, name)
    if clause.passive:
        return _passive(sentence, name, order)
    sense = _sense_at(sentence, name)
    subject, subject_slot = antecedent(sentence, clause.subject, f"{name}.subject")
    if isinstance(clause.subject, Pronoun):
        en_word, de_word = _pronoun(sentence, clause.subject, f"{name}.subject", NOMINATIVE)
        en_subject, de_subject = [en_word], [de_word]
        counts = _counts(subject, f"{name}.subject", clause.tense)
    else:
        en_subject, de_subject = _person_phrase(clause.subject, subject_slot, NOMINATIVE, sense)
        counts = _counts(clause.subject, f"{subject_slot}.noun", clause.tense)
    slot = f"{name}.verb"
    if clause.predicate is not None:
        en, de = _BE[clause.tense][subject.plural]
        source = [*en_subject, Source(en, slot), Source(clause.predicate[0], f"{name}.predicate")]
        predicate = Target(clause.predicate[1], f"{name}.predicate", f"{name}.predicate")
        return source, [*de_subject, predicate, Target(de, f"{slot}.finite", slot)]
    verb = clause.verb
    assert verb is not None and clause.object is not None
    en_object, de_object, noun_class = _object(sentence, name, sense, verb.case)
    decides = f"{name}.object.noun" if len(verb.senses) > 1 else ""
    german = _german_verb(verb, noun_class, clause.tense, subject.plural, decides, counts)
    same = isinstance(clause.subject, Pronoun) and de_subject[0].text == "sie" and not subject.plural  # as the plural
    agrees = "" if order == "inverted" or same else counts
    finite, end = _verb_words(german, slot, order == "last", agrees)
    en_place, de_place = _place(clause.place, f"{name}.place", sense)
    en_often, de_often = _frequency(clause, name)
    source = [*en_subject, *en_often, Source(_english_verb(verb, clause.tense, subject.plural), slot)]
    rest = [*de_object, *de_often] if isinstance(clause.object, Pronoun) else [*de_often, *de_object]
    front = {"main": [*de_subject, *finite], "inverted": [*finite, *de_subject], "last": de_subject}[order]
    return [*source, *en_object, *en_place], [*front, *rest, *de_place, *end]


def _passive(sentence: Sentence, name: str, order: str) -> tuple[list[Source], list[Target]]:
    """ "The bank beside the house was sold by the lawyer."; its order is "main" or "inverted"."""
    clause: Clause = at(sentence, name)
    verb, slot, agent = clause.verb, f"{name}.verb", f"{name}.agent"
    assert verb is not None and isinstance(clause.object, NounPhrase) and isinstance(clause.subject, NounPhrase)
    sense = _sense_at(sentence, name)
    en_object, de_object, noun_class = _object(sentence, name, sense, NOMINATIVE)
    en_place, de_place = _place(clause.place, f"{name}.place", sense)
    en_often, de_often = _frequency(clause, name)
    en_subject, de_subject = _person_phrase(clause.subject, f"{name}.subject", DATIVE, sense)
    be, finite = _PASSIVE[clause.tense][clause.object.plural]
    decides = (f"{name}.object.noun",) if _differ(one.participle for one in verb.senses) else ()
    end = [Target(verb.sense(noun_class).participle, f"{slot}.end", slot, decides)]
    if clause.tense == "future":
        end.append(Target("werden", f"{slot}.infinitive", f"{slot}.be", (), (f"{slot}.finite",)))
    source = [*en_object, *en_place, Source(be, f"{slot}.be"), *en_often, Source(verb.participle, slot)]
    source += [Source("by", agent), *en_subject]
    verb_first = Target(finite, f"{slot}.finite", f"{slot}.be")
    front = [*de_object, *de_place]
    target = [verb_first, *front] if order == "inverted" else [*front, verb_first]
    return source, [*target, *de_often, Target("von", agent, agent), *de_subject, *end]


def _person_phrase(phrase: NounPhrase, slot: str, case: int, sense: _Sense) -> tuple[list[Source], list[Target]]:
    """A person who acts, with the relative clause."""
    place = _Phrase(phrase, slot, case, PERSONS, sense)
    source, target = _noun_phrase(place)
    if phrase.relative:
        en_more, de_more = _relative(place)
        return source + en_more, target + de_more
    return source, target


def _object(sentence: Sentence, name: str, sense: _Sense, case: int) -> tuple[list[Source], list[Target], str]:
    """The object of a clause, and the class of its noun."""
    clause: Clause = at(sentence, name)
    slot, verb = f"{name}.object", clause.verb
    assert verb is not None
    if isinstance(clause.object, Pronoun):
        en_word, de_word = _pronoun(sentence, clause.object, slot, case)
        return [en_word], [de_word], ""
    assert clause.object is not None
    governs = f"{name}.verb" if verb.of_persons else ""
    nouns = candidates(verb, verb.of_persons)
    en, de = _noun_phrase(_Phrase(clause.object, slot, case, nouns, sense, governs))
    return en, de, clause.object.noun.sense(sense.domain).classes


def _frequency(clause: Clause, name: str) -> tuple[list[Source], list[Target]]:
    if clause.frequency is None:
        return [], []
    (en, de), slot = clause.frequency, f"{name}.frequency"
    return [Source(en, slot)], [Target(de, slot, slot)]


def _place(place: Place | None, slot: str, sense: _Sense) -> tuple[list[Source], list[Target]]:
    if place is None:
        return [], []
    en, de = _noun_phrase(_Phrase(place.phrase, f"{slot}.phrase", DATIVE, candidates(None, False), sense))
    preposition = f"{slot}.preposition"
    return [Source(place.preposition[0], preposition), *en], [
        Target(place.preposition[1], preposition, preposition),
        *de,
    ]


def render(sentence: Sentence) -> Rendered:
    """The sentence in both languages, with what decides its German words."""
    before = sentence.time is not None or sentence.fronted
    source, target = _clause(sentence, "first", "inverted" if before else "main")
    if sentence.time:
        source.insert(0, Source(sentence.time[0], "time"))
        target.insert(0, Target(sentence.time[1], "time", "time"))
    if sentence.second is not None and sentence.joint is not None:
        en, de = _clause(sentence, "second", "last" if sentence.subordinate else "main")
        en.insert(0, Source(sentence.joint[0], "joint"))
        de.insert(0, Target(sentence.joint[1], "joint", "joint"))
        if sentence.fronted:
            source, target = [*en, Source(",", ""), *source], [*de, Target(",", ""), *target]
        else:
            comma = [] if sentence.subordinate else [Source(",", "")]
            source, target = [*source, *comma, *en], [*target, Target(",", ""), *de]
    return Rendered((*source, Source(".", "")), (*target, Target(".", "")))
