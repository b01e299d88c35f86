"""Penn Treebank format: reading, cleaning, and messages for wrong files."""

import gzip
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given

from ablations.extras.parsing.tests.random_trees import quick, trees
from ablations.extras.parsing.tree import Bracket, Tree, base_label, cleaned, steps, to_text
from ablations.extras.parsing.treebank import BadTree, parse, parse_line, read_trees
from experiments.errors import UserError

MRG = """\
# a comment, and an empty line

( (S
    (NP-SBJ-1 (DT The) (NN dog))
    (VP (VBD wanted)
      (S (NP-SBJ (-NONE- *-1)) (VP (TO to) (VP (VB sleep)))))
    (. .)))
*x* Brown's header lines *x*
(TOP (NP=2 (NN Rain)))(ROOT (X (NN two) (NN more)) (. .))
"""


def test_one_and_many_trees_over_one_and_many_lines() -> None:
    first, second, third = parse(MRG.split("\n"))
    assert first.words == ("The", "dog", "wanted", "*-1", "to", "sleep", ".")
    assert first.tags == ("DT", "NN", "VBD", "-NONE-", "TO", "VB", ".")
    assert first.brackets[:4] == (
        Bracket("", 0, 7), Bracket("S", 0, 7), Bracket("NP-SBJ-1", 0, 2), Bracket("VP", 2, 6),
    )  # fmt: skip
    assert [b.label for b in first.brackets[4:]] == ["S", "NP-SBJ", "VP", "VP"]
    assert to_text(second, "") == "(TOP (NP=2 (NN Rain)))"
    assert third.brackets == (Bracket("ROOT", 0, 3), Bracket("X", 0, 2))


def test_cleaning_takes_away_root_traces_and_function_tags() -> None:
    first, second, third = map(cleaned, parse(MRG.split("\n")))
    assert to_text(first) == (
        "(TOP (S (NP (DT The) (NN dog)) (VP (VBD wanted) (S (VP (TO to) (VP (VB sleep))))) (. .)))"
    )
    assert to_text(second) == "(TOP (NP (NN Rain)))"
    assert to_text(third) == "(TOP (X (NN two) (NN more)) (. .))"  # nothing holds all of it any more


@pytest.mark.parametrize("root", ["", "TOP", "ROOT", "S1"])
def test_every_kind_of_root_is_the_same_tree(root: str) -> None:
    assert cleaned(parse_line(f"({root} (S (NN a)))")) == parse_line("(S (NN a))")


def test_a_root_inside_and_a_root_that_does_not_hold_all_stay() -> None:
    assert cleaned(parse_line("(S (TOP (NN a)) (NN b))")).brackets == (Bracket("S", 0, 2), Bracket("TOP", 0, 1))
    assert len(cleaned(parse_line("(TOP (NN a)) (TOP (NN b))")).brackets) == 2


def test_a_tree_of_traces_only_is_empty() -> None:
    assert cleaned(parse_line("(TOP (NP (-NONE- *)))")) == Tree((), (), ())


@pytest.mark.parametrize(
    ("label", "base"),
    [("NP-SBJ-1", "NP"), ("NP=2", "NP"), ("-NONE-", "-NONE-"), ("-LRB-", "-LRB-"), ("ADVP|PRT", "ADVP|PRT"), ("", "")],
)
def test_base_labels(label: str, base: str) -> None:
    assert base_label(label) == base


def test_words_hold_what_is_no_ascii_space() -> None:
    assert parse_line("(CD 1\u00a0000)").words == ("1\u00a0000",)


@quick
@given(trees)
def test_written_and_read_again(tree: Tree) -> None:
    assert list(parse([to_text(tree, "")])) == [tree]
    assert list(parse(to_text(tree, "").replace(" (", "\n (").split("\n"))) == [tree]
    assert cleaned(parse_line(to_text(tree))) == cleaned(tree)


@quick
@given(trees)
def test_steps_open_and_close_every_bracket_once(tree: Tree) -> None:
    taken = list(steps(tree))
    assert [step.word for step in taken] == list(range(len(tree)))
    assert [label for step in taken for label in step.opening] == [b.label for b in tree.brackets]
    assert sorted(label for step in taken for label in step.closing) == sorted(b.label for b in tree.brackets)


def test_a_deep_tree_needs_no_deep_stack() -> None:
    depth = 5000
    tree = parse_line("(NP " * depth + "(NN x)" + ")" * depth)
    assert len(tree.brackets) == depth
    assert parse_line(to_text(tree, "")) == tree


def test_a_treebank_on_one_line_is_read_tree_by_tree() -> None:
    """Its tokens at once would be 20 times the line."""
    line = "(S (NN a) (NN b) (NN c)) " * 20_000
    tracemalloc.start()
    try:
        assert sum(1 for _ in parse([line])) == 20_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(line)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("(S (NN a))\n(S (NN a)))", 2, "closing bracket too many"),
        ("(S (NN a))\n\n(S (NP (NN a))", 3, "1 closing bracket missing up to line 3"),
        ("(S (NN a)\n  (NP (NN b))\n(S (NN c))\n(S (NN d))", 1, "The next tree may begin at line 3"),
        ("(S (NP (NN a))", 1, "not closed"),
        ("(S\n  the (NN dog))", 2, "opens beside"),
        ("(S (NN a)\n dog)", 2, '"dog" has no tag'),
        ("(NP the cat)", 1, '"cat" has no tag'),
        ("(S (NP))", 1, 'the bracket "(NP)" holds nothing'),
        ("()", 1, "holds nothing"),
        ("(S (NN a))\nsome text", 2, '"some" is outside'),
    ],
)
def test_mistakes_are_found_in_their_line(text: str, line: int, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadTree) as bad:
        list(parse(text.split("\n")))
    assert bad.value.line == line and message in str(bad.value)
    path = tmp_path / "train.mrg"
    path.write_text(text)
    with pytest.raises(UserError, match=f"train.mrg, line {line}: "):
        list(read_trees(path))


def test_packed_files_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "a.mrg.gz"
    path.write_bytes(gzip.compress("(S (NN Bär))\r\n".encode()))
    assert [tree.words for tree in read_trees(path)] == [("Bär",)]
