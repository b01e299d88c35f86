"""If one evaluation of a child fails, the others still run."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.attempt_context import AttemptContext
from experiments.child import run
from experiments.child.evaluations import Evaluations
from experiments.config.task_config import TaskConfig
from experiments.device_spec import DeviceSpec
from experiments.events.event_log import EventWriter, read_events
from experiments.identity import eval_identity, run_identity
from experiments.records import ChildExit
from experiments.run_spec import EvaluationSpec, RunSpec
from experiments.store.checksummed import write_json
from experiments.store.layout import Store
from experiments.store.results import TrainingResult
from experiments.store.spec import AttemptSpec
from experiments.tasks.load import load_task
from experiments.tasks.own.function import OwnTask

TRAINER = """
from dataclasses import dataclass
from ablations_task import column, task

@dataclass
class Settings:
    steps: int = 1

COLUMNS = [column("accuracy", name, set=name) for name in ("a", "b", "c")]

@task(Settings, columns=COLUMNS)
def TASK(settings, context):
    return {"a": {"accuracy": 1.0}, "b": {"loss": 2.0}, "c": {"accuracy": 3.0}}
"""


EDITS_ITSELF = """
from pathlib import Path
from dataclasses import dataclass
from ablations_task import column, task

@dataclass
class Settings:
    steps: int = 1

@task(Settings, columns=[column("accuracy", "accuracy")])
def TASK(settings, context):
    with Path(__file__).open("a") as text:
        text.write("Settings.steps = 2")
    return {"accuracy": 1.0}
"""


MOVES_THE_STORE = """
from pathlib import Path
from dataclasses import dataclass
from ablations_task import column, task

@dataclass
class Settings:
    steps: int = 1

@task(Settings, columns=[column("accuracy", "accuracy")])
def TASK(settings, context):
    store = Path(__file__).with_name("store")
    store.rename(store.with_name("moved"))
    if settings.steps:
        with context.checkpoint(1) as folder:
            (folder / "state").write_text("1")
    return {"accuracy": 1.0}
