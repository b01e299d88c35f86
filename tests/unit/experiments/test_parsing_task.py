"""The parsing task without training: identities, sizes, scores and files."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from experiments.config.run_config import RunConfig
from experiments.data.corpora.tree import parse_line
from experiments.data.encoding.encoded import EncodedSet
from experiments.evaluation.evalb import Status, score_sentence, summarise, with_golds_punctuation
from experiments.identity import run_identity
from experiments.run_spec import EvaluationSpec
from experiments.tasks.load import load_task
from experiments.tasks.parsing import TASK, ParsingConfig
from model.network import build_model
from tests.evalb_files import score_files

pytestmark = pytest.mark.slow

SPEC = EvaluationSpec("dev", {"rules": "COLLINS"}, {"set": "0"})
LABELS = ["<pad>", "<s>", "</s>", "<unk>", "S", "/S", "NP", "/NP", "VP", "/VP", "NN", "VB", "."]
SOURCES = ["dogs sleep .", "rain", ""]
GOLD = ["S NP NN /NP VP VB /VP . /S", "NP NN /NP", ""]


def text(sources: Sequence[str] = SOURCES, gold: Sequence[str] = GOLD) -> EncodedSet:
    return EncodedSet("dev", "", {}, {}, tuple(sources), tuple(gold))


def test_it_is_built_in_and_defaults_are_the_papers() -> None:
    assert load_task("parsing").config_type.__name__ == TASK.config_type.__name__ == "ParsingConfig"
    config = ParsingConfig()
    assert (config.model.num_layers, config.model.d_model, config.model.d_ff) == (4, 1024, 2048)
    assert (config.evaluation.beam_size, config.evaluation.length_penalty) == (21, 0.3)
    assert config.evaluation.max_extra_length == 300
    assert (config.data.vocab_size, config.data.target_vocab_size) == (16000, 512)
    with pytest.raises(ValueError, match="shared_vocabulary"):
        ParsingConfig.model_validate({"model": {"shared_vocabulary": True}})


def test_the_model_has_a_vocabulary_for_each_side() -> None:
    config = ParsingConfig()
    model = build_model(config.model, *TASK.vocab_sizes(config), device="meta")
    assert (model.vocab_size, model.embeddings["source"].vocab_size) == (512, 16000)
    filling = sum(e.weight.shape[0] - e.vocab_size for e in model.embeddings.values())
    counted = sum(p.numel() for p in model.parameters()) - filling * config.model.d_model
    assert TASK.num_params(config) == counted
    with pytest.raises(ValueError, match="one size"):
        build_model(RunConfig().model, 10, 20)


def test_run_ids_are_frozen() -> None:
    """A changed default would rename every run of every store."""
    assert run_identity(ParsingConfig(), {"corpus": "0" * 16}) == PINNED
    assert run_identity(ParsingConfig(), {"corpus": "0" * 16}) != run_identity(RunConfig(), {"corpus": "0" * 16})


PINNED = "fbbeba3cb49a2b42"


def test_evaluations_name_the_rules(tmp_path: Path) -> None:
    (plain,) = TASK.evaluations(ParsingConfig(), tmp_path)
    assert plain.settings["rules"] == "COLLINS" and plain.set == "dev"


def test_gold_as_output_scores_100_and_keeps_what_evalb_reads(tmp_path: Path) -> None:
    scores = TASK.score_outputs(ParsingConfig(), SPEC, text(), GOLD, LABELS, tmp_path)
    assert scores.metrics["f1"] == scores.metrics["tagging_accuracy"] == scores.metrics["complete_match"] == 100
    assert scores.metrics["malformed"] == 0
    assert scores.metrics["evalb_skipped"] == 1  # the sentence without words
    assert (tmp_path / "parses.mrg").read_text() == (tmp_path / "gold.mrg").read_text()
    assert (tmp_path / "gold.mrg").read_text().split("\n")[0] == "(TOP (S (NP (NN dogs)) (VP (VB sleep)) (. .)))"
    kept = score_files(tmp_path / "gold.mrg", tmp_path / "parses.mrg")
    assert summarise(kept)["f1"] == 100 and sum(score.matched for score in kept) == 4
    assert scores.statistics.tolist() == [[3, 3, 3], [1, 1, 1], [0, 0, 0]]
    assert scores.signatures == {"f1": "EVALB|labeled F1|rules: COLLINS|punctuation: gold's"}


def test_a_label_may_hold_a_space_that_is_not_ascii(tmp_path: Path) -> None:
    gold = ["S N\u2028P NN /N\u2028P /S"]
    labels = [*LABELS, "N\u2028P", "/N\u2028P"]
    metrics = TASK.score_outputs(ParsingConfig(), SPEC, text(["rain\x1c"], gold), gold, labels, tmp_path).metrics
    assert (metrics["f1"], metrics["malformed"]) == (100, 0)
    assert (tmp_path / "gold.mrg").read_text() == "(TOP (S (N\u2028P (NN rain\x1c))))\n"


def test_malformed_outputs_are_repaired_counted_and_scored(tmp_path: Path) -> None:
    outputs = ["S NP NN VP VB . /S", "", "NN NN"]
    scores = TASK.score_outputs(ParsingConfig(), SPEC, text(), outputs, LABELS, tmp_path)
    metrics = scores.metrics
    # S right, NP too long, VP too long (nothing closes them before the end); the second has no bracket at all
    assert (metrics["malformed_sentences"], metrics["malformed"]) == (3, 100)
    assert (metrics["repaired_unclosed"], metrics["repaired_missing_tags"], metrics["repaired_extra_tags"]) == (2, 1, 2)
    assert metrics["evalb_errors"] == 0
    assert (tmp_path / "parses.mrg").read_text().split("\n")[1] == "(TOP (XX rain))"
    assert scores.statistics.tolist() == [[2, 3, 3], [0, 1, 0], [0, 0, 0]]


@pytest.mark.parametrize("parse", ["(S (, dogs) (NN sleep) (NN .))", "(S (. dogs) (. sleep) (. .))"])
def test_a_parser_that_tags_badly_is_in_every_sum(parse: str) -> None:
    gold = parse_line("(S (NN dogs) (VB sleep) (. .))")
    assert score_sentence(gold, parse_line(parse)).status != Status.VALID
    mended = with_golds_punctuation(parse_line(parse), gold)
    found = score_sentence(gold, mended)
    assert (found.status, found.words, found.correct_tags, found.matched) == (Status.VALID, 2, 0, 1)


def test_a_parser_that_tags_well_is_left_as_it_is() -> None:
    tree = parse_line("(S (NN dogs) (, ,) (NN sleep) (. .))")
    assert with_golds_punctuation(tree, tree) == tree
