"""The child's evaluations: one that cannot be made keeps no other from being made."""

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.child import run
from experiments.child.evaluations import evaluate_all
from experiments.config import DeviceSpec, TaskConfig, eval_identity, run_identity
from experiments.events.event_log import EventWriter, read_events
from experiments.records import ChildExit
from experiments.store.layout import Store
from experiments.store.sealed import write_json
from experiments.store.spec import EvaluationRequest
from experiments.tasks.base import Context
from experiments.tasks.load import load_task
from experiments.tasks.own.function import OwnTask

TRAINER = """
from dataclasses import dataclass
from experiments.tasks.own.function import column, task

@dataclass
class Settings:
    steps: int = 1

COLUMNS = [column("accuracy", name, set=name) for name in ("a", "b", "c")]

@task(Settings, columns=COLUMNS)
def TASK(settings, context):
    return {"a": {"accuracy": 1.0}, "b": {"loss": 2.0}, "c": {"accuracy": 3.0}}
"""


def test_one_that_fails_is_the_attempts_failure_and_the_others_are_made(tmp_path: Path) -> None:
    (tmp_path / "three_sets_of_a_test.py").write_text(TRAINER)
    name = "three_sets_of_a_test:TASK"
    task, store = load_task(name, str(tmp_path)), Store.open(tmp_path / "store")
    config = task.config_type.model_validate_json(json.dumps({"task": name}))
    run_id = run_identity(config, {})
    number, folder = store.new_attempt(run_id)
    specs = task.evaluations(config, store.root)
    asked = [
        {"eval_id": eval_identity(run_id, s.settings, s.inputs), "set": s.set, "settings": s.settings, "inputs": {}}
        for s in specs
    ]
    spec = {
        "store": str(store.root), "run_id": run_id, "attempt": number, "task": name, "folder": str(tmp_path),
        "config": config.model_dump(mode="json"), "inputs": {}, "train": True, "evaluations": asked,
        "device": {"kind": "cpu", "threads": 1},
    }  # fmt: skip
    write_json(folder / "spec.json", spec)
    assert run.main(folder / "spec.json") == ChildExit.FAILED
    events = read_events(folder)
    assert [event["set"] for event in events if event["kind"] == "evaluated"] == ["a", "c"]
    [failed] = [event for event in events if event["kind"] == "failed"]
    assert "the trainer did not return it" in failed["message"] and failed["cls"] == "user_error"
    made = {path.parent.name for path in folder.glob("evaluations/*/result.json")}
    assert made == {item["eval_id"] for item in asked if item["set"] != "b"}


class Failing(OwnTask):
    """A task of which no evaluation can be made."""

    def __init__(self, error: Exception) -> None:
        super().__init__(dict, TaskConfig)  # type: ignore[arg-type]
        self.error, self.tried = error, 0

    def evaluate(self, *_: Any) -> dict[str, Any]:
        self.tried += 1
        raise self.error


@pytest.mark.parametrize("error", [MemoryError("all taken"), OSError(28, "No space left on device")])
def test_no_other_is_tried_where_it_could_only_fail_too(error: Exception, tmp_path: Path) -> None:
    store, task = Store.open(tmp_path / "store"), Failing(error)
    context = Context(store.root, "a" * 16, tmp_path, {}, DeviceSpec(), lambda *_, **__: None, lambda: False)
    items = [EvaluationRequest(str(number), "dev", {}, {}) for number in range(3)]
    with pytest.raises(type(error)):
        evaluate_all(items, None, task, tmp_path, context, EventWriter(tmp_path))
    assert task.tried == 1
