"""Build noun phrases and clauses in English and German.

Cases are indices in this order: nominative, accusative, dative, genitive. The German gender of a phrase is m, f, n, or
p for every plural, because German plurals have the same forms for all genders.
"""

from typing import NamedTuple

from experiments.data.corpora.lexicon import FORMS, INTO, NOT_MODALS, Noun, Verb

NOMINATIVE, ACCUSATIVE, DATIVE, GENITIVE = range(4)
Forms = tuple[str, str, str, str]


class Phrase(NamedTuple):
    """A noun phrase or pronoun in English and German."""

    en: str  # English words as a subject
    en_object: str  # English words as an object
    de: Forms  # German words in the four cases
    gender: str  # German gender: m, f, n, p
    pronoun: str  # the English pronoun that refers to the phrase: he, she, it, they, we
    letter: str  # main class of the noun: h, a, t, p
    is_pronoun: bool = False
    negative: bool = False  # whether the determiner is "kein", so that a negated clause needs no "nicht"

    @property
    def plural(self) -> bool:
        return self.gender == "p"

    def extended(self, en: str, de: str) -> "Phrase":
        """Return the phrase followed by other words, such as a relative clause, in English and in all German cases."""
        nominative, accusative, dative, genitive = (f"{form} {de}" for form in self.de)
        return self._replace(
            en=f"{self.en} {en}",
            en_object=f"{self.en_object} {en}",
            de=(nominative, accusative, dative, genitive),
        )


class Determiner(NamedTuple):
    """A determiner in English and German."""

    en_singular: str
    en_plural: str
    forms: dict[str, Forms]  # German forms by gender
    adjective: dict[str, Forms]  # endings of a following adjective, by gender
    negative: bool = False


_DIES_ENDINGS, _EIN_ENDINGS = FORMS["dies_endings"], FORMS["ein_endings"]
_WEAK, _MIXED, _STRONG = FORMS["weak"], FORMS["mixed"], FORMS["strong"]  # endings of adjectives
_PRONOUNS = FORMS["pronouns"]  # by gender of the antecedent
_EN_NAMED = {"m": "he", "f": "she"}
_EN_OBJECT = {"he": "him", "she": "her", "it": "it", "they": "them", "we": "us"}
_EN_POSSESSIVE = {"he": "his", "she": "her", "it": "its", "they": "their", "we": "our"}
_DE_POSSESSIVE = {"m": "sein", "n": "sein", "f": "ihr", "p": "ihr"}
_VOWELS = frozenset("aeiou")


def _inflected(stem: str, endings: dict[str, Forms]) -> dict[str, Forms]:
    return {gender: tuple(stem + ending for ending in row) for gender, row in endings.items()}  # type: ignore[misc]


THE = Determiner("the", "the", FORMS["definite"], _WEAK)
THIS = Determiner("this", "these", _inflected("dies", _DIES_ENDINGS), _WEAK)
A = Determiner("a", "", _inflected("ein", _EIN_ENDINGS) | {"p": ("", "", "", "")}, _MIXED | {"p": _STRONG["p"]})
NOT_A = Determiner("a", "", _inflected("kein", _EIN_ENDINGS), _MIXED, negative=True)


def possessive(owner: Phrase) -> Determiner:
    """Return the possessive determiner for an owner: his, her, its, their or our.

    The German stem agrees with the owner. The German ending agrees with the possessed noun.
    """
    stem = "unser" if owner.pronoun == "we" else _DE_POSSESSIVE[owner.gender]
    return POSSESSIVES[_EN_POSSESSIVE[owner.pronoun], stem]


POSSESSIVES = {
    (en, stem): Determiner(en, en, _inflected(stem, _EIN_ENDINGS), _MIXED)
    for en in _EN_POSSESSIVE.values()
    for stem in ("sein", "ihr", "unser")
}


def number(en: str, de: str) -> Determiner:
    """Return the determiner for a number of two or more. In German, it has the same form in all cases."""
    return Determiner("", en, {"p": (de, de, de, de)}, {"p": _STRONG["p"]})


def noun_forms(noun: Noun, plural: bool) -> Forms:
    """Return a German noun in four cases.

    A masculine noun whose genitive ends in "n" is weak, which means that its oblique cases equal the genitive
    (der Junge, den Jungen).
    """
    if plural:
        dative = noun.plural_de if noun.plural_de[-1] in "ns" else noun.plural_de + "n"
        return (noun.plural_de, noun.plural_de, dative, noun.plural_de)
    if noun.gender == "m" and noun.genitive[-1] == "n":
        return (noun.nominative, noun.genitive, noun.genitive, noun.genitive)
    return (noun.nominative, noun.nominative, noun.nominative, noun.genitive)


def compound(modifier: tuple[str, str], head: Noun) -> Noun:
    """Return a compound noun: two words in English, one in German. The head determines gender and inflection."""
    en, stem = modifier
    return head._replace(
        singular=f"{en} {head.singular}",
        plural=f"{en} {head.plural}",
        nominative=stem + head.nominative.lower(),
        genitive=stem + head.genitive.lower(),
        plural_de=stem + head.plural_de.lower(),
    )


