"""A training process killed without warning, three times, leaves the numbers of one that was not."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.events import read_events
from experiments.training import checkpoint

STEPS = 40
CHILD = f"""
import sys
from pathlib import Path

import torch

from experiments.config import DeviceSpec, TrainingConfig
from experiments.data.batch import Batch
from experiments.device import Device, mix, seed_everything
from experiments.events import EventWriter
from experiments.training.trainer import train
from model.config import ModelConfig
from model.factory import build_model


def batch(step):
    generator = torch.Generator().manual_seed(mix(7, step))
    words = torch.randint(4, 60, (12, 8), generator=generator)
    start = torch.full((12, 1), 1)
    return [Batch(words, torch.cat((start, words[:, :-1]), 1), words, 96, 96)]


folder, earlier = Path(sys.argv[1]), [Path(path) for path in sys.argv[2:]]
device = Device.open(DeviceSpec(threads=1), "fp32")
seed_everything(3)
sizes = ModelConfig(num_layers=2, d_model=16, d_ff=32, num_heads=4, d_k=4, d_v=4)
train(
    build_model(sizes, 60),
    TrainingConfig(train_steps={STEPS}, warmup_steps=20, checkpoint_steps=3),
    d_model=16, batches=batch, seed=3, device=device, folder=folder, earlier=earlier,
    emit=EventWriter(folder).emit, should_stop=lambda: False, meta={{"lineage": "l", "code": "c"}},
)
"""


def _start(folder: Path, earlier: list[Path]) -> "subprocess.Popen[bytes]":
    folder.mkdir()
    arguments = [sys.executable, "-c", CHILD, str(folder), *map(str, earlier)]
    return subprocess.Popen(arguments, env={**os.environ, "OMP_NUM_THREADS": "1"})


def _last_saved(folder: Path) -> int:
    return max((int(e["step"]) for e in read_events(folder) if e["kind"] == "checkpoint"), default=0)


def _kill_after(process: "subprocess.Popen[bytes]", folder: Path, step: int, delay: float) -> None:
    """SIGKILL once the checkpoint of `step` is told, plus a moment: anywhere in a step or in a save."""
    deadline = time.monotonic() + 60
    while _last_saved(folder) < step:
        assert process.poll() is None, f"the child ended by itself with {process.returncode}"
        assert time.monotonic() < deadline
        time.sleep(0.001)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_random_steps_equals_undisturbed(tmp_path: Path, kills: int) -> None:
    assert _start(tmp_path / "straight", []).wait() == 0
    chance = random.Random(kills)
    attempts: list[Path] = []
    reached = 0
    for number in range(kills):
        folder = tmp_path / str(number)
        process = _start(folder, attempts)
        goal = min(reached + chance.choice((1, 4, 7) if kills == 3 else (1,)), STEPS - 3)
        _kill_after(process, folder, goal, chance.uniform(0, 0.05))
        attempts = [folder, *attempts]
        reached = max(reached, _last_saved(folder))
    folder = tmp_path / "last"
    assert _start(folder, attempts).wait() == 0

    resumed = [e["step"] for path in [*attempts[::-1], folder] for e in read_events(path) if e["kind"] == "resumed"]
    assert len(resumed) == kills
    assert resumed == sorted(resumed)
    assert resumed[0] > 0
    name = f"checkpoints/step-{STEPS:08d}"
    for file in ("model.safetensors", "optimizer.safetensors"):  # every bit of every tensor
        assert (folder / name / file).read_bytes() == (tmp_path / "straight" / name / file).read_bytes()
    assert checkpoint.load_weights(folder / "final").keys() == checkpoint.load_weights(folder / name).keys()
    expected = _curve(tmp_path / "straight")
    seen = {step: loss for path in [*attempts[::-1], folder] for step, loss in _curve(path).items()}
    assert all(seen[step] == loss for step, loss in expected.items() if step in seen)
    assert set(seen) >= {10, 20, 30, 40} & set(expected)


def _curve(folder: Path) -> dict[int, float]:
    return {e["step"]: e["loss"] for e in read_events(folder) if e["kind"] == "metrics"}
