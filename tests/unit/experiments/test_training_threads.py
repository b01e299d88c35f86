"""The number of threads of a training is measured once, then pinned."""

import contextlib

import pytest
import torch

from experiments.attempt_context import AttemptContext
from experiments.config.run_config import RunConfig
from experiments.device_spec import DeviceSpec
from experiments.errors import Preempted
from experiments.run_spec import RunSpec
from experiments.store.checksummed import read_json, write_json
from experiments.store.spec import AttemptSpec
from experiments.tasks.translation import TASK
from experiments.training.threads import PASSES, fastest_threads

CONFIG = RunConfig.from_mapping(
    {
        "model": {"num_layers": 1, "d_model": 8, "d_ff": 8, "num_heads": 2, "d_k": 4, "d_v": 4},
        "data": {"vocab_size": 300, "builtin_pairs": 100},
        "training": {"tokens_per_batch": 400, "train_steps": 4, "precision": "fp32"},
    }
)


@pytest.mark.parametrize(
    ("seconds", "expected", "passes"),
    [
        ({1: 2.0, 4: 1.9}, 4, PASSES),
        ({1: 2.0, 4: 2.0}, 1, PASSES),
        ({1: 2.0, 4: 9.0}, 1, 2),
    ],
)
def test_several_threads_are_used_only_where_they_are_faster_than_one(seconds, expected, passes):
    used, now = [], [0.0]

    def compute():
        slow = 100.0 if len(used) <= 2 else 0.0  # the first pass of each builds kernels
        now[0] += seconds[used[-1]] + slow

    assert fastest_threads(4, compute, used.append, lambda: now[0]) == expected
    assert used == [*[1, 4] * (1 + passes), expected]


def test_one_outlier_decides_nothing():
    used, now = [], [0.0]

    def compute():
        now[0] += 50.0 if len(used) == 4 else 2.0 / used[-1]

    assert fastest_threads(2, compute, used.append, lambda: now[0]) == 2


def test_one_thread_is_not_measured():
    assert fastest_threads(1, lambda: pytest.fail("measured")) == 1


@pytest.fixture
def several_are_faster(monkeypatch):
    monkeypatch.setattr("experiments.tasks.train_network.fastest_threads", lambda most, compute: (compute(), 2)[1])


@pytest.fixture
def attempt(tmp_path, several_are_faster):
    """Train once in a folder of this name. Return the events and the number of threads at the end."""
    TASK.prepare(CONFIG, tmp_path, lambda *_: None)

    def train(name, threads=2, pinned=None, earlier=(), stop_at=99):
        folder, events, asked = tmp_path / name, [], []
        folder.mkdir()
        attempt = AttemptSpec(
            RunSpec("x", {}, TASK.inputs(CONFIG, tmp_path)), str(tmp_path), 1, DeviceSpec("cpu", threads),
            earlier=tuple(map(str, earlier)), pinned=pinned or {},
        )  # fmt: skip
        context = AttemptContext(
            attempt, folder, lambda kind, **fields: events.append({"kind": kind, **fields}),
            lambda: bool(asked.append(1)) or len(asked) >= stop_at,
        )  # fmt: skip
        try:
            with contextlib.suppress(Preempted):
                TASK.train(CONFIG, context)
        finally:
            used = torch.get_num_threads()
            torch.set_num_threads(1)
        return events, used

    return train


def pinned_in(events):
    return {k: v for event in events if event["kind"] == "pinned" for k, v in event.items()}


def test_a_resume_keeps_the_number_of_the_first_attempt_and_the_weights_are_equal(tmp_path, attempt):
    events, used = attempt("1")
    assert pinned_in(events)["training_threads"] == used == 2
    events, used = attempt("2", pinned={"training_threads": 1})
    assert pinned_in(events)["training_threads"] == used == 1
    assert "training_threads" not in pinned_in(attempt("3", threads=1)[0])
    weights = [(tmp_path / name / "final" / "model.safetensors").read_bytes() for name in ("2", "3")]
    assert weights[0] == weights[1], "measuring changes no number"


def test_a_resume_lists_other_threads_and_other_padded_shapes(tmp_path, attempt):
    events, _ = attempt("1", pinned={"micro_batch_tokens": 500, "shapes": [[20, 200, 200]]}, stop_at=2)
    pinned = pinned_in(events)
    [same] = [e for e in attempt("2", pinned=pinned, earlier=[tmp_path / "1"])[0] if e["kind"] == "resumed"]
    assert same["changed"] == {}
    pinned |= {"training_threads": 1, "micro_batch_tokens": 250, "shapes": []}
    [other] = [e for e in attempt("3", pinned=pinned, earlier=[tmp_path / "1"])[0] if e["kind"] == "resumed"]
    assert other["changed"] == {
        "training_threads": [2, 1], "micro_batch_tokens": [500, 250], "shapes": [[[20, 200, 200]], []],
    }  # fmt: skip
    meta = tmp_path / "1/checkpoints/step-00000002/meta.json"
    write_json(meta, {k: v for k, v in read_json(meta).items() if k not in ("training_threads", "shapes")})
    [earlier] = [e for e in attempt("4", pinned=pinned, earlier=[tmp_path / "1"])[0] if e["kind"] == "resumed"]
    assert earlier["changed"] == {"micro_batch_tokens": [500, 250]}, "version 0.1.0 saved no threads and no shapes"
