"""What training asks of encoded pairs: batches by step, and perplexity on dev now and then."""

from collections.abc import Callable
from typing import Any

from experiments.config import RunConfig
from experiments.data.batch import collate
from experiments.data.batching import BatchPlan, split
from experiments.data.encoded import EncodedCorpus
from experiments.data.tensors import to_tensors
from experiments.device import Device
from experiments.evaluation.perplexity import measure_likelihood
from experiments.tasks.base import Context
from experiments.tasks.footprint import MICRO_BATCH_TOKENS
from model.transformer import Transformer


class Batches:
    """The trainer's source of batches: step (from 1) → micro-batches, a pure function of (seed, step)."""

    def __init__(self, config: RunConfig, context: Context, encoded: EncodedCorpus) -> None:
        self._pairs = encoded.train
        self._plan = BatchPlan(
            self._pairs.source_lengths, self._pairs.target_lengths, config.training.tokens_per_batch, config.seed
        )
        kind = context.device.kind
        self.max_tokens = int(context.pinned.get("micro_batch_tokens") or MICRO_BATCH_TOKENS[kind])

    def __call__(self, step: int) -> list[Any]:
        pairs = self._pairs
        parts = split(pairs.source_lengths, pairs.target_lengths, self._plan.batch(step - 1), self.max_tokens)
        return [to_tensors(collate(pairs, part)) for part in parts]


def dev_perplexity(model: Transformer, encoded: EncodedCorpus, device: Device) -> Callable[[int], dict[str, float]]:
    """The callback for perplexity during training; dev is read once."""
    dev = encoded.set("dev")
    sources = [dev.pairs.source[i].tolist() for i in range(len(dev.pairs))]
    targets = [dev.pairs.target[i].tolist() for i in range(len(dev.pairs))]

    def evaluate(_step: int) -> dict[str, float]:
        return {"perplexity": measure_likelihood(model, sources, targets, device).perplexity}

    return evaluate
