"""Metrics reported by a user's trainer: their names replace no field of an event, and bad numbers give a message."""

import json
import math
import sys
from types import SimpleNamespace

import pytest

from experiments.client.ablations_task import RunContext, UserError
from experiments.config import DeviceSpec
from experiments.events.event_log import EventWriter, Tail
from experiments.events.kinds import LAST_STEP
from experiments.tasks.base import Context
from experiments.tasks.own.context import open_context
from experiments.tasks.own.shell import read_metrics, run_command

RESERVED = ["t", "kind", "self", "format", "crc", "metrics", "path", "pid"]


@pytest.fixture
def context(tmp_path):
    writer = EventWriter(tmp_path)
    return Context(tmp_path, "a" * 16, tmp_path, {}, DeviceSpec("cpu", 1), writer.emit, lambda: False)


def trainers(context):
    """The context that a trainer gets; its messages reach the harness's side without a process between them."""
    channel = SimpleNamespace(say=open_context(context, 1).emit)
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
    ended = run_command(f"{sys.executable} {script}", {"seed": 1}, tmp_path, context)
    [first, fifth, sixth] = points(tmp_path)
    assert (first, fifth) == ((3, numbers), (5, {"other": 1.0}))
    assert sixth[0] == 6 and math.isnan(sixth[1]["loss"])
    assert read_metrics(ended, None, "the command") == {"accuracy": 93.5}


@pytest.mark.parametrize("step", [-1, LAST_STEP + 1, "three", None, math.nan, math.inf])
def test_a_step_that_is_none_is_refused_in_words(context, step):
    own = trainers(context)
    with pytest.raises(UserError, match="step"):
        own.log(step, loss=1.0)
    with pytest.raises(UserError, match="step"), own.checkpoint(step):
        pass


@pytest.mark.parametrize("value", ["no number", None, 10**400, [1.0]])
def test_a_number_that_is_none_is_refused_in_words(context, value):
    with pytest.raises(UserError, match="loss"):
        trainers(context).log(1, loss=value)


def test_progress_of_any_kind_of_number(context, tmp_path):
    trainers(context).progress("reading", 3, 8)
    [event] = Tail(tmp_path).read()
    assert (event["what"], event["done"], event["total"]) == ("reading", 3.0, 8.0)
