"""Train a network of this program, and describe it for the run's record.

Only the child imports it: it needs torch.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.attempt_context import AttemptContext
from experiments.config.network_change import change_network, changes_of
from experiments.config.run_config import RunConfig
from experiments.config.training import LARGEST_UNCUT, TrainingConfig
from experiments.data.batching import (
    EPOCHS,
    SPARE_ROWS,
    Batch,
    BatchPlan,
    Indices,
    Shape,
    Shapes,
    collate,
    deal,
    split,
)
from experiments.data.encoding.encoded import EncodedCorpus
from experiments.data.encoding.sides import Sides
from experiments.device import Device, naming_out_of_memory, seed_everything
from experiments.evaluation.likelihood import measure_likelihood
from experiments.processes.processor import precision_here
from experiments.tasks.network import MICRO_BATCH_TOKENS
from experiments.training.checkpoint import add_file
from experiments.training.loss import Objective, real_places
from experiments.training.ranks import joined
from experiments.training.state import Training
from experiments.training.threads import fastest_threads
from experiments.training.trainer import train
from model import cost
from model.network import build_model, num_params
from model.protocol import Network

Lengths = NDArray[np.int64]
STEPS = 8  # of the training, whose batches a change of the network may read


class BatchSource(Protocol):
    """Step (from 1) → micro-batches, a pure function of (seed, step)."""

    def __call__(self, step: int) -> list[Batch[Tensor]]: ...

    def trained_on(self, steps: int) -> tuple[Lengths, Lengths, Lengths]:
        """For the first `steps` updates of all ranks: how often each pair occurs, source lengths, target lengths."""

    def describe(self) -> dict[str, Any]:
        """Facts for the record."""

    @property
    def pinned(self) -> dict[str, Any]:
        """Return how a step is divided and padded, for later attempts."""


def first_batches(batches: BatchSource) -> Iterator[Batch[Tensor]]:
    """The batches of the first STEPS steps."""
    return (batch for step in range(1, STEPS + 1) for batch in batches(step))


class Material(NamedTuple):
    """The data that a network is trained on."""

    batches: Callable[[tuple[int, int]], BatchSource]  # of (rank, ranks)
    dev: Callable[[Network, Device], Callable[[int], Mapping[str, float]]]  # measures dev during the training
    data: Mapping[str, Any]  # facts for the record
    files: Mapping[str, bytes]  # go beside the final weights: tokenizers


def train_network(
    config: RunConfig, context: AttemptContext, material: Material, vocab_sizes: tuple[int, int]
) -> dict[str, Any]:
    """Train to the end, alone or with the other ranks; returns the facts of the run's record.

    vocab_sizes: target and source.
    """
    precision = context.attempt.pinned.get("precision", config.training.precision)
    device = Device.open(context.device, precision, deterministic=config.training.deterministic, rank=context.rank)
    with joined(context.device, context.rank, context.port, context.start_ranks) as group:
        compiled = compiles(config.training, device.is_cuda)
        config = config.model_copy(update={"training": config.training.model_copy(update={"compile": compiled})})
        seed_everything(config.seed)
        model = build_model(config.model, *vocab_sizes, device=device.torch_device)
        if "attention_kernel" in context.attempt.pinned:
            model.set_attention_kernel(context.attempt.pinned["attention_kernel"])
        batches = material.batches((group.rank, group.size))
        changes = changes_of(config)
        changed = change_network(config, changes, model, functools.partial(first_batches, batches))
        operations = [
            config.network_changes[name].operations(value, config.model, vocab_sizes) for name, value in changes.items()
        ]
        pinned = {**batches.pinned, "training_threads": device.threads}
        context.emit("pinned", **batches.pinned)
        if device.threads > 1 and not device.is_cuda and group.size == 1 and not compiled:
            pinned["training_threads"] = _use_threads(config, context, model, batches, device)
            context.emit("pinned", training_threads=pinned["training_threads"])
        context = replace(context, attempt=replace(context.attempt, pinned={**context.attempt.pinned, **pinned}))
        with naming_out_of_memory():
            training = Training(model, config, context, device, group)
        facts = train(training, batches, material.dev(model, device) if training.measures_dev else None)
        if not group.leads:
            return facts
        parent_run = context.spec.parent_run
        shared = parent_run.step if parent_run else 0
        for name, content in material.files.items():
            add_file(context.folder / "final", name, content)
        return {
            "num_params": num_params(model) if changes else cost.num_params(config.model, *vocab_sizes),
            **changed,
            "seed": config.seed,
            "data": dict(material.data),
            "batches": batches.describe(),
            **facts,
            **_trained_on(config, vocab_sizes[0], batches, (shared, facts["step"]), operations),
        }


def _use_threads(
    config: RunConfig, context: AttemptContext, model: Network, batches: BatchSource, device: Device
) -> int:
    """Let the training use as many threads as are fastest, or as its first attempt did; returns their number."""
    if threads := context.attempt.pinned.get("training_threads"):
        torch.set_num_threads(threads)
        return int(threads)
    objective, batch = Objective(model.train(), config.training), batches(1)[0]

    def compute() -> None:
        with device.autocast():
            loss, _ = objective(*objective.inputs(batch, device))
        loss.backward()
        model.zero_grad()

    return fastest_threads(device.threads, compute)


def compiles(settings: TrainingConfig, gpu: bool) -> bool:
    """Return whether the layers are compiled, on a GPU or on a processor.

    A plan has replaced "auto"; without one, nothing is compiled.
    """
    return settings.compile is True or (settings.compile == "cuda" and gpu)


def _trained_on(
    config: RunConfig,
    target_vocab_size: int,
    batches: BatchSource,
    steps: tuple[int, int],
    added: Sequence[Callable[[Any, Any], Any]],
) -> dict[str, Any]:
    """Tokens and operations of a training, from the lengths that it used (model/cost.py has the formula).

    steps: the first steps of a branch, which its parent run trained (they are not counted here), and the last step.
    added: functions that give the operations that changes of the network add (`NetworkChange.operations`).
    """
    shared, last = steps

    def until(step: int) -> NDArray[np.float64]:
        seen, source, target = batches.trained_on(step)
        samples = config.training.gleu_samples
        flops = (seen * cost.training_flops(config.model, target_vocab_size, source, target, samples)).sum()
        for operations in added:
            flops += (seen * operations(source, target)).sum()
        return np.array(((seen * source).sum(), (seen * target).sum(), flops), dtype=np.float64)

    own = until(last) - until(shared) if shared else until(last)
    source_tokens, tokens, flops = int(own[0]), int(own[1]), float(own[2])
    return {
        "source_tokens": source_tokens,
        "target_tokens": tokens,
        "flops": flops,
        "flops_per_token": round(flops / max(1, tokens)),
    }


# --- Train on an encoded corpus


class CorpusReader(NamedTuple):
    """Reader of an encoded corpus for training."""

    batches: Callable[[RunConfig, AttemptContext, Sides, tuple[int, int]], BatchSource]
    dev: Callable[[RunConfig, Network, EncodedCorpus, Device], Callable[[int], dict[str, float]]]  # see `Material.dev`


def train_encoded(
    config: RunConfig,
    context: AttemptContext,
    encoded: EncodedCorpus,
    vocab_sizes: tuple[int, int],
    reading: CorpusReader,
) -> dict[str, Any]:
    """Train to the end; returns the facts of the run's record. The arguments are those of `train_network`."""
    names = encoded.facts["tokenizer"]["sha256"]
    material = Material(
        batches=lambda share: reading.batches(config, context, encoded.train, share),
        dev=lambda model, device: reading.dev(config, model, encoded, device),
        data={"encoded": encoded.digest, **encoded.facts},
        files={name: encoded.tokenizer_model(name) for name in names} if context.rank == 0 else {},
    )
    return train_network(config, context, material, vocab_sizes)


