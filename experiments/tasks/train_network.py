"""Train a network of this program on any batches, and describe it for the run's record.

Only the child imports it: it needs torch.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from experiments.config import RunConfig
from experiments.data.batches.batch import Batch
from experiments.device import Device, resolve_precision, seed_everything
from experiments.identity import lineage
from experiments.store.keeps import BEST, Keep
from experiments.tasks.base import Context
from experiments.training.checkpoints.checkpoint import add_file
from experiments.training.checkpoints.start import Start
from experiments.training.parallel.group import Group
from experiments.training.parallel.lanes import lanes_for
from experiments.training.parallel.ranks import joined
from experiments.training.trainer import train
from model import cost
from model.factory import build_model
from model.protocol import Network

Lengths = NDArray[np.int64]


class BatchSource(Protocol):
    """Step (from 1) → micro-batches, a pure function of (seed, step)."""

    max_tokens: int  # places per side of a micro-batch

    def __call__(self, step: int) -> list[Batch[Tensor]]: ...

    def trained_on(self, steps: int) -> tuple[Lengths, Lengths, Lengths]:
        """Of the first `steps` updates of all ranks: how often each length occurs, source and target pieces."""

    def describe(self) -> dict[str, Any]:
        """Facts for the record."""


class Material(NamedTuple):
    """What a network is trained on."""

    batches: Callable[[tuple[int, int], int], BatchSource]  # of (rank, ranks) and lanes
    dev: Callable[[Network, Device], Callable[[int], Mapping[str, float]]]  # measures dev during the training
    data: Mapping[str, Any]  # facts for the record
    files: Mapping[str, bytes]  # go beside the final weights: tokenizers


def train_network(
    config: RunConfig, context: Context, material: Material, vocab_sizes: tuple[int, int], keeps: Sequence[Keep]
) -> dict[str, Any]:
    """Train to the end, alone or with the other ranks; returns the facts of the run's record.

    vocab_sizes: target and source. keeps: checkpoints needed by evaluations, this run's and those of other studies.
    """
    precision = context.pinned.get("precision", config.training.precision)
    device = Device.open(context.device, precision, deterministic=config.training.deterministic, rank=context.rank)
    if config.evaluation.precision == "int8":  # refused now, not after the training
        resolve_precision("int8", device.torch_device)
    with joined(context.device, context.rank, context.port, context.start_ranks) as group:
        return _train(config, context, material, vocab_sizes, keeps, device, group)


def _train(
    config: RunConfig,
    context: Context,
    material: Material,
    vocab_sizes: tuple[int, int],
    keeps: Sequence[Keep],
    device: Device,
    group: Group,
) -> dict[str, Any]:
    settings = config.training
    seed_everything(config.seed)
    model = build_model(config.model, *vocab_sizes, device=device.torch_device)
    if "attention_kernel" in context.pinned:
        model.set_attention_kernel(context.pinned["attention_kernel"])
    lanes = lanes_for(model, settings, device, group)
    batches = material.batches((group.rank, group.size), lanes)
    context.emit("pinned", micro_batch_tokens=batches.max_tokens)
    measures = any(keep.what == BEST for keep in keeps)
    facts = train(
        model,
        settings,
        d_model=config.model.d_model,
        batches=batches,
        seed=config.seed,
        device=device,
        folder=context.folder,
        emit=context.emit,
        should_stop=context.should_stop,
        earlier=context.earlier,
        start=Start(*context.trunk) if context.trunk else None,
        evaluate=material.dev(model, device) if measures else None,
        meta={"lineage": lineage(config, context.inputs), "code": context.code_digest, "run_id": context.run_id},
        group=group,
        lanes=lanes,
        keeps=keeps,
    )
    if not group.leads:
        return facts
    for name, content in material.files.items():
        add_file(context.folder / "final", name, content)
    return {
        "num_params": cost.num_params(config.model, *vocab_sizes),
        "seed": config.seed,
        "data": dict(material.data),
        "batches": batches.describe(),
        **facts,
        **_trained_on(config, vocab_sizes[0], batches, facts["step"], context.trunk[0].step if context.trunk else 0),
    }


def _trained_on(
    config: RunConfig, target_vocab_size: int, batches: BatchSource, steps: int, shared: int
) -> dict[str, Any]:
    """Tokens and operations of a training, from the lengths that it used (model/cost.py has the formula).

    shared: the first steps of a branch, which its trunk trained: they are not counted here.
    """

    def until(step: int) -> NDArray[np.float64]:
        seen, source, target = batches.trained_on(step)
        forward = cost.forward_flops(config.model, target_vocab_size, source, target)
        sums = ((seen * source).sum(), (seen * target).sum(), (seen * cost.TRAINING * forward).sum())
        return np.array(sums, dtype=np.float64)

    found = until(steps) - until(shared) if shared else until(steps)
    source_tokens, tokens, flops = int(found[0]), int(found[1]), float(found[2])
    return {
        "source_tokens": source_tokens,
        "target_tokens": tokens,
        "flops": flops,
        "flops_per_token": round(flops / max(1, tokens)),
    }
