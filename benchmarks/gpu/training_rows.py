"""Common code of the benchmarks that train: rows of a study, generated data, and the training code of a run."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from ablations.planning.resolve import PlannedRow, resolve
from ablations.study.selectors import selection
from ablations.study.study import load_study
from experiments.attempt_context import AttemptContext
from experiments.config.run_config import RunConfig
from experiments.data.batching import BatchPlan
from experiments.data.corpora.corpus import SIDES
from experiments.data.encoding.sides import Side, Sides, SideWriter, piece_dtype
from experiments.data.encoding.tokenizer import EOS_ID
from experiments.data.shapes import Shapes
from experiments.device import Device, seed_everything
from experiments.device_spec import DeviceSpec
from experiments.errors import Preempted
from experiments.run_spec import RunSpec
from experiments.store.spec import AttemptSpec
from experiments.tasks.load import load_task
from experiments.tasks.network import MICRO_BATCH_TOKENS
from experiments.tasks.network_task import NetworkTask
from experiments.tasks.train_network import BatchSource
from experiments.training.ranks import Group
from experiments.training.state import Training
from experiments.training.trainer import train
from model.network import build_model
from model.protocol import Network

PAIRS, MEAN = 30_000, 28
PIECES = 4_000_000  # length of the generated text
TINY = ("data.vocab_size=500", "training.tokens_per_batch=400", "training.precision=auto")
NEVER = 10**9


def planned(study: str, profile: str, sets: tuple[str, ...], rows: str | None) -> list[PlannedRow]:
    """Return the named rows of a study, or all rows if `rows` is None."""
    found = load_study(study)
    return resolve(found, selection(profile, None, rows, 1, sets), load_task(found.task))


def text(folder: Path, vocabulary: int) -> Sides:
    """Write generated pieces in the format of an encoded text of one document."""
    dtype = piece_dtype(vocabulary)
    pieces = np.random.default_rng(1).integers(4, vocabulary, PIECES - 1)
    pieces[0] = EOS_ID
    writer = SideWriter(folder, "target", dtype)
    writer.add([pieces])  # type: ignore[list-item]
    writer.close()
    return {"target": Side(folder, "target", dtype)}


def pairs(folder: Path, vocabulary: int, spread: float, count: int = PAIRS) -> Sides:
    """Write generated pairs in the format of an encoded corpus.

    spread: standard deviation of the logarithm of lengths.
    """
    draw = np.random.default_rng(1)
    source = np.clip(np.rint(draw.lognormal(np.log(MEAN) - spread**2 / 2, spread, count)), 3, 200)
    target = np.clip(np.rint(source * draw.normal(1, 0.3 * spread, count)), 3, 200)
    lines = {
        side: [draw.integers(4, vocabulary, int(length)) for length in lengths]
        for side, lengths in zip(SIDES, (source, target), strict=True)
    }
    return written(folder, vocabulary, lines)


def written(folder: Path, vocabulary: int, lines: Mapping[str, Sequence[Any]]) -> Sides:
    """Write the pieces of both sides in the format of an encoded corpus."""
    dtype = piece_dtype(vocabulary)
    for side in SIDES:
        writer = SideWriter(folder, side, dtype)
        writer.add(lines[side])
        writer.close()
    return {side: Side(folder, side, dtype) for side in SIDES}


def shapes(row: PlannedRow, data: Sides, count: int | None) -> dict[str, Any]:
    """Return the facts that a run pins if its batches have `count` padded shapes and each is one micro-batch.

    count = 0 stands for free shapes. With count = None nothing is pinned.
    """
    if count is None or len(data) == 1:
        return {}
    training = cast(RunConfig, row.config).training
    source, target = (side.lengths for side in data.values())
    plan = BatchPlan(source, target, training.tokens_per_batch, 1)
    found = Shapes.fitted(plan, lambda batch: [batch], most=count).shapes if count else []
    return {"micro_batch_tokens": MICRO_BATCH_TOKENS["cuda"], "shapes": [list(shape) for shape in found]}


def context_of(device: Device, folder: Path, pinned: Mapping[str, Any] | None = None) -> AttemptContext:
    """Return the context of an attempt in `folder`. pinned: facts that the run's first attempt pinned."""
    spec = DeviceSpec("cuda" if device.is_cuda else "cpu", device.threads)
    attempt = AttemptSpec(RunSpec("benchmark", {}, {}), str(folder), 1, spec, pinned=pinned or {})
    return AttemptContext(attempt, folder, ignore, lambda: False)


def batches_of(
    row: PlannedRow,
    data: Sides,
    device: Device,
    folder: Path,
    group: Group | None = None,
    pinned: Mapping[str, Any] | None = None,
) -> BatchSource:
    """Return the micro-batches of a run of this row, by step. pinned: facts that the run's first attempt pinned."""
    config, group = cast(RunConfig, row.config), group or Group()
    context = context_of(device, folder, pinned)
    task = load_task(config.task)
    assert isinstance(task, NetworkTask)
    return task.reading().batches(config, context, data, (group.rank, group.size))


def new_model(row: PlannedRow, device: Device) -> Network:
    """Return the row's network with the initial weights of a run with seed 1."""
    config = cast(RunConfig, row.config)
    seed_everything(1)
    return build_model(config.model, config.data.vocab_size, device=device.torch_device)


def train_row(
    row: PlannedRow,
    data: Sides,
    device: Device,
    folder: Path,
    stop: Callable[[], bool],
    saw: Callable[[int, Any], None],
    group: Group | None = None,
    facts: dict[str, Any] | None = None,
    model: Network | None = None,
    pinned: Mapping[str, Any] | None = None,
) -> Network:
    """Train until `stop()` returns true or raises, and return the model.

    stop: called after every step.
    saw: called with each step's number and its micro-batches for this rank of `group`.
    facts: receives a description of the batches' padding before training.
    model: a `new_model` of this row, for callers that use it during the training.
    pinned: as in `batches_of`.
    """
    config, group = cast(RunConfig, row.config), group or Group()
    batches = batches_of(row, data, device, folder, group, pinned)
    if facts is not None:
        facts |= batches.describe()
    model = model or new_model(row, device)
    settings = config.training.model_copy(
        update={"train_steps": NEVER, "checkpoint_steps": NEVER, "eval_steps": 0, "keep_checkpoints": 1}
    )

    def seen(step: int) -> Any:
        found = batches(step)
        saw(step, found)
        return found

    try:
        with tempfile.TemporaryDirectory(dir=folder) as attempt:
            context = replace(context_of(device, Path(attempt), pinned), should_stop=stop)
            train(Training(model, config.model_copy(update={"training": settings}), context, device, group), seen)
    except Preempted:
        pass
    return model


def ignore(*_args: Any, **_facts: Any) -> None:
    """Discard an event of the trainer."""
