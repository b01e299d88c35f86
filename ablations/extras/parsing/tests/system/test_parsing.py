"""Parsing from the command line: generated trees and a folder of files, really trained and scored."""

import csv
import json
from pathlib import Path

import pytest

from ablations.extras.parsing.evalb import summarise
from ablations.extras.parsing.generated import generate_trees
from ablations.extras.parsing.tests.evalb_files import score_files
from ablations.extras.parsing.tree import to_text
from tests.system.conftest import Cli, as_json

pytestmark = pytest.mark.slow

SMALL = """
name = "trees"
title = "Small trees"
task = "parsing"

[base]
model = {num_layers = 1, d_model = 32, d_ff = 64, num_heads = 2, d_k = 16, d_v = 16, dropout = 0, attention_dropout = 0}
data = {vocab_size = 150, target_vocab_size = 64}
training = {train_steps = 60, warmup_steps = 30, learning_rate_scale = 1.0, tokens_per_batch = 800, precision = "fp32"}
evaluation = {beam_size = 2, max_extra_length = 40}

[[variation]]
key = "trained"

[[variation]]
key = "extra"
set = {data.train_extra = ["extra"]}

[[variation]]
key = "untrained"
fixed = {training.train_steps = 0}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short trees in files: a folder for train, one file each for dev and for another parser's."""
    place = tmp_path_factory.mktemp("trees") / "bank"
    (place / "train").mkdir(parents=True)
    trees = [tree for tree in generate_trees("train", 2500) if len(tree) <= 10]
    assert len(trees) >= 530
    lines = [to_text(tree, "ROOT") + "\n" for tree in trees]
    (place / "train" / "a.mrg").write_text("# half\n" + "".join(lines[:200]))
    (place / "train" / "b.ptb").write_text("\n".join(lines[200:400]))
    (place / "extra.mrg").write_text("".join(lines[400:500]))
    (place / "dev.mrg").write_text("".join(lines[500:530]))
    return place


@pytest.mark.nightly
@pytest.mark.extra("attention_analysis")
def test_f1_rises_from_nothing_and_what_is_kept_gives_it_again(cli: Cli, folder: Path, tmp_path: Path) -> None:
    study, store = tmp_path / "trees.toml", tmp_path / "store"
    study.write_text(SMALL)
    rows = {row["row"]: row for row in as_json(cli("run", study, "--corpus", folder, "--store", store, "--json"))}
    assert rows["untrained"]["f1"] < 10
    assert rows["trained"]["f1"] > rows["untrained"]["f1"] + 10
    assert rows["extra"]["run_ids"] != rows["trained"]["run_ids"] and rows["extra"]["f1"] is not None
    for result in store.glob("runs/*/attempts/*/evaluations/*/result.json"):
        metrics = json.loads(result.read_text())["metrics"]
        scores = score_files(result.parent / "gold.mrg", result.parent / "parses.mrg")
        assert summarise(scores)["f1"] == metrics["f1"]
        assert (metrics["evalb_errors"], len(scores)) == (0, 30)
        assert len((result.parent / "outputs.txt").read_text().split("\n")) == 31
    assert "nothing to train" in cli("run", study, "--corpus", folder, "--store", store).stderr
    asked = ("generate", study, "--row", "trained", "--corpus", folder, "--store", store)
    assert "belongs to the task parsing, which does not translate" in cli(*asked, code=2).stderr
    asked = ("attention", "--heads", study, "--row", "trained", "--sentences", "20", *asked[4:])
    heads = as_json(cli(*asked, "--json", "--out", tmp_path / "heads.svg"))
    assert [(row["weights"], row["kind"], row["head"]) for row in heads] == [
        (weights, kind, head) for weights in ("trained", "random") for kind in ("encoder", "decoder", "cross")
        for head in (1, 2)
    ]  # fmt: skip
    assert all(0 <= row["brackets"] <= 1 for row in heads if row["kind"] == "encoder")
    assert (tmp_path / "heads.svg").exists() and "20 sentences of dev" in cli(*asked).stdout
    (table,) = store.glob("runs/*/attention/heads.csv")
    assert [float(row["entropy"]) for row in csv.DictReader(table.open())] == [row["entropy"] for row in heads]
    assert "no more arguments" in cli("attention", "--heads", study, "a sentence", *asked[3:], code=2).stderr


def test_unbalanced_brackets_are_refused_before_anything_runs(cli: Cli, folder: Path, tmp_path: Path) -> None:
    study = tmp_path / "trees.toml"
    study.write_text(SMALL)
    broken = tmp_path / "broken"
    broken.mkdir()
    for name in ("train", "dev"):
        (broken / f"{name}.mrg").write_text("(S (NN a))\n\n(S (NP (NN b))\n(S (NN c))\n")
    done = cli("run", study, "--rows", "trained", "--corpus", broken, "--store", tmp_path / "none", code=2)
    assert f"{broken / 'train.mrg'}, line 3: the tree that begins here is not closed" in done.stderr
    assert "Traceback" not in done.stderr
