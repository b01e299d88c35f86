"""If data files of a user's trainer (`reads=`) differ from those that were planned, the run fails."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from experiments.child import run
from experiments.events.event_log import read_events
from experiments.records import ChildExit
from experiments.store.checksummed import read_json, write_json
from experiments.store.layout import Store
from experiments.tasks.load import load_task

TRAINER = """
from dataclasses import dataclass
from pathlib import Path
from ablations_task import column, task

HERE = Path(__file__).parent

@dataclass
class Settings:
    edit: str = ""

@task(Settings, columns=[column("lines")], reads=lambda settings: sorted(HERE.glob("*.csv")))
def TASK(settings, context):
    lines = sum(len(path.read_text().split()) for path in HERE.glob("*.csv"))
    if settings.edit:
        (HERE / settings.edit).write_text("d e")
    return {"lines": lines}
"""


@dataclass
class Planned:
    """An attempt before its start. `end` runs it and returns its exit code and the failure's message."""

    data: Path
    spec: Path

    def end(self) -> tuple[int, str]:
        code = run.main(self.spec)
        failed = [event for event in read_events(self.spec.parent) if event["kind"] == "failed"]
        assert all(event["cls"] == "user_error" for event in failed)
        return code, failed[0]["message"] if failed else ""

    @property
    def results(self) -> list[Path]:
        return [*self.spec.parent.rglob("result.json"), *self.spec.parent.rglob("metrics.json")]


@pytest.fixture
def planned(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], Planned]:
    def make(edit: str = "") -> Planned:
        name = f"reading_{abs(hash(request.node.name))}"
        (tmp_path / f"{name}.py").write_text(TRAINER)
        (tmp_path / "a.csv").write_text("a b c")
        (tmp_path / "b.csv").write_text("x")
        task, store = load_task(f"{name}:TASK", str(tmp_path)), Store.open(tmp_path / "store")
        config = task.config_type.model_validate_json(json.dumps({"task": f"{name}:TASK", "edit": edit}))
        run_id, inputs = "0" * 16, task.inputs(config, store.root)
        number, folder = store.new_attempt(run_id)
        spec = {
            "store": str(store.root), "run_id": run_id, "attempt": number, "task": config.task,
            "folder": str(tmp_path), "config": config.model_dump(mode="json"), "inputs": inputs, "train": True,
            "evaluations": [], "device": {"kind": "cpu", "threads": 1},
        }  # fmt: skip
        write_json(folder / "spec.json", spec)
        return Planned(tmp_path, folder / "spec.json")

    return make


@pytest.mark.process
def test_files_that_stay_as_they_are(planned: Callable[[str], Planned]) -> None:
    attempt = planned("")
    assert attempt.end() == (ChildExit.FINISHED, "")
    assert read_json(next(p for p in attempt.results if p.name == "metrics.json")) == {"": {"lines": 4}}


def _edit(folder: Path) -> None:
    (folder / "a.csv").write_text("a b d")


def _add(folder: Path) -> None:
    (folder / "c.csv").write_text("new")


def _remove(folder: Path) -> None:
    (folder / "b.csv").unlink()


@pytest.mark.parametrize(("change", "name"), [(_edit, "{}/a.csv"), (_add, "{}/c.csv"), (_remove, "1-b.csv")])
@pytest.mark.process
def test_a_change_before_the_start_is_refused(
    planned: Callable[[str], Planned], change: Callable[[Path], None], name: str
) -> None:
    attempt = planned("")
    change(attempt.data)
    code, message = attempt.end()
    assert (
        code == ChildExit.FAILED
        and name.format(attempt.data) in message
        and "changed after the run was planned" in message
    )
    assert not attempt.results


@pytest.mark.parametrize("name", ["a.csv", "c.csv"])
@pytest.mark.process
def test_a_change_while_it_trains_leaves_no_result(planned: Callable[[str], Planned], name: str) -> None:
    attempt = planned(name)
    code, message = attempt.end()
    assert code == ChildExit.FAILED and name in message and "changed while the run trained" in message
    assert not attempt.results
