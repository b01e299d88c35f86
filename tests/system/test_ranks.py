"""A run trained by several processes has the numbers of one process, resumes exactly and reports failures."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.config.run_config import RunConfig
from experiments.device_spec import DeviceSpec
from experiments.events.event_log import read_events
from experiments.identity import PROBE_ID, ParentRun, with_parent_run
from experiments.run_spec import RunSpec
from experiments.store.checksummed import write_json
from experiments.store.layout import Store
from experiments.store.spec import AttemptSpec
from experiments.tasks.translation import TASK
from experiments.training.checkpoint import load_weights

from .conftest import environment

SETTINGS: dict[str, Any] = {
    "model": {"num_layers": 1, "d_model": 16, "d_ff": 32, "num_heads": 2, "d_k": 8, "d_v": 8},
    "data": {"vocab_size": 300, "builtin_pairs": 400},
    "training": {"train_steps": 24, "warmup_steps": 20, "tokens_per_batch": 500, "precision": "fp32",
                 "checkpoint_steps": 4, "keep_checkpoints": 30, "learning_rate_scale": 0.1},
}  # fmt: skip
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store.open(tmp_path_factory.mktemp("store"))
    TASK.prepare(RunConfig(**SETTINGS), store.root, lambda *_: None)
    return store


def _start(
    store: Store, name: str, ranks: int, earlier: str = "", parent_run: ParentRun | None = None, **changes: Any
) -> "subprocess.Popen[bytes]":
    settings = {**SETTINGS, **changes}
    config = RunConfig(**settings)
    inputs = (
        with_parent_run(TASK.inputs(config, store.root), parent_run) if parent_run else TASK.inputs(config, store.root)
    )
    folder = store.root / "runs" / name / "attempts" / "1"
    folder.mkdir(parents=True)
    spec = {
        "store": str(store.root), "run_id": PROBE_ID, "attempt": 1, "task": "translation",
        "config": config.model_dump(mode="json"), "inputs": inputs, "train": True,
        "evaluations": [], "device": {"kind": "cpu", "threads": 1, "memory_gb": None, "count": ranks},
        "earlier": [f"runs/{earlier}/attempts/1"] if earlier else [],
    }  # fmt: skip
    write_json(folder / "spec.json", spec)
    with (folder / "log.txt").open("wb") as log:
        command = [sys.executable, "-m", "experiments.child.run", str(folder / "spec.json")]
        return subprocess.Popen(command, env=environment(), stdout=log, stderr=log, start_new_session=True)


def _folder(store: Store, name: str) -> Path:
    return store.root / "runs" / name / "attempts" / "1"


def _finished(store: Store, name: str, process: "subprocess.Popen[bytes]") -> list[dict[str, Any]]:
    assert process.wait(300) == 0, (_folder(store, name) / "log.txt").read_text()
    return read_events(_folder(store, name))


def _wait_for(kind: str, store: Store, name: str, process: "subprocess.Popen[bytes]") -> None:
    """Wait until a running attempt has written an event of this kind."""
    deadline = time.monotonic() + 300
    while not any(e["kind"] == kind for e in read_events(_folder(store, name))):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)


def _losses(events: list[dict[str, Any]]) -> dict[int, float]:
    return {e["step"]: e["metrics"]["loss"] for e in events if e["kind"] == "metrics" and e["step"] % 10 == 0}


def test_two_processes_train_as_one(store: Store) -> None:
    still = {"model": {**SETTINGS["model"], "dropout": 0.0}}
    alone, together = (_start(store, f"{n}-ranks", n, **still) for n in (1, 2))
    curves = [_losses(_finished(store, f"{n}-ranks", process)) for n, process in ((1, alone), (2, together))]
    assert list(curves[0]) == list(curves[1]) == [10, 20]
    assert curves[1] == pytest.approx(curves[0], rel=1e-5)
    results = [json.loads((_folder(store, f"{n}-ranks") / "result.json").read_text()) for n in (1, 2)]
    assert [result["devices"] for result in results] == [1, 2]
    assert results[0]["target_tokens"] == results[1]["target_tokens"], "the same pairs in the same steps"
    one, two = (load_weights(_folder(store, f"{n}-ranks") / "final") for n in (1, 2))
    for name, tensor in one.items():
        # a key's bias does not change the softmax, so its gradient is noise
        if not name.endswith(("qkv.bias", "key_value.bias")):
            torch.testing.assert_close(two[name], tensor, rtol=1e-3, atol=1e-4)


OTHERS = {"optimizer": "muon", "schedule": "plateau", "learning_rate": 0.5, "eval_steps": 4, "plateau_patience": 0}


# Nightly for both optimizers. The test of a branch below also uses Adam.
@pytest.mark.nightly
@pytest.mark.parametrize("choices", [pytest.param({}, id="adam"), pytest.param(OTHERS, id="muon")])
def test_three_ranks_killed_and_resumed_equal_three_undisturbed(store: Store, choices: dict[str, Any]) -> None:
    changes = {"training": {**SETTINGS["training"], **choices}}
    straight, broken, resumed = (f"{word}{len(choices)}" for word in ("straight", "killed", "resumed"))
    whole = _finished(store, straight, _start(store, straight, 3, **changes))
    killed = _start(store, broken, 3, **changes)
    _wait_for("checkpoint", store, broken, killed)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert not (_folder(store, broken) / "final").exists(), "it was killed on the way"
    events = _finished(store, resumed, _start(store, resumed, 3, earlier=broken, **changes))
    assert [e["step"] > 0 for e in events if e["kind"] == "resumed"] == [True]
    for file in ("model.safetensors", "optimizer.safetensors"):
        path = f"checkpoints/step-00000024/{file}"
        assert (_folder(store, resumed) / path).read_bytes() == (_folder(store, straight) / path).read_bytes()
    if choices:
        dev = [e["metrics"]["dev_perplexity"] for e in whole if "dev_perplexity" in e.get("metrics", {})]
        lowest = [min(dev[: number + 1]) for number in range(len(dev))]
        worse = sum(one >= best for one, best in zip(dev[1:-1], lowest[:-2], strict=True))
        rates = {e["step"]: e["metrics"]["learning_rate"] for e in whole if "loss" in e.get("metrics", {})}
        assert worse and rates[24] == 0.5 * 0.5**worse


@pytest.mark.nightly
def test_a_branch_by_three_ranks_equals_an_undisturbed_run(store: Store) -> None:
    """Every rank starts with the parent run's state."""
    parent_run, name = "ab" * 8, f"{0xBEA:016x}"
    short = {"training": {**SETTINGS["training"], "train_steps": 12}}
    _finished(store, parent_run, _start(store, parent_run, 3, **short))
    _folder(store, parent_run).rename(store.attempt_folder(parent_run, 1))  # the folder in which a coordinator puts it
    whole = _finished(store, "unbranched", _start(store, "unbranched", 3))
    events = _finished(store, name, _start(store, name, 3, parent_run=ParentRun(parent_run, 12)))
    assert [e["step"] for e in events if e["kind"] == "branched"] == [12]
    assert _losses(events) == {step: loss for step, loss in _losses(whole).items() if step > 12}
    for file in ("model.safetensors", "optimizer.safetensors"):
        path = f"checkpoints/step-00000024/{file}"
        assert (_folder(store, name) / path).read_bytes() == (_folder(store, "unbranched") / path).read_bytes()