def batches_of(
    config: RunConfig, context: AttemptContext, encoded: EncodedCorpus, reading: CorpusReader
) -> Iterator[Batch[Tensor]]:
    """The first batches of a training, for changes of the trained network."""
    return first_batches(reading.batches(config, context, encoded.train, (0, 1)))


def to_tensors(batch: Batch[NDArray[np.int64]], *, pin: bool = False, rows: int = 0) -> Batch[Tensor]:
    """The same batch as int64 tensors; `pin`: in pinned memory, from which a GPU copies without waiting.

    rows: of the loss, filled up with padding as far as there is some.
    """
    arrays = (batch.source, batch.target_input, batch.target_output)
    source, read, predicted = (torch.from_numpy(array) for array in arrays)
    real = real_places(predicted, min(rows, predicted.numel()))
    if pin:
        source, read, predicted, real = (tensor.pin_memory() for tensor in (source, read, predicted, real))
    return Batch(source, read, predicted, batch.num_source_tokens, batch.num_target_tokens, real)


# --- Batches of pairs by step, and perplexity on dev during training


# The share of padding above which smaller micro-batches, of more even lengths, are tried, down to so many places
# (the least padded are taken): below those a GPU waits for launches, less so where layers are compiled.
TIGHT, FEWEST_TOKENS = 0.07, 8192
TIGHT_COMPILED, FEWEST_COMPILED = 0.12, 4096
# Padding that few shapes may add. On a processor they save only kernels. Measured on an AMD EPYC without AMX: multi30k
# 5.3 and 8.1 %, as fast (kernels took 4 % of the time); German news 4.5 and 15.1 %, which would cost more than kernels.
# On a GPU they also save the processor's work for products of new shapes, of which an H100 waited for more than half of
# a step.
MORE_PADDING = {"cpu": 0.04, "cuda": 0.15}
DESCRIBED = 500  # batches over which padding is measured, of an epoch to which no shapes were fitted


