"""Rows of a study on generated data, trained with the code of a run: what the parts that train have in common."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np

from ablations.planning.planned import PlannedRow
from ablations.planning.resolve import resolve
from ablations.study.selectors import selection
from ablations.study.study import load_study
from experiments.config import DeviceSpec, RunConfig
from experiments.data.corpora.corpus import SIDES
from experiments.data.encoding.sides import Side, Sides, SideWriter, piece_dtype
from experiments.data.encoding.tokenizer import EOS_ID
from experiments.device import Device, seed_everything
from experiments.errors import Preempted
from experiments.tasks.base import Context
from experiments.tasks.load import load_task
from experiments.tasks.train_network import Batches, WindowBatches
from experiments.training.parallel import Group
from experiments.training.trainer import train
from model.network import build_model
from model.protocol import Network

PAIRS, MEAN = 30_000, 28
PIECES = 4_000_000  # of the generated text
TINY = ("data.vocab_size=500", "training.tokens_per_batch=400", "training.precision=auto")
NEVER = 10**9


def planned(study: str, profile: str, sets: tuple[str, ...], rows: str | None) -> list[PlannedRow]:
    """The rows of a study; all if `rows` is None."""
    found = load_study(study)
    return resolve(found, selection(profile, None, rows, 1, sets), load_task(found.task))


def text(folder: Path, vocabulary: int) -> Sides:
    """Generated pieces, laid out as an encoded text of one document."""
    dtype = piece_dtype(vocabulary)
    pieces = np.random.default_rng(1).integers(4, vocabulary, PIECES - 1)
    pieces[0] = EOS_ID
    writer = SideWriter(folder, "target", dtype)
    writer.add([pieces])  # type: ignore[list-item]
    writer.close()
    return {"target": Side(folder, "target", dtype)}


def pairs(folder: Path, vocabulary: int, spread: float, count: int = PAIRS, *, copied: int = 0) -> Sides:
    """Generated pieces, laid out as an encoded corpus. spread: of lengths, the deviation of their logarithm.

    copied: the targets are copies of their sources, which have so many kinds of pieces; 0: they have nothing in common.
    """
    draw = np.random.default_rng(1)
    source = np.clip(np.rint(draw.lognormal(np.log(MEAN) - spread**2 / 2, spread, count)), 3, 200)
    target = np.clip(np.rint(source * draw.normal(1, 0.3 * spread, count)), 3, 200)
    dtype = piece_dtype(vocabulary)
    lines = [draw.integers(4, 4 + copied if copied else vocabulary, int(length)) for length in source]
    for side, lengths in zip(SIDES, (source, target), strict=True):
        if side == "target" and not copied:
            lines = [draw.integers(4, vocabulary, int(length)) for length in lengths]
        writer = SideWriter(folder, side, dtype)
        writer.add(lines)  # type: ignore[arg-type]
        writer.close()
    return {side: Side(folder, side, dtype) for side in SIDES}


def train_row(
    row: PlannedRow,
    data: Sides,
    device: Device,
    folder: Path,
    stop: Callable[[], bool],
    saw: Callable[[int, Any], None],
    group: Group | None = None,
) -> tuple[Network, dict[str, Any]]:
    """Train until `stop()`, called after every step; `saw` gets each step's micro-batches, of this rank of a `group`.

    Returns the model and facts of padding.
    """
    config, group = cast(RunConfig, row.config), group or Group()
    spec = DeviceSpec("cuda" if device.is_cuda else "cpu", device.threads)
    context = Context(folder, "benchmark", folder, {}, spec, ignore, lambda: False)
    batches = (Batches if len(data) == 2 else WindowBatches)(config, context, data, (group.rank, group.size))
    seed_everything(1)
    model = build_model(config.model, config.data.vocab_size, device=device.torch_device)
    settings = config.training.model_copy(
        update={"train_steps": NEVER, "checkpoint_steps": NEVER, "eval_steps": 0, "keep_checkpoints": 1}
    )

    def seen(step: int) -> Any:
        found = batches(step)
        saw(step, found)
        return found

    try:
        with tempfile.TemporaryDirectory(dir=folder) as attempt:
            train(
                model,
                settings,
                d_model=config.model.d_model,
                batches=seen,
                seed=1,
                device=device,
                folder=Path(attempt),
                emit=ignore,
                should_stop=stop,
                meta={"lineage": "benchmark", "code": "benchmark"},
                group=group,
            )
    except Preempted:
        pass
    return model, batches.describe()


def ignore(*_args: Any, **_facts: Any) -> None:
    """The trainer's events, which no one reads here."""
