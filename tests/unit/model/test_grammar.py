"""Tests of the text lines that describe an architecture: their meaning, and the column named in each error."""

import pytest

from model.grammar import DEEPEST, LONG, GrammarError, Named, Repeated, parse


def test_counts_groups_and_options() -> None:
    assert parse("") == parse("  ") == ()
    assert parse("a") == (Repeated(1, Named("a", {}, 1)),)
    assert parse("N * (a, 2*b_1(x=3, y = -0.5, z=true, w=word)) , c()") == (
        Repeated(
            None,
            (
                Repeated(1, Named("a", {}, 6)),
                Repeated(2, Named("b_1", {"x": 3, "y": -0.5, "z": True, "w": "word"}, 11)),
            ),
        ),
        Repeated(1, Named("c", {}, 49)),
    )
    values = parse("a(i=-12, f=1e-3, g=2.0, n=false)")[0].content.options  # type: ignore[union-attr]
    assert values == {"i": -12, "f": 0.001, "g": 2.0, "n": False}
    assert [type(value) for value in values.values()] == [int, float, float, bool]
    assert parse("10000*a")[0].times == 10_000


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("0*a", 1, "0 times"),
        ("a, 10001*b", 4, "10001 times"),
        ("1.5*a", 1, "1.5 layers"),
        ("-2*a", 1, "-2 layers"),
        ("2 a", 3, 'expected "\\*"'),
        ("a b", 3, 'found "b", expected a comma, or the end'),
        ("a,", 3, "found the end, expected the name of a sub-layer"),
        ("(a", 3, 'expected "\\)"'),
        ("a(x=1, x=2)", 8, "x is given twice"),
        ("a(x=1 y=2)", 7, 'expected ","'),
        ("a(x 1)", 5, 'expected "="'),
        ("a(x=)", 5, "expected a value"),
        ("a(3=1)", 3, "expected the name of an option"),
        ("a, ?", 4, "'\\?' has no meaning here"),
        ("  é", 3, "has no meaning here"),
    ],
)
def test_a_mistake_is_told_by_its_column(text: str, column: int, words: str) -> None:
    with pytest.raises(GrammarError, match=words) as found:
        parse(text)
    assert found.value.column == column and found.value.text == text


def test_brackets_have_a_depth_and_messages_a_length() -> None:
    assert parse("(" * DEEPEST + "a" + ")" * DEEPEST)
    with pytest.raises(GrammarError, match="more than 20 brackets") as deep:
        parse("(" * (DEEPEST + 1) + "a" + ")" * (DEEPEST + 1))
    assert deep.value.column == DEEPEST + 1
    for extra, cut in ((0, False), (1, True)):
        text = "a" * (LONG + extra - 2) + " ?"
        with pytest.raises(GrammarError) as found:
            parse(text)
        assert (text in str(found.value)) is not cut and ("…" in str(found.value)) is cut
