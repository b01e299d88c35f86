"""Train on running text: the batch of windows of each step, and perplexity on dev during training.

Needs torch, so only child processes import this module.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from ablations.extras.language_models.corpus import TextData
from ablations.extras.language_models.scoring import stream_nll
from ablations.extras.language_models.windows import WindowPlan, collate_windows
from experiments.attempt_context import AttemptContext
from experiments.config.run_config import RunConfig
from experiments.data.collate import Batch
from experiments.data.encoding.encoded import EncodedCorpus
from experiments.data.encoding.sides import Sides
from experiments.device import Device
from experiments.evaluation.likelihood import Likelihood
from experiments.tasks.network import MICRO_BATCH_TOKENS
from experiments.tasks.train_network import CorpusReader, Lengths, to_tensors
from model.protocol import Network


class WindowBatches:
    """The source of the trainer's batches (experiments/tasks/train_network.py: BatchSource).

    All windows have the same width, so few shapes occur.

    share: (rank, number of ranks). Each rank gets its share of every batch.
    """

    def __init__(
        self,
        config: RunConfig,
        context: AttemptContext,
        train: Sides,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        data, self._text = _of_text(config), train["target"]
        self._share, self._pin = share, context.device.kind == "cuda"
        plan = (self._text.offsets, data.window, data.mix_documents, config.training.tokens_per_batch, config.seed)
        self._plan = WindowPlan(*plan)
        self.max_tokens = int(
            context.attempt.pinned.get("micro_batch_tokens") or MICRO_BATCH_TOKENS[context.device.kind]
        )
        self.pinned = {"micro_batch_tokens": self.max_tokens}

    def __call__(self, step: int) -> list[Batch[Tensor]]:
        windows = self._plan.batch(step - 1)[self._share[0] :: self._share[1]]
        parts = -(-len(windows) * self._plan.window // self.max_tokens)
        dealt = [part for part in np.array_split(windows, max(1, parts)) if len(part)] or [windows]
        return [to_tensors(collate_windows(self._text, part, self._plan.window), pin=self._pin) for part in dealt]

    def trained_on(self, steps: int) -> tuple[Lengths, Lengths, Lengths]:
        """Return how many windows of each length occur in the first `steps` updates of all ranks.

        The length of a window is its number of pieces before padding.
        The function returns three arrays: counts, source lengths (zeros) and window lengths.
        """
        lengths, counts = self._plan.seen(steps)
        return counts, np.zeros_like(lengths), lengths

    def describe(self) -> dict[str, Any]:
        """Return the size of micro-batches, and the share of padding in an epoch."""
        used = self._plan.epoch(0)[:, 1].sum() / (self._plan.windows * self._plan.window)
        return {"micro_batch_tokens": self.max_tokens, "padding": round(1 - float(used), 4)}


def text_perplexity(
    config: RunConfig, model: Network, encoded: EncodedCorpus, device: Device
) -> Callable[[int], dict[str, float]]:
    """Return a function that measures the perplexity on dev, in windows of the training's size without overlap."""
    data, text = _of_text(config), encoded.set("dev").sides["target"]

    def evaluate(_step: int) -> dict[str, float]:
        nll = stream_nll(model, text, device, window=data.window, stride=data.window, mix=data.mix_documents)
        return {"perplexity": Likelihood(math.fsum(nll), len(nll)).perplexity}

    return evaluate


def _of_text(config: RunConfig) -> TextData:
    assert isinstance(config.data, TextData)
    return config.data


WINDOWS = CorpusReader(WindowBatches, text_perplexity)
