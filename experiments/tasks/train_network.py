"""Train a network of model/, and return facts for the run's record.

Only the child process imports this module, because it imports torch.
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
from experiments.config.training import TrainingConfig
from experiments.data.collate import Batch
from experiments.data.encoding.encoded import EncodedCorpus
from experiments.data.encoding.sides import Sides
from experiments.device import Device, naming_out_of_memory, seed_everything
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
STEPS = 8  # number of first training steps whose batches a network change may read


class BatchSource(Protocol):
    """A function that returns the micro-batches of a step (the first step is 1).

    The result depends only on the seed and the step.
    """

    def __call__(self, step: int) -> list[Batch[Tensor]]: ...

    def trained_on(self, steps: int) -> tuple[Lengths, Lengths, Lengths]:
        """Return three arrays with one entry per pair: how often it was used, its source length and its target length.

        The first array counts the uses in the first `steps` updates by all ranks together.
        """

    def describe(self) -> dict[str, Any]:
        """Return facts for the record."""

    @property
    def pinned(self) -> dict[str, Any]:
        """The values that later attempts need to divide and pad the batch of a step in the same way."""


def first_batches(batches: BatchSource) -> Iterator[Batch[Tensor]]:
    """Yield the micro-batches of the first STEPS steps."""
    return (batch for step in range(1, STEPS + 1) for batch in batches(step))


class Material(NamedTuple):
    """The data that a network is trained on.

    batches: function from (rank, number of ranks) to the source of batches.
    dev: function from (network, device) to a callback, which takes the step and returns the metrics on dev.
    data: facts for the record.
    files: name → content of the files to store with the final weights, such as tokenizers.
    """

    batches: Callable[[tuple[int, int]], BatchSource]
    dev: Callable[[Network, Device], Callable[[int], Mapping[str, float]]]
    data: Mapping[str, Any]
    files: Mapping[str, bytes]


def train_network(
    config: RunConfig, context: AttemptContext, material: Material, vocab_sizes: tuple[int, int]
) -> dict[str, Any]:
    """Train to the end, together with the other ranks if there are any. Return facts for the run's record.

    vocab_sizes: target and source vocabulary sizes.
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
    """Set torch's number of threads and return it.

    Use the number of the first attempt. The first attempt measures which number is fastest.
    """
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
    """Return whether the layers are compiled.

    The plan usually replaces the value "auto" of `training.compile`. If it is still "auto", nothing is compiled.

    gpu: whether the device is a GPU.
    """
    return settings.compile is True or (settings.compile == "cuda" and gpu)


def _trained_on(
    config: RunConfig,
    target_vocab_size: int,
    batches: BatchSource,
    steps: tuple[int, int],
    added: Sequence[Callable[[Any, Any], Any]],
) -> dict[str, Any]:
    """Return the numbers of tokens and floating-point operations of a training.

    The operations are computed from the lengths of all pairs that were used (model/cost.py has the formula).

    steps: the step after which a branch begins (0 for other runs), and the last step. Only later steps are counted.
    added: functions that return the operations that network changes add (`NetworkChange.operations`).
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


class CorpusReader(NamedTuple):
    """Functions that read an encoded corpus for a training and create `Material.batches` and `Material.dev`."""

    batches: Callable[[RunConfig, AttemptContext, Sides, tuple[int, int]], BatchSource]
    dev: Callable[[RunConfig, Network, EncodedCorpus, Device], Callable[[int], dict[str, float]]]


def train_encoded(
    config: RunConfig,
    context: AttemptContext,
    encoded: EncodedCorpus,
    vocab_sizes: tuple[int, int],
    reading: CorpusReader,
) -> dict[str, Any]:
    """Train on an encoded corpus to the end. Return facts for the run's record.

    vocab_sizes: target and source vocabulary sizes.
    """
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
    """Yield the micro-batches of the first STEPS steps of a training, which network changes may read."""
    return first_batches(reading.batches(config, context, encoded.train, (0, 1)))


def to_tensors(batch: Batch[NDArray[np.int64]], *, pin: bool = False, rows: int = 0) -> Batch[Tensor]:
    """Return a batch as int64 tensors.

    pin: whether to use pinned memory, which can be copied to a GPU asynchronously.
    rows: number of target positions for which the loss is computed. If the batch has fewer target tokens, positions
        of padding are added to reach this number.
    """
    arrays = (batch.source, batch.target_input, batch.target_output)
    source, read, predicted = (torch.from_numpy(array) for array in arrays)
    real = real_places(predicted, min(rows, predicted.numel()))
    if pin:
        source, read, predicted, real = (tensor.pin_memory() for tensor in (source, read, predicted, real))
    return Batch(source, read, predicted, batch.num_source_tokens, batch.num_target_tokens, real)
