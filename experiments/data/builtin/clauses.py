"""Clauses in both languages: agreement, tenses, do-support, verb-second and verb-final order, separable verbs.

A Clause holds its pieces in the order each language needs; `english`, `main`, `subordinate` and `question` read
them off. German: the finite verb stands second in a main clause and last in a subordinate one; participle, infinitive
or separated prefix end the main clause.
"""

from typing import NamedTuple

from experiments.data.builtin.lexicon import INTO, NOT_MODALS, Verb
from experiments.data.builtin.phrases import ACCUSATIVE, DATIVE, NOMINATIVE, Phrase

Words = tuple[str, str]  # English, German
_BE: dict[str, tuple[Words, Words]] = {  # singular, plural
    "present": (("is", "ist"), ("are", "sind")),
    "past": (("was", "war"), ("were", "waren")),
    "future": (("will", "wird"), ("will", "werden")),
}
_CONTRACTIONS = {"in dem": "im", "in das": "ins"}


class Content(NamedTuple):
    """What a clause says. `tense` is present, past, future, or one of lexicon.MODALS."""

    subject: Phrase
    verb: Verb
    tense: str | tuple[str, str, str] = "present"
    direct: Phrase | None = None
    indirect: Phrase | None = None
    place: Words | None = None
    time: Words | None = None
    frequency: Words | None = None
    negated: bool = False
    question: bool = False


class Clause(NamedTuple):
    subject_en: str
    auxiliary_en: str  # "" if the verb stands alone
    predicate_en: str
    subject_de: str
    finite: str
    pronouns: str  # objects that come before everything else
    middle: str
    end: str  # prefix, participle or infinitive; "" if none
    final: str  # end and finite verb as they close a subordinate clause
    time: Words | None  # placed by whoever reads the clause: in front or inside

    def english(self) -> str:
        return _join(self.subject_en, self.auxiliary_en, self.predicate_en, self.time[0] if self.time else "")

    def english_question(self) -> str:
        return _join(self.auxiliary_en, self.subject_en, self.predicate_en, self.time[0] if self.time else "")

    def main(self) -> str:
        return _join(self.subject_de, self.finite, self.pronouns, self._time(), self.middle, self.end)

    def inverted(self) -> str:
        """A main clause after something in front of its verb; also a question."""
        return _join(self.finite, self.subject_de, self.pronouns, self._time(), self.middle, self.end)

    def subordinate(self) -> str:
        return _join(self.subject_de, self.pronouns, self._time(), self.middle, self.final)

    def _time(self) -> str:
        return self.time[1] if self.time else ""


def _join(*parts: str) -> str:
    return " ".join([part for part in parts if part])


def place_phrase(preposition: Words, phrase: Phrase, towards: bool = False) -> Words:
    """Where (dative) or where to (accusative), with the contractions of spoken German."""
    en, de = preposition
    en = INTO.get(en, en) if towards else en
    words = f"{de} {phrase.de[ACCUSATIVE if towards else DATIVE]}"
    for long, short in _CONTRACTIONS.items():
        if words.startswith(f"{long} "):
            words = short + words[len(long) :]
    return f"{en} {phrase.en_object}", words


def build(content: Content) -> Clause:
    """The clause in both languages."""
    auxiliary, verb_en = _english_verb(content)
    finite, end, final = _german_verb(content)
    direct, indirect = content.direct, content.indirect
    objects_en = _join(indirect.en_object if indirect else "", direct.en_object if direct else "")
    pronouns, objects = _german_objects(content)
    frequency = content.frequency or ("", "")
    place = content.place or ("", "")
    nicht = "nicht" if content.negated and not (direct and direct.negative) else ""
    return Clause(
        subject_en=content.subject.en,
        auxiliary_en=auxiliary,
        predicate_en=_join(frequency[0], verb_en, objects_en, place[0]),
        subject_de=content.subject.de[NOMINATIVE],
        finite=finite,
        pronouns=pronouns,
        middle=_join(frequency[1], objects, nicht, place[1]),
        end=end,
        final=final,
        time=content.time,
    )


def copula(subject: Phrase, adjective: Words, tense: str, negated: bool, time: Words | None) -> Clause:
    """Subject is adjective; tense is present, past or future."""
    auxiliary, finite = _BE[tense][1 if subject.plural else 0]
    be, end = ("be", "sein") if tense == "future" else ("", "")
    return Clause(
        subject_en=subject.en,
        auxiliary_en=f"{auxiliary} not" if negated else auxiliary,
        predicate_en=_join(be, adjective[0]),
        subject_de=subject.de[NOMINATIVE],
        finite=finite,
        pronouns="",
        middle=_join("nicht" if negated else "", adjective[1]),
        end=end,
        final=_join(end, finite),
        time=time,
    )


def _german_objects(content: Content) -> tuple[str, str]:
    """Pronouns, which come first, and full objects: dative before accusative."""
    pronouns, full = "", ""
    for phrase, case in ((content.indirect, DATIVE), (content.direct, ACCUSATIVE)):
        if phrase and phrase.is_pronoun:
            pronouns = _join(pronouns, phrase.de[case])
        elif phrase:
            full = _join(full, phrase.de[case])
    return pronouns, full


def _english_verb(content: Content) -> Words:
    verb, plural, tense = content.verb, content.subject.plural, content.tense
    if not isinstance(tense, str):
        auxiliary = tense[0]
    elif tense == "future":
        auxiliary = "will"
    elif content.negated or content.question:
        auxiliary = "did" if tense == "past" else "do" if plural else "does"
    elif tense == "past":
        return "", verb.past
    else:
        return "", verb.base if plural else verb.third
    if content.negated:
        auxiliary = "cannot" if auxiliary == "can" else f"{auxiliary} not"
    return auxiliary, verb.base


def _german_verb(content: Content) -> tuple[str, str, str]:
    """Finite verb, what ends the main clause, what ends the subordinate clause."""
    verb, plural, tense = content.verb, content.subject.plural, content.tense
    if tense == "present":
        finite = verb.plural_de if plural else verb.singular_de
        return finite, verb.prefix, verb.prefix + finite
    if tense == "past":
        have = ("haben", "hat") if verb.auxiliary == "haben" else ("sind", "ist")
        finite, end = have[0 if plural else 1], verb.participle
    else:
        finite, end = _modal(content), verb.prefix + verb.plural_de
    return finite, end, f"{end} {finite}"


def _modal(content: Content) -> str:
    plural, tense = content.subject.plural, content.tense
    if tense == "future":
        return "werden" if plural else "wird"
    forms = NOT_MODALS.get(tense[0], tense[1:]) if content.negated else tense[1:]
    return forms[1 if plural else 0]
