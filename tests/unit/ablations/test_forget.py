"""`ablations forget` moves complete runs aside or states why they stay. Runs that are moved back count again."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ablations.cli.main import app
from ablations.service import forget as forgetting
from ablations.service.selected import Selectors, choose
from experiments.errors import UserError
from experiments.store.layout import Store
from tests.small_tables import COMMAND, finish, write_study


def call(store: Path, *words: str | Path, typed: str | None = None) -> Result:
    done = CliRunner().invoke(app, [*map(str, words), "--store", str(store)], input=typed)
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    finish(write_study(folder, "command"), folder / "store", seeds=2)
    shutil.copytree(folder / "store", folder / "untracked")
    call(folder / "store", "ui", "--rebuild", "mlflow")
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "copy")


def states(folder: Path, study: str = "command.toml") -> list[str]:
    return [run.state for run in choose(str(folder / study), Selectors(store=folder / "store", seeds=2)).plan.runs]


def tracked(store: Path) -> set[str]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{store}/mlflow.db")
    found = client.search_runs([e.experiment_id for e in client.search_experiments()])
    return {run.data.tags["run_id"] for run in found if "run_id" in run.data.tags}


def test_it_asks_and_moves_and_what_is_moved_back_is_as_it_was(folder: Path) -> None:
    store, study = folder / "store", folder / "command.toml"
    before = call(store, "report", study, "--seeds", "2", "--json").stdout
    part = ("forget", study, "--rows", "fast", "--seeds", "2")
    assert "nothing was changed" in call(store, *part, typed="n\n").stdout and states(folder) == ["finished"] * 4
    with pytest.raises(UserError, match="--yes"):  # a script without a terminal gives no answer
        call(store, *part, typed="")
    assert states(folder) == ["finished"] * 4
    ids = {run_id for row in json.loads(before) if row["row"] == "fast" for run_id in row["run_ids"]}
    said = call(store, *part, typed="y\n").stdout
    assert all(f"{run_id} said fast, finished" in said for run_id in ids) and "Move 2 runs to" in said
    assert states(folder) == ["finished"] * 2 + ["missing"] * 2
    assert {path.name for path in (store / "forgotten").iterdir()} == ids
    assert len(tracked(store)) == 2 and not tracked(store) & ids
    assert "2 finished" in call(store, "status").stdout, "the queue has forgotten them too"
    [table] = json.loads(call(store, "tables", "--json").stdout)
    assert (table["rows"], table["runs"]) == (["base"], 2)
    assert f"move its folder to {store / 'runs'}" in said
    for path in (store / "forgotten").iterdir():
        path.rename(store / "runs" / path.name)
    assert call(store, "report", study, "--seeds", "2", "--json").stdout == before


def test_nothing_moves_while_somebody_works(folder: Path) -> None:
    with Store.open(folder / "store").coordinator_lock(), pytest.raises(UserError, match="already worked on"):
        call(folder / "store", "forget", folder / "command.toml", "--yes")
    assert states(folder) == ["finished"] * 4


@pytest.mark.process
def test_run_writes_to_mlflow_what_a_killed_coordinator_could_not(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words, database = ("run", folder / "command.toml", "--seeds", "2"), folder / "untracked" / "mlflow.db"
    database.mkdir()  # it cannot be opened, which is said once
    call(folder / "untracked", *words)
    assert [line[:27] for line in caplog.messages] == ["MLflow could not be written", "Runs not up to date in MLfl"]
    database.rmdir()
    assert "nothing to train" in call(folder / "untracked", *words).stderr
    assert tracked(folder / "untracked") == tracked(folder / "store")


class Killed(BaseException):
    """A simulated end of the process, at one of its steps."""


def test_a_killed_command_is_completed_by_the_same_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = folder / "store"
    words = ("forget", folder / "command.toml", "--seeds", "2", "--yes")
    original, count = forgetting.put_aside, iter(range(9))

    def move(*given: object) -> object:
        if next(count) == 2:
            raise Killed
        return original(*given)

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(forgetting, original.__name__, move)
        call(store, *words)
    call(store, *words)
    assert states(folder) == ["missing"] * 4 and tracked(store) == set()


@pytest.mark.process
def test_what_another_study_shows_stays_unless_it_is_named(tmp_path: Path) -> None:
    study = write_study(tmp_path, "command")
    other = COMMAND.replace('name = "said"', 'name = "other"').replace("rate = 5", "rate = 7")
    (tmp_path / "other.toml").write_text(other)
    finish(study, tmp_path / "store")
    call(tmp_path / "store", "queue", tmp_path / "other.toml")  # its base is trained, and only its other row waits
    shared, fast = (run.run_id for run in choose(str(study), Selectors(store=tmp_path / "store")).plan.runs)
    done = call(tmp_path / "store", "forget", study, "--yes")
    assert "1 run moved" in done.stdout and states(tmp_path)[0] == "finished"
    assert f"{shared} stays" in done.stderr and "other (exact)" in done.stderr
    assert "1 run moved" in call(tmp_path / "store", "forget", "--run", shared[:8], "--yes").stdout
    assert {path.name for path in (tmp_path / "store" / "forgotten").iterdir()} == {shared, fast}


@pytest.mark.process
def test_only_what_is_no_longer_in_the_study(tmp_path: Path) -> None:
    study = write_study(tmp_path, "command")
    finish(study, tmp_path / "store")
    study.write_text(study.read_text().replace('key = "fast"', 'key = "faster"').replace("rate = 5", "rate = 7"))
    assert "1 run moved" in call(tmp_path / "store", "forget", study, "--gone", "--yes").stdout
    assert states(tmp_path)[0] == "finished"
    assert [table["note"] for table in json.loads(call(tmp_path / "store", "tables", "--json").stdout)] == [""]


@pytest.mark.process
def test_a_run_trained_again_since_is_put_aside_beside_the_first(folder: Path) -> None:
    store, study = folder / "store", folder / "command.toml"
    for _ in range(2):
        call(store, "forget", study, "--rows", "fast", "--yes")
        finish(study, store)
    assert len(list((store / "forgotten").iterdir())) == 2, "neither is lost"


def test_a_name_is_needed(folder: Path) -> None:
    for words in ((), (folder / "command.toml", "--run", "0123")):
        with pytest.raises(UserError, match="name a study"):
            call(folder / "store", "forget", *words)
    with pytest.raises(UserError, match=r"no run in .* begins with it"):
        call(folder / "store", "forget", "--run", "ffffffffffffffff")
