"""Batches of pairs for each step, and the perplexity on dev during training."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from experiments.attempt_context import AttemptContext
from experiments.config.run_config import RunConfig
from experiments.config.training import LARGEST_UNCUT
from experiments.data.batching import BatchPlan, Indices, deal, split
from experiments.data.collate import Batch, collate
from experiments.data.encoding.encoded import EncodedCorpus
from experiments.data.encoding.sides import Sides
from experiments.data.shapes import EPOCHS, SPARE_ROWS, Shape, Shapes
from experiments.device import Device
from experiments.evaluation.likelihood import measure_likelihood
from experiments.processes.processor import precision_here
from experiments.tasks.network import MICRO_BATCH_TOKENS
from experiments.tasks.train_network import CorpusReader, compiles, to_tensors
from model.protocol import Network

# Few fixed shapes are used only if they increase the share of padding by at most this number. On a CPU, few shapes only
# save the time to build kernels. On an AMD EPYC without AMX, few shapes increase the padding of multi30k from 5.3 % to
# 8.1 %. The training was as fast as without them, and building kernels took 4 % of the time. Few shapes increase the
# padding of German news from 4.5 % to 15.1 %, and the added work takes longer than building kernels. On a GPU, few
# shapes also save work on the CPU, which must set up each matrix product of a new shape. An H100 waited for this work
# during more than half of a step.
MORE_PADDING = {"cpu": 0.04, "cuda": 0.15}
DESCRIBED = 500  # maximum number of batches on which the padding is measured


class Batches:
    """The source of batches for pairs of lines (see `BatchSource`).

    Micro-batches are padded to one of a few fixed shapes in two cases:

    - The layers are compiled.
    - The run uses a GPU or computes in bf16 on a CPU. In addition, torch.compile must be able to compile all layers,
      and fixed shapes must add little padding (MORE_PADDING).

    The first attempt chooses the shapes of micro-batches, and later attempts use the same shapes. After an attempt ran
    out of memory, the next attempt chooses new shapes.

    share: (rank, number of ranks). Each rank gets its share of the pairs of every batch.
    """

    def __init__(
        self,
        config: RunConfig,
        context: AttemptContext,
        train: Sides,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        self._pairs, self._share, self._kind = train, share, context.device.kind
        source, target = (side.lengths for side in self._pairs.values())
        self._plan = BatchPlan(source, target, config.training.tokens_per_batch, config.seed)
        self._full_softmax = config.model.softmax == "full"
        self.max_tokens = int(context.attempt.pinned.get("micro_batch_tokens") or MICRO_BATCH_TOKENS[self._kind])
        self._shapes: Shapes | None = None
        if "shapes" not in context.attempt.pinned:
            self._shapes, self._padding = self._fitted(config, context)
            return
        if shapes := context.attempt.pinned["shapes"]:
            self._shapes = Shapes(self._plan.lengths, ((rows, wide, long) for rows, wide, long in shapes))
        self._padding = self._measured_padding(self._shapes)

    def _fitted(self, config: RunConfig, context: AttemptContext) -> tuple[Shapes | None, float]:
        """Return the shapes of micro-batches and their share of padding.

        The shapes are None if micro-batches are better without fixed shapes.
        """
        gpu = self._kind == "cuda"
        compiled = compiles(config.training, gpu)
        if not compiled and (config.model.not_compiled() or not (gpu or _builds_kernels(config, context))):
            return None, self._measured_padding(None)
        shapes = Shapes.fitted(self._plan, self._all_parts, spare=SPARE_ROWS if gpu else 0.0)
        padding = self._measured_padding(shapes)
        if compiled:
            return shapes, padding
        without = self._measured_padding(None)
        return (shapes, padding) if padding <= without + MORE_PADDING[self._kind] else (None, without)

    @property
    def pinned(self) -> dict[str, Any]:
        """The size and the shapes of micro-batches, for later attempts. "shapes" is [] without fixed shapes."""
        shapes = self._shapes.shapes if self._shapes else []
        return {"micro_batch_tokens": self.max_tokens, "shapes": [list(shape) for shape in shapes]}

    def __call__(self, step: int) -> list[Batch[Tensor]]:
        parts = self._parts(self._plan.batch(step - 1), self._share, self._shapes)
        gpu = self._kind == "cuda"
        # With fixed shapes on a GPU, the loss is computed for a fixed number of positions. This number is
        # tokens_per_batch, because a micro-batch never has more target tokens.
        rows = self._plan.tokens_per_batch if gpu and self._shapes and self._full_softmax else 0
        return [to_tensors(collate(self._pairs, *part), pin=gpu, rows=rows) for part in parts]

    def trained_on(self, steps: int) -> tuple[Indices, Indices, Indices]:
        """Return how often all ranks use each pair in the first `steps` updates, and the source and target lengths."""
        return self._plan.seen(steps), *self._plan.lengths

    def describe(self) -> dict[str, Any]:
        """Return the size of micro-batches, the share of padding on both sides, and the number of shapes.

        The padding is measured on rank 0's share of the first DESCRIBED batches of an epoch.
        """
        shapes = {"shapes": len(self._shapes.shapes)} if self._shapes else {}
        return {"micro_batch_tokens": self.max_tokens, "padding": round(self._padding, 4), **shapes}

    def _parts(
        self, batch: Indices, share: tuple[int, int], shapes: Shapes | None
    ) -> list[tuple[Indices, Shape | None]]:
        parts = self._cut(batch, share)
        if shapes is None:
            return [(part, None) for part in parts]
        return [each for part in parts for each in shapes.fit(part)]

    def _all_parts(self, batch: Indices) -> list[Indices]:
        """Return the micro-batches of all ranks. Each rank computes them, so that all ranks choose the same shapes."""
        ranks = self._share[1]
        return [part for rank in range(ranks) for part in self._cut(batch, (rank, ranks))]

    def _cut(self, batch: Indices, share: tuple[int, int]) -> list[Indices]:
        """Return the micro-batches of one rank.

        A batch with at most LARGEST_UNCUT times `self.max_tokens` positions is not split, because passes over several
        smaller micro-batches would take longer than one pass with more padding.
        """
        source, target = self._plan.lengths
        mine = deal(source, target, batch, share)
        places = len(mine) * max(source[mine].max(initial=0), target[mine].max(initial=0))
        # Call `split` even if the batch is not split, because it also sorts the pairs. The order of the pairs decides
        # which random numbers of dropout each pair gets.
        uncut = places <= LARGEST_UNCUT * self.max_tokens
        return split(source, target, mine, places if uncut else self.max_tokens) or [mine]

    def _measured_padding(self, shapes: Shapes | None) -> float:
        source, target = self._plan.lengths
        real = places = 0
        for batch in self._plan.epoch(EPOCHS if shapes else 0)[:DESCRIBED]:
            for part, shape in self._parts(batch, (0, self._share[1]), shapes):
                rows, *widths = shape or (len(part), source[part].max(initial=0), target[part].max(initial=0))
                real += int(source[part].sum() + target[part].sum())
                places += rows * int(sum(widths))
        return 1 - real / max(1, places)


def _builds_kernels(config: RunConfig, context: AttemptContext) -> bool:
    """Return whether the CPU builds a kernel for each shape of a matrix product. A CPU builds such kernels in bf16."""
    precision = context.attempt.pinned.get("precision", precision_here(config.training.precision))
    return bool(precision == "bf16")


def dev_perplexity(
    _config: RunConfig, model: Network, encoded: EncodedCorpus, device: Device
) -> Callable[[int], dict[str, float]]:
    """Return a callback that measures the perplexity on dev during the training. The set dev is read only once."""
    sides = encoded.set("dev").sides.values()
    sources, targets = ([side[i].tolist() for i in range(len(side))] for side in sides)

    def evaluate(_step: int) -> dict[str, float]:
        return {"perplexity": measure_likelihood(model, sources, targets, device).perplexity}

    return evaluate


PAIRS = CorpusReader(Batches, dev_perplexity)
