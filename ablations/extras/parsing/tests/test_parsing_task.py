"""The parsing task without training: identities, sizes, scores and files."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from ablations.extras.parsing.evalb import Status, score_sentence, summarise
from ablations.extras.parsing.scores import with_golds_punctuation
from ablations.extras.parsing.task import TASK, ParsingConfig
from ablations.extras.parsing.tests.evalb_files import score_files
from ablations.extras.parsing.treebank import parse_line
from experiments.config.run_config import RunConfig
from experiments.data.encoding.encoded import EncodedSet
from experiments.dotted import defaults
from experiments.errors import NeedsCorpus, UserError
from experiments.identity import digest, run_identity
from experiments.run_spec import EvaluationSpec
from experiments.tasks.load import load_task
from model.network import build_model
from tests.unit.reports.test_settings_named import check_setting

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


@pytest.mark.slow
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


def test_every_default_is_what_it_was() -> None:
    """A new or removed setting changes this: write the new digest here. A changed default must not."""
    assert digest(dict(defaults(ParsingConfig))) == "2108e9630e66477b"


@pytest.mark.parametrize("name", ["data.train_extra", "data.target_vocab_size", "data.builtin_extra"])
def test_a_setting_of_base_is_named_where_a_row_reads_it(name: str, tmp_path: Path) -> None:
    check_setting(load_task("parsing"), name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("units", ["unigram", "word", "char", "byte"])
def test_the_sentences_have_units_and_the_symbols_stay_symbols(tmp_path: Path, units: str) -> None:
    data = {"vocab_size": 120, "target_vocab_size": 64, "builtin_pairs": 300, "units": units}
    settings = ParsingConfig.from_mapping({"data": data})
    facts = TASK.prepare(settings, tmp_path, lambda *_: None)
    target, source = TASK.vocab_sizes(settings)
    assert source == facts["vocab_size"]["source"] and target == 64 >= facts["vocab_size"]["target"]
    assert facts["train"]["target"]["unknown"] == 0
    assert not TASK.preflight(settings, tmp_path / "elsewhere")


def test_a_vocabulary_beyond_the_generated_sentences_needs_the_size_that_is_named(tmp_path: Path) -> None:
    def refusals(vocab_size: int) -> list[UserError]:
        data = {"builtin_pairs": 2000, "vocab_size": vocab_size}
        values = {"data": data, "training": {"tokens_per_batch": 1000}}
        return TASK.preflight(ParsingConfig.from_mapping(values), tmp_path)

    (error,) = refusals(37000)
    assert isinstance(error, NeedsCorpus) and "--corpus DIR" in str(error) and "37000" in str(error)
    named = re.search(r"data\.vocab_size(?:=| to )(\d+)", str(error))
    assert named is not None and refusals(int(named[1])) == []


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