def test_a_rank_that_is_killed_ends_the_run_likewise(store: Store) -> None:
    long = {"training": {**SETTINGS["training"], "train_steps": 1_000_000}}
    process = _start(store, "bereft", 2, **long)
    _wait_for("metrics", store, "bereft", process)
    [other] = [int(p) for p in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    os.kill(other, signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL, "the run counts as killed, and is resumed"
    assert not [e for e in read_events(_folder(store, "bereft")) if e["kind"] == "failed"]


def test_a_ranks_own_failure_is_the_runs(tmp_path: Path) -> None:
    AttemptSpec(RunSpec(PROBE_ID, {"task": "nonsense"}, {}), str(tmp_path), 1, DeviceSpec()).write(tmp_path)
    program = f"""
import pathlib, time
from experiments.events.event_log import EventWriter
from experiments.child.run import RankProcesses
folder = pathlib.Path({str(tmp_path)!r})
others = RankProcesses(folder, 2, 1, EventWriter(folder).emit)
time.sleep(240)  # as in a call that rank 1 would have to answer
"""
    stuck = subprocess.run([sys.executable, "-c", program], env=environment(), timeout=240, check=False)
    assert stuck.returncode == 1
    [failed] = read_events(tmp_path)
    assert (failed["kind"], failed["cls"]) == ("failed", "user_error")
    assert failed["message"].startswith("Rank 1: There is no task 'nonsense'")


@pytest.mark.nightly
def test_a_stop_reaches_all_ranks(store: Store) -> None:
    long = {"training": {**SETTINGS["training"], "train_steps": 1_000_000, "checkpoint_steps": 1_000_000}}
    process = _start(store, "stopped", 2, **long)
    _wait_for("metrics", store, "stopped", process)
    process.terminate()
    assert process.wait(60) == 3
    events = read_events(_folder(store, "stopped"))
    assert [e["kind"] for e in events[-2:]] == ["checkpoint", "preempted"]
    assert events[-1]["step"] == events[-2]["step"]
