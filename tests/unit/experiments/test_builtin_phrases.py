"""Determiner, adjective and noun of built-in noun phrases agree as in the tables of a German grammar."""

import pytest

from experiments.data.corpora import lexicon
from experiments.data.corpora.phrases import (
    NOT_A,
    THE,
    THIS,
    WE,
    A,
    compound,
    name_phrase,
    noun_phrase,
    number,
    pair_phrase,
    possessive,
    pronoun_for,
    relative_pronoun,
)

NOUN = {noun.singular: noun for noun in lexicon.NOUNS}
OLD, YOUNG = ("old", "alt"), ("young", "jung")


@pytest.mark.parametrize(
    ("noun", "determiner", "plural", "en", "de"),
    [
        ("man", THE, False, "the old man", "der alte Mann|den alten Mann|dem alten Mann|des alten Mannes"),
        ("cat", THE, False, "the old cat", "die alte Katze|die alte Katze|der alten Katze|der alten Katze"),
        ("child", THE, False, "the old child", "das alte Kind|das alte Kind|dem alten Kind|des alten Kindes"),
        ("dog", THE, True, "the old dogs", "die alten Hunde|die alten Hunde|den alten Hunden|der alten Hunde"),
        ("man", A, False, "an old man", "ein alter Mann|einen alten Mann|einem alten Mann|eines alten Mannes"),
        ("house", A, False, "an old house", "ein altes Haus|ein altes Haus|einem alten Haus|eines alten Hauses"),
        ("lamp", A, True, "old lamps", "alte Lampen|alte Lampen|alten Lampen|alter Lampen"),
        ("table", NOT_A, False, "an old table",
         "kein alter Tisch|keinen alten Tisch|keinem alten Tisch|keines alten Tisches"),
        ("book", NOT_A, True, "old books",
         "keine alten Bücher|keine alten Bücher|keinen alten Büchern|keiner alten Bücher"),
        ("horse", THIS, False, "this old horse",
         "dieses alte Pferd|dieses alte Pferd|diesem alten Pferd|dieses alten Pferdes"),
        ("boy", THE, False, "the old boy", "der alte Junge|den alten Jungen|dem alten Jungen|des alten Jungen"),
    ],
)  # fmt: skip
def test_case_gender_number_and_determiner_decide_the_endings(noun, determiner, plural, en, de):
    made = noun_phrase(NOUN[noun], determiner, OLD, plural)
    assert (made.en, "|".join(made.de)) == (en, de)


def test_numbers_leave_the_case_to_the_adjective():
    made = noun_phrase(NOUN["dog"], number("two", "zwei"), OLD, plural=True)
    assert made.en == "two old dogs"
    assert made.de == ("zwei alte Hunde", "zwei alte Hunde", "zwei alten Hunden", "zwei alter Hunde")


def test_the_english_article_looks_at_the_next_word():
    assert noun_phrase(NOUN["apple"], A).en == "an apple"
    assert noun_phrase(NOUN["apple"], A, YOUNG).en == "a young apple"


def test_a_compound_takes_gender_and_endings_from_its_head():
    made = noun_phrase(compound(("kitchen", "Küchen"), NOUN["table"]), THE)
    assert made.en == "the kitchen table"
    assert made.de == ("der Küchentisch", "den Küchentisch", "dem Küchentisch", "des Küchentisches")


@pytest.mark.parametrize(
    ("noun", "plural", "en", "de"),
    [
        ("woman", False, "her dog", "ihren Hund"),
        ("man", False, "his dog", "seinen Hund"),
        ("cat", False, "its dog", "ihren Hund"),
        ("child", False, "its dog", "seinen Hund"),
        ("child", True, "their dog", "ihren Hund"),
    ],
)
def test_a_possessive_agrees_with_owner_and_owned(noun, plural, en, de):
    owner = noun_phrase(NOUN[noun], THE, plural=plural)
    made = noun_phrase(NOUN["dog"], possessive(owner))
    assert (made.en, made.de[1]) == (en, de)


def test_our_is_unser_in_every_ending():
    assert noun_phrase(NOUN["lamp"], possessive(WE), OLD).de[2] == "unserer alten Lampe"


def test_english_it_becomes_the_gender_of_the_antecedent():
    objects = [pronoun_for(noun_phrase(NOUN[noun], THE)) for noun in ("table", "lamp", "book")]
    assert [made.en_object for made in objects] == ["it", "it", "it"]
    assert [made.de[1] for made in objects] == ["ihn", "sie", "es"]


def test_relative_pronouns_take_gender_from_the_noun_and_case_from_their_clause():
    men = relative_pronoun(noun_phrase(NOUN["man"], THE, plural=True))
    lamp = relative_pronoun(noun_phrase(NOUN["lamp"], THE))
    assert (men.en, men.de[2]) == ("who", "denen")
    assert (lamp.en, lamp.de[:3]) == ("which", ("die", "die", "der"))


def test_two_people_are_a_plural():
    both = pair_phrase(name_phrase("Anna", "Anna", "f"), name_phrase("Paul", "Paul", "m"))
    assert (both.en, both.de[0], both.plural, both.pronoun) == ("Anna and Paul", "Anna und Paul", True, "they")
