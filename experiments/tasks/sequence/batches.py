"""Batches for training by step, and perplexity on dev during training."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from experiments.config import RunConfig
from experiments.data.batches.batch import Batch, collate
from experiments.data.batches.batching import BatchPlan, Indices, deal, split
from experiments.data.batches.shapes import EPOCHS, Shape, Shapes
from experiments.data.batches.tensors import to_tensors
from experiments.data.encoding.encoded import EncodedCorpus
from experiments.device import Device
from experiments.evaluation.likelihood import measure_likelihood
from experiments.processes.processor import precision_here
from experiments.tasks.base import Context
from experiments.tasks.footprint import MICRO_BATCH_TOKENS
from model.architecture import not_compiled
from model.protocol import Network

# The share of padding above which smaller micro-batches, of more even lengths, are tried, down to so many places
# (the least padded are taken): below those a GPU waits for launches, less so where layers are compiled.
TIGHT, FEWEST_TOKENS = 0.07, 8192
TIGHT_COMPILED, FEWEST_COMPILED = 0.12, 4096
# Padding that few shapes may add where only kernels are saved. Measured on an AMD EPYC without AMX: multi30k 5.3 and
# 8.1 %, as fast (kernels took 4 % of the time); German news 4.5 and 15.1 %, which would cost more than kernels.
MORE_PADDING = 0.04
LARGEST = 1.5  # places of a batch's side, over its tokens: hardly more
DESCRIBED = 500  # batches over which padding is measured, of an epoch to which no shapes were fitted


class Batches:
    """The trainer's source of batches: step (from 1) → micro-batches, a pure function of (seed, step).

    share: (rank, ranks) of the processes that train together; each gets its part of every batch. With several `lanes`,
    each micro-batch is given as so many parts, one after the other. With `training.compile`, and on a processor in
    bf16 if that adds little padding, micro-batches are padded to one of a few shapes.
    """

    def __init__(
        self,
        config: RunConfig,
        context: Context,
        encoded: EncodedCorpus,
        share: tuple[int, int] = (0, 1),
        lanes: int = 1,
    ) -> None:
        self._lanes = lanes
        self._pairs, self._share, self._pin = encoded.train, share, context.device.kind == "cuda"
        lengths = self._pairs.source_lengths, self._pairs.target_lengths
        self._shapes: Shapes | None = None
        self._plan = BatchPlan(*lengths, config.training.tokens_per_batch, config.seed)
        known, compiled = context.pinned.get("micro_batch_tokens"), config.training.compile
        few = compiled or _builds_kernels(config, context)
        most = int(known or MICRO_BATCH_TOKENS[context.device.kind])
        self.max_tokens, self._padding = most, 1.0
        sizes = [most] if known else _halves(most, FEWEST_COMPILED if compiled else FEWEST_TOKENS)
        for tokens in sizes:
            if most > tokens >= LARGEST * config.training.tokens_per_batch:
                continue  # cuts no batch either
            shapes = Shapes(self._plan, functools.partial(self._all_parts, max_tokens=tokens)) if few else None
            padding = self._measured_padding(tokens, shapes)
            if shapes and not compiled and padding > (free := self._measured_padding(tokens, None)) + MORE_PADDING:
                shapes, padding = None, free
            if padding < self._padding:  # smaller ones may be worse: a batch that is just cut in two fits less well
                self.max_tokens, self._shapes, self._padding = tokens, shapes, padding
            if padding <= (TIGHT_COMPILED if compiled else TIGHT):
                break

    def __call__(self, step: int) -> list[Batch[Tensor]]:
        parts = self._parts(self._plan.batch(step - 1), self._share, self.max_tokens, self._shapes)
        return [to_tensors(collate(self._pairs, *part), pin=self._pin) for part in parts]

    def trained_on(self, steps: int) -> tuple[Indices, Indices, Indices]:
        """Pairs of the first `steps` updates, of all ranks together: how often each, its source and target pieces."""
        return self._plan.seen(steps), *self._plan.lengths

    def describe(self) -> dict[str, Any]:
        """Of rank 0's share of an epoch: padding among all places of both sides, and shapes."""
        shapes = {"shapes": len(self._shapes.shapes)} if self._shapes else {}
        return {"micro_batch_tokens": self.max_tokens, "padding": round(self._padding, 4), **shapes}

    def _parts(
        self, batch: Indices, share: tuple[int, int], max_tokens: int, shapes: Shapes | None
    ) -> list[tuple[Indices, Shape | None]]:
        parts = self._cut(batch, share, max_tokens)
        return (
            [(part, None) for part in parts]
            if shapes is None
            else [each for part in parts for each in shapes.fit(part)]
        )

    def _all_parts(self, batch: Indices, max_tokens: int) -> list[Indices]:
        """Those of all ranks, so that all have the same shapes."""
        ranks = self._share[1]
        return [part for rank in range(ranks) for part in self._cut(batch, (rank, ranks), max_tokens)]

    def _cut(self, batch: Indices, share: tuple[int, int], max_tokens: int) -> list[Indices]:
        """Micro-batches of one rank, lane by lane. A batch that padding makes a little too large is not cut: many small
        products would cost more than the padding that a cut avoids.
        """
        source, target = self._plan.lengths
        mine = deal(source, target, batch, share)
        places = len(mine) * max(source[mine].max(initial=0), target[mine].max(initial=0))
        # One part is sorted as several are: the order of pairs decides on which of them a dropout's bits fall.
        parts = split(source, target, mine, places if places <= LARGEST * max_tokens else max_tokens)
        dealt = (deal(source, target, part, (lane, self._lanes)) for part in parts for lane in range(self._lanes))
        return [part for part in dealt if len(part)] or [mine]

    def _measured_padding(self, max_tokens: int, shapes: Shapes | None) -> float:
        source, target = self._plan.lengths
        real = places = 0
        for batch in self._plan.epoch(EPOCHS if shapes else 0)[:DESCRIBED]:
            for part, shape in self._parts(batch, (0, self._share[1]), max_tokens, shapes):
                rows, *widths = shape or (len(part), source[part].max(initial=0), target[part].max(initial=0))
                real += int(source[part].sum() + target[part].sum())
                places += rows * int(sum(widths))
        return 1 - real / max(1, places)


def _builds_kernels(config: RunConfig, context: Context) -> bool:
    """Whether products have kernels for each shape: in bf16 on a processor, unless rows depend on the data anyway."""
    precision = context.pinned.get("precision", precision_here(config.training.precision))
    return context.device.kind == "cpu" and precision == "bf16" and not not_compiled(config.model)


def _halves(most: int, fewest: int) -> Iterator[int]:
    """`most`, half of it, … down to `fewest`; at least `most`."""
    yield most
    while most > fewest:
        most //= 2
        yield most


def dev_perplexity(model: Network, encoded: EncodedCorpus, device: Device) -> Callable[[int], dict[str, float]]:
    """The callback for perplexity during training; dev is read once."""
    dev = encoded.set("dev")
    sources = [dev.pairs.source[i].tolist() for i in range(len(dev.pairs))]
    targets = [dev.pairs.target[i].tolist() for i in range(len(dev.pairs))]

    def evaluate(_step: int) -> dict[str, float]:
        return {"perplexity": measure_likelihood(model, sources, targets, device).perplexity}

    return evaluate
