"""Tests of `ablations tables`: a store's tables, and the nearest selection that has results."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ablations.cli.main import app
from experiments.errors import UserError
from tests.small_tables import commands_finished, finish, write_study


def call(store: Path, *words: str | Path) -> Result:
    done = CliRunner().invoke(app, [*map(str, words), "--store", str(store)])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def listed(store: Path) -> list[dict[str, Any]]:
    return json.loads(call(store, "tables", "--json").stdout)  # type: ignore[no-any-return]


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.fixture(scope="module")
def made() -> Path:
    return commands_finished()


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """Return a folder with a study and the store to which it was queued."""
    return shutil.copytree(made, tmp_path / "copy")


class TestTables:
    def test_a_table_is_listed_with_its_state(self, folder: Path) -> None:
        (table,) = listed(folder / "store")
        assert (table["study"], table["profile"], table["rows"]) == ("said", "exact", ["base", "fast"])
        assert (table["runs"], table["finished"], table["state"], table["in_study"]) == (4, 4, "complete", True)
        assert table["changed"] > 1.7e9
        line = call(folder / "store", "tables").stdout.splitlines()[1].split()
        assert line[:5] == ["said", "exact", "2", "4", "complete"]

    @pytest.mark.process
    def test_without_the_queue_the_runs_themselves_tell_it(self, folder: Path) -> None:
        (folder / "store" / "queue.db").unlink()
        (table,) = listed(folder / "store")
        assert (table["runs"], table["state"], table["in_study"]) == (4, "complete", None)
        assert table["note"] == "its study was not found"

    def test_what_waits_and_was_cancelled_is_said(self, folder: Path) -> None:
        call(folder / "store", "queue", folder / "command.toml", "--seeds", "3")
        call(folder / "store", "cancel", "fast:3")
        (table,) = listed(folder / "store")
        assert table["state"] == "4 of 6, 1 waiting, 1 cancelled"

    @pytest.mark.process
    def test_a_removed_row_and_other_settings_are_marked(self, made: Path, tmp_path: Path) -> None:
        """The study is that beside which the runs were queued, so this test has one of its own."""
        study, store = write_study(tmp_path, "command"), tmp_path / "store"
        finish(study, store)
        edit(study, "set = {rate = 5}", "set = {rate = 7}")
        found = {table["note"]: (table["rows"], table["in_study"]) for table in listed(store)}
        assert found == {
            "": (["base"], True),
            "trained with other settings: rate=5": (["fast"], False),
        }
        edit(study, 'key = "fast"', 'key = "faster"')
        lines = call(store, "tables").stdout.splitlines()
        assert sum(line.endswith("no longer in the study") for line in lines) == 1
        assert "no longer in the study: 1 run of fast" in call(store, "status", study).stdout


class TestTheNearestSelectionWithResults:
    @pytest.mark.process
    def test_it_can_be_pasted(self, tmp_path: Path) -> None:
        study, store = write_study(tmp_path, "command"), tmp_path / "store"
        finish(study, store)
        edit(study, "rate = 3\n", "rate = 4\n")
        done = call(store, "report", study, "--rows", "base", "--json")
        assert json.loads(done.stdout)[0]["accuracy_test"] is None
        assert "1 finished run of said exists with rate = 3: add --set rate=3, or write `ablations" in done.stderr
        pasted = shlex.split(done.stderr.rpartition("`ablations ")[2].partition("`")[0])
        again = CliRunner().invoke(app, [*pasted, "--json"])
        assert [row["accuracy_test"] for row in json.loads(again.stdout)] == [3.0]
        with pytest.raises(UserError, match=r"Not trained .* add --set rate=3"):
            call(store, "evaluate", study, "--rows", "base")

    @pytest.mark.process
    def test_only_rows_that_its_settings_allow_are_named(self, tmp_path: Path) -> None:
        study, store = write_study(tmp_path, "command"), tmp_path / "store"
        finish(study, store)
        edit(study, "rate = 3\n", "rate = 4\n")
        edit(study, "set = {rate = 5}", "set = {rate = 6}")  # with --set rate=… this row would equal base
        said = call(store, "report", study).stderr
        assert "exists with rate = 3: add --rows base --set rate=3, or write" in said

    def test_what_was_typed_and_has_none_is_left_out(self, folder: Path) -> None:
        done = call(folder / "store", "report", folder / "command.toml", "--set", "rate=9", "--rows", "base")
        assert "1 finished run of said exists with the study's own settings: `ablations report" in done.stderr
        assert "--rows base" in done.stderr and "rate" not in done.stderr
        with pytest.raises(UserError, match=r"nothing to draw.* `ablations report"):
            call(
                folder / "store",
                "report",
                folder / "command.toml",
                "--figures",
                "pdf",
                "--set",
                "rate=9",
                "--rows",
                "base",
            )

    def test_where_there_are_results_nothing_is_said(self, folder: Path) -> None:
        assert "has no run of this selection" not in call(folder / "store", "report", folder / "command.toml").stderr
