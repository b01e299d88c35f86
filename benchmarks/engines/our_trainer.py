"""This project's training loop for the engines: rounds of steps until there are no more."""

import contextlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from serve import Rounds
from torch import Tensor

from experiments.config.training import TrainingConfig
from experiments.data.batching import Batch
from experiments.device import Device
from experiments.errors import Preempted
from experiments.training.trainer import train
from model.protocol import Network

NEVER = 10**9


def repeated(batches: list[list[Batch[Tensor]]]) -> Callable[[int], list[Batch[Tensor]]]:
    """The same batches again and again."""
    return lambda step: batches[(step - 1) % len(batches)]


def train_rounds(
    model: Network,
    settings: TrainingConfig,
    device: Device,
    batches: Callable[[int], Sequence[Batch[Tensor]]],
    rounds: Rounds,
) -> None:
    """As a run calls it: experiments.training.trainer.train. batches: of a step, from 1."""
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(Preempted):
        train(
            model,
            settings,
            d_model=model.config.d_model,
            batches=batches,
            seed=1,
            device=device,
            folder=Path(folder),
            emit=lambda *args, **facts: None,
            should_stop=rounds.step_done,
            meta={"lineage": "benchmark", "code": "benchmark"},
        )
