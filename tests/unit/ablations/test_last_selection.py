"""Verbs without a study take the last selection used in the store, and say so."""

import errno
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ablations.cli.main import app
from ablations.service.selected import FILE
from experiments.errors import UserError
from experiments.jobs.queue import trust
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


def test_what_was_selected_last_is_taken_and_said(folder: Path) -> None:
    store, study = folder / "store", folder / "command.toml"
    with pytest.raises(UserError, match=r"No study is named, and .* has no last selection"):
        call(store, "report")
    rows = json.loads(call(store, "report", study, "--rows", "fast", "--seeds", "2", "--json").stdout)
    done = call(store, "report", "--json")
    assert json.loads(done.stdout) == rows and [row["n"] for row in rows] == [2]
    assert f"{study} --rows fast --seeds 2: the last selection used in {store}" in done.stderr
    assert [row["n"] for row in json.loads(call(store, "report", "--json", "--seeds", "1").stdout)] == [1]
    assert len(json.loads(call(store, "explain", "fast.accuracy_test", "--json").stdout)["runs"]) == 1
    assert "said, profile exact: 1 run: 1 finished" in call(store, "status").stdout
    call(store, "report", study)
    assert call(store, "explain", study, "base").stdout == call(store, "explain", "base").stdout


def test_study_and_store_can_be_moved_together(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call(folder / "store", "report", folder / "command.toml", "--seeds", "2")
    moved = folder.rename(folder.with_name("moved"))
    monkeypatch.chdir(moved)
    done = call(Path("store"), "report")
    assert "command.toml --seeds 2: the last selection" in done.stderr and "| base" in done.stdout


def test_another_users_entry_is_never_planned(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store from somebody else could name any module, which planning would import."""
    call(folder / "store", "report", folder / "command.toml")
    monkeypatch.setattr(trust, "_key", lambda: b"somebody else's key")
    with pytest.raises(UserError, match="another user or on another machine"):
        call(folder / "store", "report")
    assert "4 finished" in call(folder / "store", "status").stdout, "the queue needs none"
    call(folder / "store", "report", folder / "command.toml")
    assert "| base" in call(folder / "store", "report").stdout


@pytest.mark.parametrize("harm", ["{}", "no JSON", '{"version": 2, "study": "table3", "selectors": {}}'])
def test_a_file_that_says_nothing_is_no_last_selection(folder: Path, harm: str) -> None:
    (folder / "store" / FILE).write_text(harm)
    with pytest.raises(UserError, match="no last selection"):
        call(folder / "store", "report")
    assert "| base" in call(folder / "store", "report", folder / "command.toml").stdout


def test_a_store_that_cannot_be_written_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:  # tests may run as root, who may write everywhere
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("ablations.service.selected.write_json", refuse)
    assert "| base" in call(folder / "store", "report", folder / "command.toml").stdout
    assert not (folder / "store" / FILE).exists()


def test_what_explain_prints_is_what_set_takes(folder: Path) -> None:
    store, study = folder / "store", folder / "command.toml"
    lines = [line.strip() for line in call(store, "explain", study, "fast", "--full").stdout.splitlines()]
    assert lines.count("rate=5") == 2, "as changed from base, and in its configuration"
    assert "| fast" in call(store, "report", study, "--rows", "fast", "--set", "rate=5").stdout
