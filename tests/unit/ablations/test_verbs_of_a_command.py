"""Verbs on a study of a command: what they refuse, and what `explain` prints."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ablations.cli.main import app
from experiments.errors import UserError
from tests.small_tables import finish, write_study


def call(store: Path, *words: str | Path) -> Result:
    done = CliRunner().invoke(app, [*map(str, words), "--store", str(store)])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study of a command and its store: two rows of two seeds, finished."""
    folder = tmp_path_factory.mktemp("made")
    finish(write_study(folder, "command"), folder / "store", seeds=2)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "copy")


@pytest.mark.process
def test_a_command_is_told_neither_to_measure_nor_to_be_drawn(folder: Path) -> None:
    """It predicts no cost, so `plan --measure` would refuse; it has no attention."""
    planned = call(folder / "other", "plan", folder / "command.toml").stdout
    assert "time: unknown, the task does not predict its runs' cost" in planned and "--measure" not in planned
    with pytest.raises(UserError, match="belongs to the task command, which does not translate"):
        call(folder / "store", "attention", folder / "command.toml", "a b", "--row", "base")


def test_out_is_a_file_and_no_folder(folder: Path) -> None:
    with pytest.raises(UserError, match=r"--out .*/copy: this is a folder\. Name a file in it\.$"):
        call(folder / "store", "report", folder / "command.toml", "--out", folder)


def test_what_explain_prints_is_what_set_takes(folder: Path) -> None:
    store, study = folder / "store", folder / "command.toml"
    lines = [line.strip() for line in call(store, "explain", study, "fast", "--full").stdout.splitlines()]
    assert lines.count("rate=5") == 2, "as changed from base, and in its configuration"
    assert "| fast" in call(store, "report", study, "--rows", "fast", "--set", "rate=5").stdout
