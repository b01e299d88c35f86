"""`generate`, `export` and `attention` work on a trained run without its training data.

Also tests a study of decoding.
"""

import json
import shutil
from pathlib import Path

import pytest

from tests.system.conftest import Cli, as_json

pytestmark = pytest.mark.slow

SHARED = """
name = "search"
title = "One training, several searches"

[base]
model = {num_layers = 1, d_model = 8, d_ff = 16, num_heads = 2, d_k = 4, d_v = 4}
data = {vocab_size = 200, builtin_pairs = 300}
training = {train_steps = 6, warmup_steps = 10, tokens_per_batch = 400, checkpoint_steps = 2, keep_checkpoints = 3}
evaluation = {beam_size = 2, max_extra_length = 3}

[[variation]]
key = "base"

[[variation]]
key = "greedy"
set = {evaluation.beam_size = 1}

[[variation]]
key = "alpha1"
set = {evaluation.length_penalty = 1.0}

[[variation]]
key = "average"
set = {evaluation.checkpoint = "average:3"}
"""


@pytest.fixture(scope="module")
def store(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("search")
    study = folder / "search.toml"
    study.write_text(SHARED, encoding="utf-8")
    done = cli("run", study, "--store", folder / "runs", "--devices", "cpu:1", "--json")
    rows = {row["row"]: row for row in as_json(done)}
    assert set(rows) == {"base", "greedy", "alpha1", "average"}
    shutil.rmtree(folder / "runs" / "corpora")
    return folder / "runs", study


def test_rows_of_decoding_share_one_training_and_fill_a_table(cli: Cli, store: tuple[Path, Path]) -> None:
    runs, study = store
    (run,) = (runs / "runs").iterdir()
    assert len(list((run / "attempts").glob("*/result.json"))) == 1
    assert len(list((run / "evaluations").iterdir())) == 4
    assert len(list(run.glob("attempts/*/averages/*"))) == 1
    table = as_json(cli("report", study, "--store", runs, "--json", "--strict"))
    assert len(table) == 4


@pytest.mark.nightly
def test_a_row_translates_as_it_decodes_though_another_row_trained(cli: Cli, store: tuple[Path, Path]) -> None:
    runs, study = store
    (run,) = (runs / "runs").iterdir()
    (text := study.parent / "text").write_text("the river is cold\na small house\n", encoding="utf-8")

    def said(*words: object) -> str:
        return cli("generate", *words, text, "--store", runs, "--json", "--devices", "cpu:1").stdout

    expected = {
        "alpha1": said("--run", run.name, "--checkpoint", "last", "--length-penalty", "1", "--beam-size", "2"),
        "average": said("--run", run.name, "--checkpoint", "average:3", "--length-penalty", "0.6", "--beam-size", "2"),
    }
    assert expected["alpha1"] != expected["average"]
    assert {row: said(study, "--row", row) for row in expected} == expected


def test_a_row_is_found_without_the_training_data(cli: Cli, store: tuple[Path, Path], tmp_path: Path) -> None:
    runs, study = store
    assert not (runs / "corpora").exists()
    [result] = runs.glob("runs/*/result.json")
    found = cli("export", study, tmp_path / "model", "--row", "base", "--store", runs).stdout
    assert f"run {result.parent.name} " in found
    message = cli("generate", study, "--row", "base", "--seed", "7", "--store", runs, code=2).stderr
    assert "no row 'base' with seed 7" in message


def test_lines_come_out_in_order_and_empty_ones_stay_empty(cli: Cli, store: tuple[Path, Path], tmp_path: Path) -> None:
    runs, study = store
    text = tmp_path / "input.txt"
    text.write_text("The old dog sleeps.\n\nThe man goes.\n", encoding="utf-8")
    named = ("--store", runs, "--devices", "cpu:1", "--row", "base")
    lines = cli("generate", study, text, *named).stdout.split("\n")
    assert len(lines) == 4
    assert lines[1] == lines[3] == ""
    printed = cli("generate", study, text, *named, "--nbest", "2", "--json").stdout
    best = [json.loads(line) for line in printed.splitlines()]
    assert [(one["line"], one["rank"]) for one in best if one["line"] != 2] == [(1, 1), (1, 2), (3, 1), (3, 2)]
    assert best[0]["score"] >= best[1]["score"]
    text.write_text("The old dog sleeps. " * 400, encoding="utf-8")
    assert "Line 1 has" in cli("generate", study, text, *named, code=2).stderr


def test_an_exported_folder_needs_no_store(cli: Cli, store: tuple[Path, Path], tmp_path: Path) -> None:
    runs, _ = store
    (run,) = (runs / "runs").iterdir()
    cli("export", tmp_path / "model", "--run", run.name[:6], "--store", runs)
    text = tmp_path / "input.txt"
    text.write_text("The old dog sleeps.\n", encoding="utf-8")
    exported = cli("generate", text, "--model", tmp_path / "model", "--devices", "cpu:1", cwd=tmp_path).stdout
    assert exported == cli("generate", text, "--run", run.name, "--store", runs, "--devices", "cpu:1").stdout
    assert "not empty" in cli("export", tmp_path / "model", "--run", run.name, "--store", runs, code=2).stderr


@pytest.mark.extra("attention_analysis")
def test_attention_is_drawn_and_kept_as_an_artifact(cli: Cli, store: tuple[Path, Path], tmp_path: Path) -> None:
    runs, study = store
    figure = tmp_path / "figure.png"
    named = ("--row", "base", "--store", runs, "--out", figure)
    asked = ("The $old dog sleeps.", "--head", "2", "--target", "der Hund")
    found = as_json(cli("attention", study, *asked, *named, "--json"))
    assert len(found["maps"]["cross"][0]) == 2
    assert figure.read_bytes().startswith(b"\x89PNG")
    (run,) = (runs / "runs").iterdir()
    assert len(list((run / "attention").iterdir())) == 2
    cli("ui", "--rebuild", "mlflow", "--store", runs)
    assert len(list((runs / "artifacts").rglob("attention/*"))) == 2
    assert "numbered from 1" in cli("attention", study, "The dog.", *named, "--layer", "9", code=2).stderr


@pytest.mark.nightly
@pytest.mark.extra("attention_analysis")
def test_a_recurrent_row_draws_the_attention_that_it_has_and_names_what_it_lacks(cli: Cli, tmp_path: Path) -> None:
    lines = 'encoder = "gru(bidirectional=true)", decoder = "gru, cross_attention(num_heads=1), gru", '
    study = tmp_path / "recurrent.toml"
    study.write_text(SHARED.partition('\n[[variation]]\nkey = "greedy"')[0].replace("model = {", f"model = {{{lines}"))
    named = ("--row", "base", "--store", tmp_path / "runs")
    cli("run", study, "--store", tmp_path / "runs", "--devices", "cpu:1")
    found = as_json(cli("attention", study, "The dog sleeps.", *named, "--json", "--target", "der Hund"))
    assert {kind: [len(layer) for layer in layers] for kind, layers in found["maps"].items()} == {
        "encoder": [], "decoder": [], "cross": [1],
    }  # fmt: skip
    lacking = cli("attention", study, "The dog.", *named, "--kind", "encoder", code=2).stderr
    assert "no self_attention in its encoder. It has: --kind cross (1 layer)" in lacking
    assert "numbered from 1" in cli("attention", study, "The dog.", *named, "--layer", "2", code=2).stderr
    cli("export", study, tmp_path / "model", *named)
    assert cli("generate", study, "--model", tmp_path / "model", "--devices", "cpu:1").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--run", "ffff"), "no run begins with it; 1 trained run in"),
        (("--model", "exported", "--checkpoint", "best"), "Leave out --checkpoint"),
        (("search.toml", "--checkpoint", "best"), "has none with a measured perplexity on dev"),
    ],
)
def test_mistakes_are_explained(cli: Cli, store: tuple[Path, Path], arguments: tuple[str, ...], message: str) -> None:
    arguments = tuple(str(store[1]) if argument == "search.toml" else argument for argument in arguments)
    found = cli("generate", *arguments, "--store", store[0], code=2).stderr
    assert message in " ".join(found.split())
