"""Scores have the right names in MLflow, and a rebuilt database equals an incrementally written one."""

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import ablations
from experiments.store.layout import Store
from tests.unit.experiments.test_tracking_whole import dump

from .conftest import TINY, Cli, as_json

pytestmark = pytest.mark.slow
OTHER = ("--set", "evaluation.beam_size=1", "--set", "evaluation.length_penalty=0.0")


def scores(store: Path) -> dict[str, float]:
    """Return MLflow's latest metrics of the only trained run."""
    query = (
        "SELECT m.key, m.value FROM latest_metrics m JOIN tags t ON t.run_uuid = m.run_uuid AND t.key = 'run_id' "
        "JOIN runs r ON r.run_uuid = m.run_uuid AND r.lifecycle_stage = 'active'"
    )
    return dict(sqlite3.connect(store / "mlflow.db").execute(query))


def content(store: Path) -> dict[str, set[Any]]:
    """Return the database's content without the times of MLflow's parent run.

    These times depend on which of several simultaneous runs was seen first.
    """
    found = dump(Store.open(store))
    found["runs"] = {line for line in found["runs"] if line[1] != "tiny · exact · builtin"}
    return dict(found)


def assert_rebuilt_equals_grown(cli: Cli, store: Path) -> None:
    grown = content(store)
    cli("ui", "--rebuild", "mlflow", "--store", store)
    rebuilt = content(store)
    for table, lines in grown.items():
        assert rebuilt[table] - lines == lines - rebuilt[table] == set(), table


def printed(cli: Cli, tiny: Path, store: Path, *options: str) -> Any:
    [row] = as_json(cli("report", tiny, "--rows", "untrained", "--store", store, "--json", *options))
    return row


@pytest.mark.nightly
def test_the_plain_names_are_the_studys_own_decoding_whatever_came_first(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    """The run is first trained and decoded with another beam, then decoded with the study's beam."""
    store, rows = tmp_path / "store", ("--rows", "untrained")
    cli("run", tiny, *rows, "--store", store, *OTHER)
    first = scores(store)
    assert not {"bleu", "perplexity"} & set(first)
    [other] = [name for name in first if name.startswith("bleu.dev.")]
    assert first[other] == pytest.approx(printed(cli, tiny, store, *OTHER)["bleu"])
    cli("run", tiny, *rows, "--store", store)
    both = scores(store)
    assert both["bleu"] == pytest.approx(printed(cli, tiny, store)["bleu"])
    assert both[other] == first[other]
    assert_rebuilt_equals_grown(cli, store)
    assert scores(store) == both


def test_another_beam_goes_under_its_own_name(cli: Cli, tiny: Path, tmp_path: Path, finished: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(finished, store)
    before = dump(Store.open(store))["latest"]
    cli("evaluate", tiny, "--seeds", "2", "--store", store, *OTHER)
    after = dump(Store.open(store))["latest"]
    plain = {"bleu", "perplexity"}
    assert {line for line in before if line[1] in plain} == {line for line in after if line[1] in plain}
    assert sum(line[1].startswith("bleu.dev.") for line in after) == 6
    assert_rebuilt_equals_grown(cli, store)


KEYS = ("base", "avg", "greedy")
ROWS = """
[[variation]]
key = "base"

[[variation]]
key = "avg"
fixed = {training = {keep_checkpoints = 2}, evaluation = {checkpoint = "average:2"}}

[[variation]]
key = "greedy"
set = {evaluation.beam_size = 1, evaluation.max_extra_length = 20}
"""


def named(store: Path) -> dict[str, float]:
    """Return the dev scores that have plain names, by study, row and metric."""
    database = sqlite3.connect(store / "mlflow.db")
    found = {}
    for uuid, name in database.execute("SELECT run_uuid, name FROM runs WHERE lifecycle_stage = 'active'"):
        metrics = dict(database.execute("SELECT key, value FROM latest_metrics WHERE run_uuid = ?", (uuid,)))
        tags = dict(database.execute("SELECT key, value FROM tags WHERE run_uuid = ?", (uuid,)))
        for metric in ("chrf", "perplexity") if metrics else ():
            assert name == f"{tags['row']} · seed 1"
            found[f"{tags['study']} {tags['row']} {metric}"] = metrics[metric]
    return found


@pytest.mark.nightly
def test_rows_that_share_a_training_are_found_by_name_with_their_own_scores(cli: Cli, tmp_path: Path) -> None:
    """This also holds for a second study whose runs all exist already, and after MLflow's database was lost."""
    store, expected = tmp_path / "store", dict[str, float]()
    for name in ("tiny", "second"):
        study = tmp_path / f"{name}.toml"
        text = TINY.partition("[[variation]]")[0].replace('"tiny"', f'"{name}"') + ROWS
        study.write_text(text.replace("greedy", "quick") if name == "second" else text)
        cli("run", study, "--store", store, "--devices", "cpu:1")
        lines = ablations.load(study, store=store).evaluations.to_dict("records")
        lines = [line for line in lines if line["metric"] in ("chrf", "perplexity")]
        expected |= {f"{name} {line['row']} {line['metric']}": line["value"] for line in lines}
        assert named(store) == pytest.approx(expected)
    assert len({(expected[f"tiny {row} chrf"], expected[f"tiny {row} perplexity"]) for row in KEYS}) == 3
    assert len(list(store.glob("runs/*"))) == 1
    assert_rebuilt_equals_grown(cli, store)
    (store / "mlflow.db").unlink()
    assert "1 missing run added to MLflow" in cli("run", study, "--store", store).stderr
    assert named(store) == pytest.approx(expected)
