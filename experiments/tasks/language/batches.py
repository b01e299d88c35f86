"""Batches of windows for training by step."""

from typing import Any

import numpy as np
from torch import Tensor

from experiments.config import RunConfig
from experiments.data.batches.batch import Batch
from experiments.data.batches.tensors import to_tensors
from experiments.data.batches.windows import WindowPlan, collate_windows
from experiments.data.corpora.text.settings import TextData
from experiments.data.encoding.stream import Stream
from experiments.tasks.base import Context
from experiments.tasks.footprint import MICRO_BATCH_TOKENS
from experiments.tasks.train_network import Lengths


class WindowBatches:
    """The trainer's source of batches (train_network.BatchSource).

    share: (rank, ranks) of the processes that train together; each gets its part of every batch. With several `lanes`,
    each micro-batch is given as so many parts, one after the other. All windows have one width, so few shapes occur.
    """

    def __init__(
        self, config: RunConfig, context: Context, stream: Stream, share: tuple[int, int] = (0, 1), lanes: int = 1
    ) -> None:
        data = config.data
        assert isinstance(data, TextData)
        self._stream, self._share, self._lanes = stream, share, lanes
        self._pin = context.device.kind == "cuda"
        plan = (stream.documents, data.window, data.mix_documents, config.training.tokens_per_batch, config.seed)
        self._plan = WindowPlan(*plan)
        self.max_tokens = int(context.pinned.get("micro_batch_tokens") or MICRO_BATCH_TOKENS[context.device.kind])

    def __call__(self, step: int) -> list[Batch[Tensor]]:
        windows = self._plan.batch(step - 1)[self._share[0] :: self._share[1]]
        parts = -(-len(windows) * self._plan.window // self.max_tokens)
        dealt = [part for part in np.array_split(windows, max(1, parts) * self._lanes) if len(part)] or [windows]
        return [to_tensors(collate_windows(self._stream, part, self._plan.window), pin=self._pin) for part in dealt]

    def trained_on(self, steps: int) -> tuple[Lengths, Lengths, Lengths]:
        """Of the first `steps` updates of all ranks: how often each length of a window occurs; no source."""
        lengths, counts = self._plan.seen(steps)
        return counts, np.zeros_like(lengths), lengths

    def describe(self) -> dict[str, Any]:
        """How a step is cut, and what share of an epoch's places is padding."""
        used = self._plan.epoch(0)[:, 1].sum() / (self._plan.windows * self._plan.window)
        return {"micro_batch_tokens": self.max_tokens, "padding": round(1 - float(used), 4)}