"""


def _attempt(folder: Path, module: str, trainer: str) -> tuple[Path, list[dict[str, Any]]]:
    """Return the folder with the spec, and the evaluations, of an attempt of that trainer."""
    (folder / f"{module}.py").write_text(trainer)
    name = f"{module}:TASK"
    task, store = load_task(name, str(folder)), Store.open(folder / "store")
    config = task.config_type.model_validate_json(json.dumps({"task": name}))
    run_id = run_identity(config, {})
    number, attempt = store.new_attempt(run_id)
    asked = [
        {
            "eval_id": eval_identity(run_id, s.settings, s.inputs),
            "set": s.set,
            "settings": s.settings,
            "inputs": {},
            "promised": list(s.promised),
        }
        for s in task.evaluations(config, store.root)
    ]
    spec = {
        "store": str(store.root), "run_id": run_id, "attempt": number, "task": name, "folder": str(folder),
        "config": config.model_dump(mode="json"), "inputs": {}, "train": True, "evaluations": asked,
        "device": {"kind": "cpu", "threads": 1},
    }  # fmt: skip
    write_json(attempt / "spec.json", spec)
    return attempt, asked


@pytest.mark.parametrize(
    ("returned", "cls", "words"),
    [
        ('{"loss": 2.0}', "user_error", "did not return accuracy"),
        ('{"accuracy": 1e999}', "diverged", "accuracy = infinity"),
    ],
)
@pytest.mark.process
def test_one_that_fails_is_the_attempts_failure_and_the_others_are_made(
    returned: str, cls: str, words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, asked = _attempt(tmp_path, "three_sets_of_a_test", TRAINER.replace('{"loss": 2.0}', returned))
    assert run.main(folder / "spec.json") == ChildExit.FAILED
    events = read_events(folder)
    assert [event["set"] for event in events if event["kind"] == "evaluated"] == ["a", "c"]
    [failed] = [event for event in events if event["kind"] == "failed"]
    assert words in failed["message"] and failed["cls"] == cls
    assert cls == "user_error" or "Traceback" not in capfd.readouterr().err, "its message says all"
    made = {path.parent.name for path in folder.glob("evaluations/*/result.json")}
    assert made == {item["eval_id"] for item in asked if item["set"] != "b"}


@pytest.mark.process
def test_code_that_is_edited_while_it_trains_is_recorded_as_edited(tmp_path: Path) -> None:
    folder, _ = _attempt(tmp_path, "edits_itself", EDITS_ITSELF)
    task = load_task("edits_itself:TASK", str(tmp_path))
    before = task.training_code(tmp_path)
    assert run.main(folder / "spec.json") == ChildExit.FINISHED
    assert task.training_code(tmp_path) != before
    [started] = [event for event in read_events(folder) if event["kind"] == "started"]
    result = TrainingResult.load(folder / "result.json")
    assert result and started["code_digest"] == result.code_digest == before
    assert result.code_files == {"edits_itself.py": "edited during the run"}
    assert task.changed_code(result, tmp_path) == ["edits_itself.py"]


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.process
def test_a_store_that_is_moved_meanwhile_stops_its_attempt_and_is_not_begun_again_at_its_old_place(
    steps: int, tmp_path: Path
) -> None:
    trainer = MOVES_THE_STORE.replace("steps: int = 1", f"steps: int = {steps}")
    folder, _ = _attempt(tmp_path, f"moves_{steps}", trainer)
    assert run.main(folder / "spec.json") == ChildExit.PREEMPTED
    [last] = read_events(tmp_path / "moved" / folder.relative_to(tmp_path / "store"))[-1:]
    assert last["kind"] == "preempted" and not (tmp_path / "store").exists()


@pytest.mark.process
def test_a_trainer_whose_log_is_on_a_full_disk_fails_for_its_own_reason(tmp_path: Path) -> None:
    trainer = MOVES_THE_STORE.replace("store = Path", "raise OSError(28, 'No space left on device')\n    store = Path")
    folder, _ = _attempt(tmp_path, "logs_to_a_full_disk", trainer)
    with Path("/dev/full").open("wb") as full:
        child = [sys.executable, "-m", "experiments.child.run", "--alone", str(folder / "spec.json")]
        done = subprocess.run(child, stdout=full, stderr=full, check=False)
    assert (done.returncode, read_events(folder)[-1]["cls"]) == (ChildExit.DISK_FULL, "disk_full")


class Failing(OwnTask):
    """A task whose evaluations all fail."""

    def __init__(self, error: Exception) -> None:
        super().__init__("failing", TaskConfig)
        self.error, self.tried = error, 0

    def train(self, *_: Any) -> dict[str, Any]:
        raise NotImplementedError

    def evaluate(self, *_: Any) -> dict[str, Any]:
        self.tried += 1
        raise self.error


def test_sets_of_one_content_are_evaluated_once(tmp_path: Path) -> None:
    class Scoring(Failing):
        def evaluate(self, *_: Any) -> dict[str, Any]:
            self.tried += 1
            return {"metrics": {"loss": 1.0}}

    store, task, events = Store.open(tmp_path / "store"), Scoring(ValueError()), EventWriter(tmp_path)
    attempt = AttemptSpec(RunSpec("a" * 16, {}, {}), str(store.root), 1, DeviceSpec())
    context = AttemptContext(attempt, tmp_path, lambda *_, **__: None, lambda: False)
    items = [EvaluationSpec(name, {}, {"set": "c" * 16}, eval_id="e" * 16) for name in ("dev", "test")]
    Evaluations(None, task, tmp_path, context, events, {"evaluate": "2-0"}).make(items, {})
    assert task.tried == 1
    assert [event["set"] for event in read_events(tmp_path) if event["kind"] == "evaluated"] == ["dev"]


@pytest.mark.parametrize("error", [MemoryError("all taken"), OSError(28, "No space left on device")])
def test_no_other_is_tried_where_it_could_only_fail_too(error: Exception, tmp_path: Path) -> None:
    store, task = Store.open(tmp_path / "store"), Failing(error)
    attempt = AttemptSpec(RunSpec("a" * 16, {}, {}), str(store.root), 1, DeviceSpec())
    context = AttemptContext(attempt, tmp_path, lambda *_, **__: None, lambda: False)
    items = [EvaluationSpec("dev", {}, {}, eval_id=str(number)) for number in range(3)]
    with pytest.raises(type(error)):
        Evaluations(None, task, tmp_path, context, EventWriter(tmp_path), {"evaluate": "2-0"}).make(items, {})
    assert task.tried == 1
