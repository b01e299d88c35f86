"""EVALB's rules one by one, on small trees and as properties."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablations.extras.parsing.evalb import DELETED, SentenceScore, Status, score_sentence, summarise
from ablations.extras.parsing.linear import delinearise
from ablations.extras.parsing.scores import score_parses
from ablations.extras.parsing.tests.evalb_files import score_files
from ablations.extras.parsing.tests.random_trees import LABELS, quick, trees
from ablations.extras.parsing.tree import Tree, to_text
from ablations.extras.parsing.treebank import parse_line
from experiments.tasks import versions

# Not st.randoms: that draws floats, which hypothesis refuses once a model has made the processor flush denormals.
chances = st.integers(0, 2**32).map(random.Random)


def score(gold: str, parse: str) -> SentenceScore:
    return score_sentence(parse_line(gold), parse_line(parse))


def counts(gold: str, parse: str) -> tuple[int, int, int]:
    found = score(gold, parse)
    assert found.status == Status.VALID
    return found.matched, found.gold, found.parsed


def test_brackets_match_by_span_and_label() -> None:
    gold = "(S (NP (DT the) (NN dog)) (VP (VBD saw) (NP (NN it))))"
    assert counts(gold, gold) == (4, 4, 4)
    assert counts(gold, "(S (NP (DT the) (NN dog)) (VP (VBD saw) (PP (NN it))))") == (3, 4, 4)
    assert counts(gold, "(S (NP (DT the)) (NP (NN dog)) (VP (VBD saw) (NN it)))") == (2, 4, 4)


def test_repeated_unary_brackets_count_as_often_as_both_have_them() -> None:
    one, two, three = ("(NP " * n + "(NN a)" + ")" * n for n in (1, 2, 3))
    assert counts(one, three) == (1, 1, 3)
    assert counts(three, two) == (2, 3, 2)
    assert counts(three, three) == (3, 3, 3)
    assert counts("(NP (QP (NP (NN a))))", "(QP (NP (NP (NN a))))") == (3, 3, 3)  # a multiset: order is nothing


def test_advp_and_prt_are_equal_both_ways_and_nothing_else() -> None:
    assert counts("(VP (VB go) (PRT (RP on)))", "(VP (VB go) (ADVP (RP on)))") == (2, 2, 2)
    assert counts("(VP (VB go) (ADVP (RP on)))", "(VP (VB go) (PRT (RP on)))") == (2, 2, 2)
    assert counts("(VP (VB go) (ADJP (RP on)))", "(VP (VB go) (PRT (RP on)))") == (1, 2, 2)


def test_punctuation_vanishes_and_brackets_stretch_over_it() -> None:
    gold = "(S (`` ``) (NP (NN a)) (, ,) ('' '') (VP (VB b)) (: --) (. .))"
    parse = "(S (NP (`` ``) (NN a) (, ,)) ('' '') (VP (VB b) (: --) (. .)))"
    assert counts(gold, parse) == (3, 3, 3)
    assert score(gold, parse).words == 2  # their tags are not counted either


def test_traces_vanish_with_all_that_holds_only_them() -> None:
    gold = "(S (NP (NN a)) (VP (VB b) (SBAR (-NONE- 0) (S (-NONE- *T*-1)))))"
    assert counts(gold, "(S (NP (NN a)) (VP (VB b)))") == (3, 3, 3)
    assert score(gold, "(S (NP (NN a)) (VP (VB b)))").length == 2  # -NONE- is not counted for length; , and . are
    assert score("(S (NN a) (, ,) (. .))", "(S (NN a) (, ,) (. .))").length == 3


def test_roots_and_function_tags_do_not_count() -> None:
    assert counts("(TOP (S (NP-SBJ-1 (NN a)) (VP=2 (VB b))))", "(S (NP (NN a)) (VP-X (VB b)))") == (3, 3, 3)
    assert counts("(ROOT (NP (NN a)))", "(NP (NN a))") == (1, 2, 1)  # ROOT is not in COLLINS: it counts


def test_crossing_brackets_are_counted_once_each() -> None:
    gold = "(S (A (NN a) (NN b)) (B (NN c) (NN d)))"
    assert score(gold, "(S (NN a) (X (NN b) (NN c)) (NN d))").crossing == 1
    assert score(gold, "(S (X (NN a) (NN b) (NN c)) (NN d))").crossing == 1
    assert score(gold, "(S (NN a) (NN b) (NN c) (NN d))").crossing == 0


def test_tags_are_compared_where_they_are_not_deleted() -> None:
    found = score("(S (DT a) (NN b) (. .))", "(S (DT a) (VB b) (. .))")
    assert (found.words, found.correct_tags) == (2, 1)


def test_other_words_are_an_error_and_no_words_are_skipped() -> None:
    assert score("(S (NN a))", "(S (NN b))").status == Status.ERROR
    assert score("(S (NN a))", "(S (NN a) (NN b))").status == Status.ERROR
    assert score("(S (NN a))", "(S (, a))").status == Status.SKIPPED
    assert score_sentence(parse_line("(S (NN a))"), None).status == Status.ERROR
    assert score("(S (NN a))", "").status == Status.SKIPPED


@quick
@given(trees)
def test_gold_against_itself_is_complete(tree: Tree) -> None:
    found = score_sentence(tree, tree)
    if found.status == Status.SKIPPED:
        assert all(tag in DELETED for tag in tree.tags)
        return
    assert found.complete and found.crossing == 0 and found.words == found.correct_tags
    summary = summarise([found])
    assert {summary[name] for name in ("recall", "precision", "f1")} == {100 if found.gold else 0}


@quick
@given(st.lists(st.tuples(trees, chances), min_size=1, max_size=4))
def test_the_order_of_sentences_is_nothing(pairs: list[tuple[Tree, random.Random]]) -> None:
    scores = [score_sentence(tree, shaken(tree, chance)) for tree, chance in pairs]
    assert summarise(scores) == summarise(scores[::-1])
    assert summarise(scores, 3) == summarise(scores[::-1], 3)


def shaken(tree: Tree, chance: random.Random) -> Tree:
    """The tree with brackets lost, relabelled and repeated."""
    brackets = [
        b._replace(label=chance.choice(LABELS) if chance.random() < 0.3 else b.label)
        for b in tree.brackets
        for _ in range(chance.choice((0, 1, 1, 1, 2)))
    ]
    return Tree(tree.words, tree.tags, tuple(brackets))


@quick
@given(trees, chances)
def test_swapping_the_sides_swaps_precision_and_recall(tree: Tree, chance: random.Random) -> None:
    other = shaken(tree, chance)
    there, back = score_sentence(tree, other), score_sentence(other, tree)
    assert (there.matched, there.gold, there.parsed) == (back.matched, back.parsed, back.gold)
    assert 0 <= there.matched <= min(there.gold, there.parsed)


@quick
@given(trees, st.lists(st.sampled_from([*LABELS, *(f"/{label}" for label in LABELS), "NN", "DT"]), max_size=20))
def test_whatever_a_parser_says_can_be_scored(gold: Tree, symbols: list[str]) -> None:
    parse, _ = delinearise(gold.words, symbols, LABELS)
    found = score_sentence(gold, Tree(parse.words, gold.tags, parse.brackets))
    assert found.status in (Status.VALID, Status.SKIPPED)


def test_rates_are_sums_over_brackets_and_not_means_over_sentences() -> None:
    scores = [SentenceScore(5, Status.VALID, 9, 9, 9, 0, 5, 5), SentenceScore(50, Status.VALID, 0, 1, 3, 3, 5, 0)]
    summary = summarise([*scores, SentenceScore(3, Status.ERROR), SentenceScore(3, Status.SKIPPED)])
    assert summary == pytest.approx(
        {
            "f1": 2 * 90 * 75 / (90 + 75), "precision": 75, "recall": 90, "complete_match": 50, "average_crossing": 1.5,
            "no_crossing": 50, "two_or_less_crossing": 50, "tagging_accuracy": 50, "evalb_errors": 1,
            "evalb_skipped": 1,
        }
    )  # fmt: skip
    assert summarise(scores, 40)["f1"] == 100


def test_files_are_scored_line_by_line(tmp_path: Path) -> None:
    gold, parses = tmp_path / "gold", tmp_path / "parses"
    gold.write_text("(TOP (S (NN a)))\n(S (NN b))\n(S (NN c))\n")
    parses.write_text("(S (NN a))\n\n(S (NN c)\n")
    scores = score_files(gold, parses)
    assert [s.status for s in scores] == [Status.VALID, Status.SKIPPED, Status.ERROR]
    summary = summarise(scores)
    assert (scores[0].matched, summary["f1"], summary["evalb_errors"], summary["evalb_skipped"]) == (1, 100, 1, 1)
    assert set(summarise([]).values()) == {0}


@pytest.mark.parametrize(
    ("parse", "status"),
    [  # as evalb.c (2008) has them, compiled and run on these lines
        ("(())", 2), ("()", 2), ("((S))", 2), ("(TOP )", 2), ("(S (, ,))", 2), ("( (S (NP ())) )", 2),
        ("(()", 2), (")", 2), ("(S (, ,)", 2),
        ("(S (NP ))", 1), ("(S (NN a) (NN b)", 1), ("(S (NN a) (NN b) (NP ))", 1), ("(S (NN a))", 1),
        ("(S (NN a) (NN b) ())", 0), ("(S (NP ()) (NN a) (NN b))", 0), ("(S (NN a) (NN b)) (())", 0),
        ("words without brackets", 1),  # here evalb.c gives up
    ],
)  # fmt: skip
def test_a_parse_without_words_is_skipped_and_empty_brackets_do_not_count(
    parse: str, status: int, tmp_path: Path
) -> None:
    (tmp_path / "gold").write_text("(S (NN a) (NN b))\n")
    (tmp_path / "parses").write_text(f"{parse}\n")
    (found,) = score_files(tmp_path / "gold", tmp_path / "parses")
    assert found.status == status
    assert (found.matched, found.gold, found.parsed) == ((1, 1, 1) if status == 0 else (0, 0, 0))


def test_what_is_written_is_scored_alike(tmp_path: Path) -> None:
    """The files that an evaluation keeps give EVALB the same trees."""
    tree = parse_line("(S (NP (NN a)) (VP (VB b)) (. .))")
    (tmp_path / "gold").write_text(f"{to_text(tree)}\n")
    assert score_files(tmp_path / "gold", tmp_path / "gold") == [score_sentence(tree, tree)]


def test_outputs_are_repaired_scored_and_written(tmp_path: Path) -> None:
    """One as gold has it, one that leaves a bracket open, one of another label, one of a sentence without words."""
    labels = ["<pad>", "S", "NP", "X", "NN", "/S", "/NP", "/X", "/"]
    sources = ["a b", "c d", "e", ""]
    references = ["S NP NN NN /NP /S", "S NP NN NN /NP /S", "S NN /S", "S /S"]
    outputs = ["S NP NN NN /NP /S", "S NP NN NN /NP", "X NN /X  unheard", ""]
    scores = score_parses(sources, outputs, references, labels, tmp_path)
    assert scores.statistics.tolist() == [[2, 2, 2], [2, 2, 2], [0, 1, 1], [0, 0, 0]]
    assert scores.metrics["f1"] == pytest.approx(100 * 2 * 4 / (5 + 5))
    assert scores.metrics["f1_up_to_40"] == scores.metrics["f1"]
    assert (scores.metrics["malformed_sentences"], scores.metrics["malformed"]) == (2.0, 50.0)
    assert (scores.metrics["repaired_unclosed"], scores.metrics["repaired_extra_tags"]) == (1.0, 1.0)
    assert (scores.metrics["evalb_errors"], scores.metrics["evalb_skipped"]) == (0.0, 1.0)
    assert [len((tmp_path / name).read_text().splitlines()) for name in ("gold.mrg", "parses.mrg")] == [4, 4]
    assert (tmp_path / "parses.mrg").read_text().splitlines()[2] == "(TOP (X (NN e)))"


def test_other_numbers_need_another_version_of_scoring(tmp_path: Path) -> None:
    labels = ["S", "NP", "VP", "DT", "NN", "VB", "/S", "/NP", "/VP"]
    gold, parse = "S NP DT NN /NP VP VB /VP /S", "S NP DT NN VB /NP /S"
    found = score_parses(["the dog runs"], [parse], [gold], labels, tmp_path).metrics
    assert {versions.SCORING: {name: found[name] for name in SCORES}} == {1: pytest.approx(SCORES)}


SCORES = {"precision": 50.0, "recall": 100 / 3, "f1": 40.0, "tagging_accuracy": 100.0}