def noun_phrase(
    noun: Noun, determiner: Determiner, adjective: tuple[str, str] | None = None, plural: bool = False
) -> Phrase:
    """Return a phrase of a determiner, an adjective (English, German stem) and a noun, with agreement in German."""
    gender = "p" if plural else noun.gender
    words = f"{adjective[0]} " if adjective else ""
    words += noun.plural if plural else noun.singular
    article = determiner.en_plural if plural else determiner.en_singular
    if article == "a" and words[0] in _VOWELS:
        article = "an"
    en = f"{article} {words}" if article else words
    nouns = noun_forms(noun, plural)
    if adjective:
        stem, endings = adjective[1], determiner.adjective[gender]
        nouns = tuple(f"{stem}{endings[case]} {nouns[case]}" for case in range(4))  # type: ignore[assignment]
    forms = determiner.forms[gender]
    if forms[0]:
        nouns = tuple(f"{forms[case]} {nouns[case]}" for case in range(4))  # type: ignore[assignment]
    pronoun = "they" if plural else noun.pronoun
    return Phrase(en, en, nouns, gender, pronoun, noun.classes[0], negative=determiner.negative)


def name_phrase(en: str, de: str, gender: str, de_oblique: str = "") -> Phrase:
    """Return the phrase for a person's name. de_oblique: the German form outside the nominative, if it differs."""
    oblique = de_oblique or de
    return Phrase(en, en, (de, oblique, oblique, oblique), gender, _EN_NAMED[gender], "h")


def pair_phrase(first: Phrase, second: Phrase) -> Phrase:
    """Return a plural phrase that joins two phrases by "and"."""
    forms = tuple(f"{one} und {two}" for one, two in zip(first.de, second.de, strict=True))
    en = f"{first.en} and {second.en}"
    return Phrase(en, en, forms, "p", "they", first.letter)  # type: ignore[arg-type]


def pronoun_for(antecedent: Phrase) -> Phrase:
    """Return the pronoun for an antecedent.

    The English pronoun depends on the antecedent's sex, and the German pronoun on its grammatical gender.
    """
    if antecedent.pronoun == "we":
        return WE
    en, forms = antecedent.pronoun, _PRONOUNS[antecedent.gender]
    return Phrase(en, _EN_OBJECT[en], forms, antecedent.gender, en, antecedent.letter, is_pronoun=True)


WE = Phrase("we", "us", ("wir", "uns", "uns", "unser"), "p", "we", "h", is_pronoun=True)


def relative_pronoun(antecedent: Phrase) -> Phrase:
    """Return the relative pronoun for an antecedent: "who" or "which", and German forms for its gender and number."""
    en = "who" if antecedent.letter == "h" else "which"
    return antecedent._replace(en=en, en_object=en, de=FORMS["relative"][antecedent.gender], is_pronoun=True)


# A Clause has the words of a clause in both languages, by position. Its methods join the words in the required order.
# In German, the finite verb is in the second position of a main clause and at the end of a subordinate clause. A
# participle, infinitive or separated prefix is at the end of a main clause.


Words = tuple[str, str]  # English, German
_BE: dict[str, tuple[Words, Words]] = {  # singular, plural
    "present": (("is", "ist"), ("are", "sind")),
    "past": (("was", "war"), ("were", "waren")),
    "future": (("will", "wird"), ("will", "werden")),
}
_CONTRACTIONS = {"in dem": "im", "in das": "ins"}


class Content(NamedTuple):
    """The content of a clause. `tense` is "present", "past", "future", or one of lexicon.MODALS."""

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
    """The words of a clause in English and German, by position."""

    subject_en: str
    auxiliary_en: str  # "" if there is no auxiliary
    predicate_en: str
    subject_de: str
    finite: str  # the German finite verb; the fields below are German, too
    pronouns: str  # pronouns as objects, which come before other objects
    middle: str  # all other words between the finite verb and `end`
    end: str  # prefix, participle or infinitive; "" if none
    final: str  # the words that end a subordinate clause: `end` and the finite verb
    time: Words | None  # adverb of time inside the clause; the caller may move it to the front

    def english(self) -> str:
        """Return the English clause as a statement."""
        return _join(self.subject_en, self.auxiliary_en, self.predicate_en, self.time[0] if self.time else "")

    def english_question(self) -> str:
        """Return the English clause as a question, without a question mark."""
        return _join(self.auxiliary_en, self.subject_en, self.predicate_en, self.time[0] if self.time else "")

    def main(self) -> str:
        """Return the German main clause, which begins with the subject."""
        return _join(self.subject_de, self.finite, self.pronouns, self._time(), self.middle, self.end)

    def inverted(self) -> str:
        """Return the German clause with the verb before the subject: after an adverb or a clause, or in a question."""
        return _join(self.finite, self.subject_de, self.pronouns, self._time(), self.middle, self.end)

    def subordinate(self) -> str:
        """Return the German subordinate clause, without its conjunction."""
        return _join(self.subject_de, self.pronouns, self._time(), self.middle, self.final)

    def _time(self) -> str:
        return self.time[1] if self.time else ""


def _join(*parts: str) -> str:
    return " ".join([part for part in parts if part])


def place_phrase(preposition: Words, phrase: Phrase, towards: bool = False) -> Words:
    """Return a phrase of place (dative) or direction (accusative), with contractions such as "im"."""
    en, de = preposition
    en = INTO.get(en, en) if towards else en
    words = f"{de} {phrase.de[ACCUSATIVE if towards else DATIVE]}"
    for long, short in _CONTRACTIONS.items():
        if words.startswith(f"{long} "):
            words = short + words[len(long) :]
    return f"{en} {phrase.en_object}", words


def build(content: Content) -> Clause:
    """Return the clause with the given content, in both languages."""
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
    """Return a clause of the form "subject is adjective". tense: "present", "past" or "future"."""
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
    """Return the object pronouns and the other objects, as two texts. In each, the dative precedes the accusative."""
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
    """Return the finite verb, the end of a main clause and the end of a subordinate clause."""
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
