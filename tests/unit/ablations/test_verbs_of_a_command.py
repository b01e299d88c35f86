"""Tests of commands on a study of a user's command: refusals, and the output of `explain`."""

import json
import shutil
import statistics
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ablations.cli.main import app
from experiments.errors import UserError
from experiments.events.accounting import attempt_costs
from experiments.store.layout import Store
from tests.small_tables import finish, write_study


def call(store: Path, *words: str | Path | int) -> Result:
    done = CliRunner().invoke(app, [*map(str, words), "--store", str(store)])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a study of a command and its store: two finished rows of two seeds."""
    folder = tmp_path_factory.mktemp("made")
    finish(write_study(folder, "command"), folder / "store", seeds=2)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "copy")


@pytest.mark.process
@pytest.mark.extra("attention_analysis")
def test_a_command_is_told_neither_to_measure_nor_to_be_drawn(folder: Path) -> None:
    """A command predicts no cost, so `plan --measure` refuses it. It has no attention to print."""
    planned = call(folder / "other", "plan", folder / "command.toml").stdout
    assert "time: unknown until a run has finished" in planned and "--measure" not in planned
    with pytest.raises(UserError, match=r"Finish one run instead: ablations run .*command.toml .*--rows base"):
        call(folder / "other", "plan", folder / "command.toml", "--measure")
    with pytest.raises(UserError, match="belongs to the task command, which does not translate"):
        call(folder / "store", "attention", folder / "command.toml", "a b", "--row", "base")


def test_the_time_of_a_command_is_that_of_its_finished_runs(folder: Path) -> None:
    store, words = folder / "store", (folder / "command.toml", "--seeds", 5, "--devices", "cpu:1")
    planned = json.loads(call(store, "plan", *words, "--json").stdout)
    spent: dict[str, list[float]] = {}
    for row in (row for row in planned if row["state"] != "missing"):
        spent.setdefault(row["row"], []).append(attempt_costs(Store.open(store), row["run_id"])[0].wall_s)
    waiting = [row for row in planned if row["state"] == "missing"]
    assert len(waiting) == 6 and len(spent) == 2
    for row in waiting:
        assert row["seconds"] == pytest.approx(statistics.median(spent[row["row"]]))
    with pytest.raises(UserError, match=r"--max-hours 1e-09: 6 runs would take about"):
        call(store, "run", *words, "--max-hours", "0.000000001")


def test_out_is_a_file_and_no_folder(folder: Path) -> None:
    with pytest.raises(UserError, match=r"--out .*/copy: this is a folder\. Name a file in it\.$"):
        call(folder / "store", "report", folder / "command.toml", "--out", folder)


def test_what_explain_prints_is_what_set_takes(folder: Path) -> None:
    store, study = folder / "store", folder / "command.toml"
    lines = [line.strip() for line in call(store, "explain", study, "fast", "--full").stdout.splitlines()]
    assert lines.count("rate=5") == 2, "as changed from base, and in its configuration"
    assert "| fast" in call(store, "report", study, "--rows", "fast", "--set", "rate=5").stdout