class Batches:
    """The trainer's source of batches: step (from 1) → micro-batches, a pure function of (seed, step).

    share: (rank, ranks) of the processes that train together; each gets its part of every batch. With
    `training.compile`, and on a GPU and on a processor in bf16 if that adds little padding, micro-batches are padded to
    one of a few shapes. The first attempt chooses; later ones keep its micro-batches and shapes.
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
        most = int(context.attempt.pinned.get("micro_batch_tokens") or MICRO_BATCH_TOKENS[self._kind])
        self._shapes: Shapes | None = None
        if "shapes" not in context.attempt.pinned:
            self._choose(config, context, most)
            return
        if shapes := context.attempt.pinned["shapes"]:
            self._shapes = Shapes(self._plan.lengths, ((rows, wide, long) for rows, wide, long in shapes))
        self.max_tokens, self._padding = most, self._measured_padding(most, self._shapes)

    def _choose(self, config: RunConfig, context: AttemptContext, most: int) -> None:
        """Choose the size of micro-batches, at most `most` places per side, and their shapes."""
        gpu = self._kind == "cuda"
        compiled = compiles(config.training, gpu)
        few = compiled or (not config.model.not_compiled() and (gpu or _builds_kernels(config, context)))
        # A GPU gets the whole step at once: two small micro-batches are twice the launches for a little less padding.
        whole = gpu or "micro_batch_tokens" in context.attempt.pinned
        sizes = [most] if whole else _halves(most, FEWEST_COMPILED if compiled else FEWEST_TOKENS)
        self.max_tokens, self._padding = most, 1.0
        for tokens in sizes:
            if most > tokens >= LARGEST_UNCUT * config.training.tokens_per_batch:
                continue  # cuts no batch either
            cut = functools.partial(self._all_parts, max_tokens=tokens)
            shapes = Shapes.fitted(self._plan, cut, spare=SPARE_ROWS if gpu else 0.0) if few else None
            padding = self._measured_padding(tokens, shapes)
            if shapes and not compiled:
                free = self._measured_padding(tokens, None)
                if padding > free + MORE_PADDING[self._kind]:
                    shapes, padding = None, free
            if padding < self._padding:  # smaller ones may be worse: a batch that is just cut in two fits less well
                self.max_tokens, self._shapes, self._padding = tokens, shapes, padding
            if padding <= (TIGHT_COMPILED if compiled else TIGHT):
                break

    @property
    def pinned(self) -> dict[str, Any]:
        """Return the values that give later attempts the same micro-batches. Without shapes, padding is minimal."""
        shapes = self._shapes.shapes if self._shapes else []
        return {"micro_batch_tokens": self.max_tokens, "shapes": [list(shape) for shape in shapes]}

    def __call__(self, step: int) -> list[Batch[Tensor]]:
        parts = self._parts(self._plan.batch(step - 1), self._share, self.max_tokens, self._shapes)
        gpu = self._kind == "cuda"
        # No part of a step has more labels than a batch may have tokens, so a shape fixes the loss's number of rows.
        rows = self._plan.tokens_per_batch if gpu and self._shapes and self._full_softmax else 0
        return [to_tensors(collate(self._pairs, *part), pin=gpu, rows=rows) for part in parts]

    def trained_on(self, steps: int) -> tuple[Indices, Indices, Indices]:
        """Pairs of the first `steps` updates, of all ranks together: how often each, its source and target pieces."""
        return self._plan.seen(steps), *self._plan.lengths

    def describe(self) -> dict[str, Any]:
        """Facts on rank 0's share of an epoch: the share of padding on both sides, and the number of shapes."""
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
        """Micro-batches of all ranks; every rank computes them, so that all ranks have the same shapes."""
        ranks = self._share[1]
        return [part for rank in range(ranks) for part in self._cut(batch, (rank, ranks), max_tokens)]

    def _cut(self, batch: Indices, share: tuple[int, int], max_tokens: int) -> list[Indices]:
        """Micro-batches of one rank.

        A batch that padding makes a little too large is not cut: many small products would cost more than the padding
        that a cut avoids.
        """
        source, target = self._plan.lengths
        mine = deal(source, target, batch, share)
        places = len(mine) * max(source[mine].max(initial=0), target[mine].max(initial=0))
        # One part is sorted as several are: the order of pairs decides on which of them a dropout's bits fall.
        return split(source, target, mine, places if places <= LARGEST_UNCUT * max_tokens else max_tokens) or [mine]

    def _measured_padding(self, max_tokens: int, shapes: Shapes | None) -> float:
        source, target = self._plan.lengths
        real = places = 0
        for batch in self._plan.epoch(EPOCHS if shapes else 0)[:DESCRIBED]:
            for part, shape in self._parts(batch, (0, self._share[1]), max_tokens, shapes):
                rows, *widths = shape or (len(part), source[part].max(initial=0), target[part].max(initial=0))
                real += int(source[part].sum() + target[part].sum())
                places += rows * int(sum(widths))
        return 1 - real / max(1, places)


def _builds_kernels(config: RunConfig, context: AttemptContext) -> bool:
    """Return whether a processor builds kernels for products of each shape: in bf16."""
    precision = context.attempt.pinned.get("precision", precision_here(config.training.precision))
    return bool(precision == "bf16")


def _halves(most: int, fewest: int) -> Iterator[int]:
    """`most`, half of it, … down to `fewest`; at least `most`."""
    yield most
    while most > fewest:
        most //= 2
        yield most


def dev_perplexity(
    _config: RunConfig, model: Network, encoded: EncodedCorpus, device: Device
) -> Callable[[int], dict[str, float]]:
    """The callback for perplexity during training; dev is read once."""
    sides = encoded.set("dev").sides.values()
    sources, targets = ([side[i].tolist() for i in range(len(side))] for side in sides)

    def evaluate(_step: int) -> dict[str, float]:
        return {"perplexity": measure_likelihood(model, sources, targets, device).perplexity}

    return evaluate


PAIRS = CorpusReader(Batches, dev_perplexity)
