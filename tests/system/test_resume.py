"""A training process that is killed repeatedly gives the numbers of an undisturbed one."""

import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.config.run_config import RunConfig
from experiments.config.training import TrainingConfig
from experiments.data.collate import Batch
from experiments.device import Device, mix, seed_everything
from experiments.device_spec import DeviceSpec
from experiments.events.event_log import EventWriter, read_events
from experiments.training import curve
from experiments.training.state import Training
from experiments.training.trainer import train
from model.config import ModelConfig
from model.network import build_model
from tests.small_training import context_of

SIZES = ModelConfig(num_layers=2, d_model=16, d_ff=32, num_heads=4, d_k=4, d_v=4)
PIECES = 60
FILES = ("model.safetensors", "optimizer.safetensors")


def _batch(step: int) -> "list[Batch[torch.Tensor]]":
    generator = torch.Generator().manual_seed(mix(7, step))
    words = torch.randint(4, PIECES, (12, 8), generator=generator)
    begun = torch.cat((torch.full((12, 1), 1), words[:, :-1]), 1)
    return [Batch(words, begun, words, words.numel(), words.numel())]


def _child(steps: int, folder: Path, earlier: Sequence[Path], threads: int, settings: dict[str, Any]) -> None:
    curve.EVERY_STEPS = 1  # record every loss
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder.parent / "graphs")  # no compiled code of another test
    device = Device.open(DeviceSpec(threads=threads), "fp32", deterministic=settings.get("deterministic", False))
    seed_everything(3)
    training = TrainingConfig(train_steps=steps, warmup_steps=20, checkpoint_steps=3, **settings)
    context = context_of(folder, run_id="a" * 16, earlier=earlier, emit=EventWriter(folder).emit)
    config = RunConfig(model=SIZES, training=training, seed=3)
    train(Training(build_model(SIZES, PIECES), config, context, device), _batch)


def _start(
    steps: int, folder: Path, earlier: Sequence[Path] = (), threads: int = 1, **settings: Any
) -> ForkServerProcess:
    folder.mkdir()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "experiments.training.trainer", "model.network"])
    process = context.Process(target=_child, args=(steps, folder, list(earlier), threads, settings))
    process.start()
    return process


def _finish(steps: int, folder: Path, earlier: Sequence[Path] = (), threads: int = 1, **settings: Any) -> None:
    process = _start(steps, folder, earlier, threads, **settings)
    process.join()
    assert process.exitcode == 0


def _last_saved(folder: Path) -> int:
    return max((int(e["step"]) for e in read_events(folder) if e["kind"] == "checkpoint"), default=0)


def _kill(process: ForkServerProcess, folder: Path, step: int, delay: float) -> None:
    """Kill the process shortly after the checkpoint of `step`, at any point of a training step or a save."""
    deadline = time.monotonic() + 240
    while _last_saved(folder) < step:
        assert process.is_alive(), f"the child ended by itself with {process.exitcode}"
        assert time.monotonic() < deadline
        time.sleep(0.001)
    time.sleep(delay)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.slow
def test_killed_at_random_steps_equals_undisturbed(tmp_path: Path) -> None:
    kills, steps = 3, 90
    straight, final = tmp_path / "straight", tmp_path / "last"
    _finish(steps, straight)
    chance = random.Random(kills)
    attempts: list[Path] = []
    for number in range(kills):
        folder = tmp_path / str(number)
        goal = max(map(_last_saved, attempts), default=0) + chance.choice((1, 4, 7))
        _kill(_start(steps, folder, attempts), folder, goal, chance.uniform(0, 0.03))
        attempts.insert(0, folder)
    _finish(steps, final, attempts)

    in_order = [*attempts[::-1], final]
    resumed = [e["step"] for path in in_order for e in read_events(path) if e["kind"] == "resumed"]
    assert len(resumed) == kills
    assert resumed[0] > 0
    assert resumed == sorted(set(resumed)), "every attempt gained something"
    _assert_same_bits(final, straight, steps)
    expected = dict(_losses(straight))
    assert list(expected) == list(range(1, steps + 1))
    seen = [point for path in in_order for point in _losses(path)]
    assert {step for step, _ in seen} == expected.keys()
    assert all(loss == expected[step] for step, loss in seen), "every loss, also of steps that were done twice"


@pytest.mark.nightly
@pytest.mark.skipif(not shutil.which("g++"), reason="torch's compiler needs a C++ compiler")
def test_compiled_in_deterministic_mode_a_resume_is_exact(tmp_path: Path) -> None:
    modes = {"threads": 2, "compile": True, "deterministic": True}
    straight, first, second = tmp_path / "straight", tmp_path / "first", tmp_path / "second"
    _finish(12, straight, **modes)
    _finish(6, first, **modes)
    _finish(12, second, [first], **modes)
    assert [e["step"] for e in read_events(second) if e["kind"] == "resumed"] == [6]
    assert any((tmp_path / "graphs").rglob("*.cpp")), "the layers ran as generated code"
    _assert_same_bits(second, straight, 12)
    assert [*_losses(first), *_losses(second)] == _losses(straight)


def _assert_same_bits(one: Path, other: Path, steps: int) -> None:
    """Check that all weights and optimizer moments are bit-identical."""
    last = f"checkpoints/step-{steps:08d}"
    for name in [*(f"{last}/{file}" for file in FILES), "final/model.safetensors"]:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def _losses(folder: Path) -> list[tuple[int, float]]:
    return [(e["step"], e["metrics"]["loss"]) for e in read_events(folder) if e["kind"] == "metrics"]
