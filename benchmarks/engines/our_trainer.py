"""This project's training loop for the engines, divided into rounds of steps."""

import contextlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from serve import Rounds
from torch import Tensor

from experiments.attempt_context import AttemptContext
from experiments.config.run_config import RunConfig
from experiments.data.collate import Batch
from experiments.device import Device
from experiments.device_spec import DeviceSpec
from experiments.errors import Preempted
from experiments.run_spec import RunSpec
from experiments.store.spec import AttemptSpec
from experiments.training.state import Training
from experiments.training.trainer import train
from model.protocol import Network

NEVER = 10**9


def repeated(batches: list[list[Batch[Tensor]]]) -> Callable[[int], list[Batch[Tensor]]]:
    """Return a function from steps to batches that repeats the given batches without end."""
    return lambda step: batches[(step - 1) % len(batches)]


def train_rounds(
    model: Network,
    config: RunConfig,
    device: Device,
    batches: Callable[[int], Sequence[Batch[Tensor]]],
    rounds: Rounds,
) -> None:
    """Call experiments.training.trainer.train as a run does, until there are no more rounds.

    batches: returns the micro-batches of a step; steps count from 1.
    """
    with tempfile.TemporaryDirectory() as name, contextlib.suppress(Preempted):
        folder, spec = Path(name), DeviceSpec("cpu", device.threads)
        attempt = AttemptSpec(RunSpec("benchmark", {}, {}), name, 1, spec)
        context = AttemptContext(attempt, folder, lambda *_, **__: None, rounds.step_done)
        train(Training(model, config, context, device), batches)
