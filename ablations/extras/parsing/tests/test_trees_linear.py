"""A tree as symbols and back, and trees from malformed symbols."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablations.extras.parsing.linear import Repairs, delinearise, linearise
from ablations.extras.parsing.tests.random_trees import LABELS, TAGS, quick, trees
from ablations.extras.parsing.tree import Tree, to_text
from ablations.extras.parsing.treebank import parse_line

EXAMPLE = parse_line("(S (NP (DT the) (NN dog)) (VP (VBD slept)) (. .))")


def test_the_form_of_a_line() -> None:
    assert " ".join(linearise(EXAMPLE)) == "S NP DT NN /NP VP VBD /VP . /S"


@quick
@given(trees)
def test_every_tree_comes_back_without_repair(tree: Tree) -> None:
    assert delinearise(tree.words, linearise(tree)) == (tree, Repairs())
    assert delinearise(tree.words, linearise(tree), LABELS) == (tree, Repairs())


@pytest.mark.parametrize("text", ["(X (X a) (X (NN b)))", "(S (/S a))", "(S (NN_ a) (/ b) (_ c))", "(NN a) (S (NN b))"])
def test_tags_that_look_like_brackets_come_back(text: str) -> None:
    tree = parse_line(text)
    assert delinearise(tree.words, linearise(tree)) == (tree, Repairs())


@pytest.mark.parametrize("label", ["/S", "S_", ""])
def test_labels_that_cannot_be_told_apart_are_refused(label: str) -> None:
    with pytest.raises(ValueError, match="cannot be written as a symbol"):
        linearise(parse_line(f"(S ({label} (NN a)) (NN b))"))


@pytest.mark.parametrize(
    ("output", "tree", "repairs"),
    [
        ("S NP DT NN VP VBD /VP . /S", "(S (NP (DT the) (NN dog) (VP (VBD slept)) (. .)))", {"unclosed": 1}),
        ("S NP DT NN /NP VP VBD . /S", "(S (NP (DT the) (NN dog)) (VP (VBD slept) (. .)))", {"unclosed": 1}),
        ("S NP DT NN /NP VP VBD .", "(S (NP (DT the) (NN dog)) (VP (VBD slept) (. .)))", {"unclosed": 2}),
        ("S DT NN /NP VBD . /S", "(S (DT the) (NN dog) (VBD slept) (. .))", {"unopened": 1}),
        ("S DT NN PP /PP VBD . /S", "(S (DT the) (NN dog) (VBD slept) (. .))", {"empty": 1}),
        ("S DT NN /S", "(S (DT the) (NN dog) (XX slept) (XX .))", {"missing_tags": 2}),
        ("S NP DT NN", "(S (NP (DT the) (NN dog) (XX slept) (XX .)))", {"missing_tags": 2, "unclosed": 2}),
        ("NP DT /NP NP NN /NP", "(NP (DT the)) (NP (NN dog) (XX slept) (XX .))", {"missing_tags": 2}),
        ("S DT NN VBD . NN NN /S", "(S (DT the) (NN dog) (VBD slept) (. .))", {"extra_tags": 2}),
        ("S DT ⁇ NN VBD . /S", "(S (DT the) (NN dog) (VBD slept) (. .))", {"unknown": 1}),
        ("", "(XX the) (XX dog) (XX slept) (XX .)", {"missing_tags": 4}),
        ("/S /S", "(XX the) (XX dog) (XX slept) (XX .)", {"missing_tags": 4, "unopened": 2}),
    ],
)
def test_repairs(output: str, tree: str, repairs: dict[str, int]) -> None:
    made, found = delinearise(EXAMPLE.words, output.split(), LABELS)
    assert to_text(made, "") == tree
    assert found == Repairs(**repairs)
    assert bool(found) == bool(repairs)


SYMBOLS = [*LABELS, *(f"/{label}" for label in LABELS), *TAGS, "⁇", "/", "_", "//"]


@quick
@given(st.lists(st.sampled_from(SYMBOLS), max_size=30), st.integers(0, 8))
def test_anything_becomes_a_tree_over_all_words(symbols: list[str], length: int) -> None:
    words = [f"w{i}" for i in range(length)]
    tree, repairs = delinearise(words, symbols, LABELS)
    assert tree.words == tuple(words) and len(tree.tags) == length
    assert all(0 <= b.start < b.end <= length for b in tree.brackets)
    spans = [b[1:] for b in tree.brackets]
    assert all(not (a < c < b < d) for a, b in spans for c, d in spans), "brackets cross"
    if tree.words:
        assert parse_line(to_text(tree, "")) == tree, "brackets in another order than they open"
    # what needed no repair is what a tree is written as
    if not repairs and not any(symbol in ("/", "_") for symbol in symbols):
        assert linearise(tree) == symbols
