"""A user's metric names cannot replace fields of an event, and invalid numbers give a message."""

import json
import math
import sys
from functools import partial
from types import SimpleNamespace

import pytest

from experiments import errors
from experiments.attempt_context import AttemptContext
from experiments.client.ablations_task import RunContext, UserError
from experiments.device_spec import DeviceSpec
from experiments.events.event_log import EventWriter, Tail
from experiments.events.lines import LAST_STEP
from experiments.run_spec import EvaluationSpec, RunSpec, TrainerSpec
from experiments.store.checksummed import read_json
from experiments.store.spec import AttemptSpec
from experiments.tasks.load import load_task
from experiments.tasks.own.context import report
from experiments.tasks.own.patterns import Readings
from experiments.tasks.own.shell import run_command
from experiments.tasks.own.trainer_output import metrics_in_file

RESERVED = ["t", "kind", "self", "format", "crc", "metrics", "path", "pid"]


@pytest.fixture
def context(tmp_path):
    writer = EventWriter(tmp_path)
    attempt = AttemptSpec(RunSpec("a" * 16, {}, {}), str(tmp_path), 1, DeviceSpec("cpu", 1))
    return AttemptContext(attempt, tmp_path, writer.emit, lambda: False)


def trainers(context):
    """Return a trainer's context whose messages reach the harness without a separate process."""
    channel = SimpleNamespace(say=partial(report, context))
    return RunContext(1, "cpu", 1, context.folder, None, channel)


def points(folder):
    tail = Tail(folder)
    found = [(event["step"], event["metrics"]) for event in tail.read() if event["kind"] == "metrics"]
    assert tail.damaged == 0
    return found


def test_a_function_may_call_its_numbers_as_it_likes(context, tmp_path):
    own = trainers(context)
    numbers = {name: float(place) for place, name in enumerate(RESERVED)}
    own.log(3, **numbers)
    own.log(step=4, loss=1)
    own.facts(**{"self": 1, "kind": 2})
    assert points(tmp_path) == [(3, numbers), (4, {"loss": 1.0})]


@pytest.mark.process
def test_a_command_may_call_its_numbers_as_it_likes(context, tmp_path):
    numbers = {name: float(place) for place, name in enumerate(RESERVED)}
    script = tmp_path / "train.py"
    lines = [
        {"step": 3, **numbers}, {"step": LAST_STEP + 1, "loss": 1}, {"step": -1, "loss": 1}, {"step": True, "loss": 1},
        {"step": 5, "loss": 10**400, "other": 1}, {"step": 6, "loss": math.nan}, {"accuracy": 93.5, "huge": 10**400},
    ]  # fmt: skip
    script.write_text("".join(f"print({json.dumps(line)!r})\n" for line in lines) + "print('{\"a\":' * 5000)\n")
    ended = run_command(f"{sys.executable} {script}", {"seed": 1}, tmp_path, context, Readings([], "", context.emit))
    [first, fifth, sixth] = points(tmp_path)
    assert (first, fifth) == ((3, numbers), (5, {"other": 1.0}))
    assert sixth[0] == 6 and math.isnan(sixth[1]["loss"])
    assert ended.metrics == {"accuracy": 93.5}


MANY = {f"m{number}": 1.0 for number in range(12_000)} | {"x" * 251: 1.0, "half \udc80": 2.0, "a": 3.0}
FUNCTION = """
import json
from dataclasses import dataclass
from ablations_task import column, task
@dataclass
class Settings:
    n: int = 1
@task(Settings, columns=[column("a")])
def TASK(settings, context):
    lines = [json.loads(line) for line in open(__file__.replace("many.py", "metrics"))]
    for line in lines[:-1]:
        context.log(**line)
    return lines[-1]
"""


@pytest.mark.process
@pytest.mark.parametrize("kind", ["function", "command"])
def test_a_trainer_may_report_any_number_of_metrics_with_any_name(context, tmp_path, kind):
    """All are kept; a record has few enough, those of the table among them. Half a character is written in ASCII."""
    lines = [{"step": 1, **MANY}, {"step": 2, "half \ud800": 2.0}, MANY]
    (tmp_path / "metrics").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (tmp_path / "many.py").write_text(FUNCTION)
    task = load_task("many:TASK" if kind == "function" else "command", str(tmp_path))
    if kind == "command":
        task = task.with_settings({}, TrainerSpec("cat metrics"))
    config = task.config_type()
    task.train(config, context)
    [(_, first), second] = points(tmp_path)
    assert len(first) == 1000 and second == (2, {"half \\ud800": 2.0})
    assert read_json(tmp_path / "final" / "metrics.json")[""].keys() > {"x" * 251, "m11999", "half \\udc80"}
    record = task.evaluate(config, EvaluationSpec("test", {"set": "test"}, {}, ("a",)), tmp_path, tmp_path, context)
    assert len(record["metrics"]) == 10_000 and record["metrics"]["a"] == 3.0


def test_a_file_of_metrics_that_no_trainer_means_is_refused(tmp_path):
    with (tmp_path / "metrics.out").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(errors.UserError, match=r"1,099,511,627,776 bytes: at most 67,108,864"):
        metrics_in_file(tmp_path / "metrics.out")


@pytest.mark.parametrize("step", [-1, LAST_STEP + 1, pytest.param(10**5000, id="5,000 digits"), "three", math.nan])
def test_a_step_that_is_none_is_refused_in_words(context, step):
    own = trainers(context)
    with pytest.raises(UserError, match="step"):
        own.log(step, loss=1.0)
    with pytest.raises(UserError, match="step"), own.checkpoint(step):
        pass


@pytest.mark.parametrize("value", ["no number", None, 10**400, pytest.param(10**5000, id="5,000 digits"), [1.0]])
def test_a_number_that_is_none_is_refused_in_words(context, value):
    with pytest.raises(UserError, match="loss"):
        trainers(context).log(1, loss=value)


def test_progress_of_any_kind_of_number(context, tmp_path):
    trainers(context).progress("reading", 3, 8)
    [event] = Tail(tmp_path).read()
    assert (event["what"], event["done"], event["total"]) == ("reading", 3.0, 8.0)
