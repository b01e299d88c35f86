"""Tests of built-in clauses: tenses, agreement and the position of the verb in both languages."""

import pytest

from experiments.data.corpora import lexicon
from experiments.data.corpora.phrases import (
    NOT_A,
    THE,
    WE,
    Content,
    build,
    copula,
    noun_phrase,
    place_phrase,
    pronoun_for,
)

NOUN = {noun.singular: noun for noun in lexicon.NOUNS}
MODAL = {modal[0]: modal for modal in lexicon.MODALS}
MAN, WOMEN, DOOR = (
    noun_phrase(NOUN["man"], THE),
    noun_phrase(NOUN["woman"], THE, plural=True),
    noun_phrase(NOUN["door"], THE),
)


def verb(german_infinitive):
    """By prefix + infinitive: "aufmachen"."""
    groups = (lexicon.VERBS, lexicon.GIVING_VERBS, lexicon.PLACING_VERBS, lexicon.DATIVE_VERBS)
    (found,) = {v for group in groups for v in group if v.prefix + v.plural_de == german_infinitive}
    return found


@pytest.mark.parametrize(
    ("tense", "en", "main", "subordinate"),
    [
        ("present", "the man opens the door", "der Mann macht die Tür auf", "der Mann die Tür aufmacht"),
        ("past", "the man opened the door", "der Mann hat die Tür aufgemacht", "der Mann die Tür aufgemacht hat"),
        ("future", "the man will open the door", "der Mann wird die Tür aufmachen", "der Mann die Tür aufmachen wird"),
        (MODAL["can"], "the man can open the door",
         "der Mann kann die Tür aufmachen", "der Mann die Tür aufmachen kann"),
    ],
)  # fmt: skip
def test_a_separable_verb_in_every_tense(tense, en, main, subordinate):
    made = build(Content(MAN, verb("aufmachen"), tense, direct=DOOR))
    assert (made.english(), made.main(), made.subordinate()) == (en, main, subordinate)


def test_the_verb_agrees_with_its_subject_and_movement_takes_sein():
    present, past = build(Content(WOMEN, verb("laufen"))), build(Content(WOMEN, verb("laufen"), "past"))
    assert (present.english(), present.main()) == ("the women run", "die Frauen laufen")
    assert (past.english(), past.main()) == ("the women ran", "die Frauen sind gelaufen")
    assert build(Content(WE, verb("laufen"))).main() == "wir laufen"


def test_negation_needs_do_in_english_and_nicht_or_kein_in_german():
    definite = build(Content(MAN, verb("sehen"), direct=DOOR, negated=True))
    kein = build(Content(MAN, verb("sehen"), direct=noun_phrase(NOUN["dog"], NOT_A), negated=True))
    assert (definite.english(), definite.main()) == ("the man does not see the door", "der Mann sieht die Tür nicht")
    assert (kein.english(), kein.main()) == ("the man does not see a dog", "der Mann sieht keinen Hund")


def test_must_not_is_darf_nicht():
    made = build(Content(MAN, verb("sehen"), MODAL["must"], direct=DOOR, negated=True))
    assert (made.english(), made.main()) == ("the man must not see the door", "der Mann darf die Tür nicht sehen")
    assert build(Content(MAN, verb("sehen"), MODAL["must"], direct=DOOR)).main() == "der Mann muss die Tür sehen"


def test_a_question_puts_the_verb_first():
    made = build(Content(WOMEN, verb("aufmachen"), "past", direct=DOOR, question=True))
    assert made.english_question() == "did the women open the door"
    assert made.inverted() == "haben die Frauen die Tür aufgemacht"


def test_a_pronoun_comes_before_time_and_dative_before_accusative():
    today = ("today", "heute")
    short = build(Content(MAN, verb("sehen"), direct=pronoun_for(DOOR), time=today))
    full = build(Content(MAN, verb("geben"), direct=DOOR, indirect=WOMEN, time=today))
    assert (short.english(), short.main()) == ("the man sees it today", "der Mann sieht sie heute")
    assert (full.english(), full.main()) == (
        "the man gives the women the door today",
        "der Mann gibt heute den Frauen die Tür",
    )


def test_some_verbs_take_the_dative():
    assert build(Content(MAN, verb("helfen"), indirect=WOMEN)).main() == "der Mann hilft den Frauen"


def test_a_place_is_dative_and_a_direction_accusative():
    garden, house = noun_phrase(NOUN["garden"], THE), noun_phrase(NOUN["house"], THE)
    assert place_phrase(("in", "in"), garden) == ("in the garden", "im Garten")
    assert place_phrase(("in", "in"), garden, towards=True) == ("into the garden", "in den Garten")
    assert place_phrase(("in", "in"), house, towards=True) == ("into the house", "ins Haus")
    assert place_phrase(("behind", "hinter"), house, towards=True) == ("behind the house", "hinter das Haus")


def test_being_something():
    future = copula(WOMEN, ("old", "alt"), "future", True, None)
    past = copula(MAN, ("old", "alt"), "past", False, None)
    assert (future.english(), future.main()) == ("the women will not be old", "die Frauen werden nicht alt sein")
    assert future.subordinate() == "die Frauen nicht alt sein werden"
    assert (past.english_question(), past.inverted()) == ("was the man old", "war der Mann alt")
