"""The context that a user's trainer receives: a folder, checkpoints, events; it takes the trainer's metrics.

Imports no torch.
"""

import contextlib
import functools
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.attempt_context import AttemptContext
from experiments.client.ablations_task.process import device_name
from experiments.client.ablations_task.trainer import LONGEST_NAME
from experiments.client.ablations_task.values import text
from experiments.errors import Damaged, Diverged
from experiments.messages import number
from experiments.store.checksummed import check_file, describe_file, read_json, write_json
from experiments.store.durable import discard, fsync_tree, regular_files, remove_folder, whole_folder

FINAL, EXAMPLES, CHECKPOINTS = "final", "examples", "checkpoints"
KEPT = 2  # checkpoints


def open_folder(context: AttemptContext) -> Path | None:
    """Make the folder of a trainer. Returns the newest complete checkpoint of the run, None at its first start."""
    (context.folder / FINAL).mkdir(exist_ok=True)
    newest = _newest(context)
    if newest is not None:
        step, path = int(newest.name.removeprefix("step-")), "/".join(newest.parts[-3:])
        context.emit("resumed", step=step, path=path, run=newest.parents[3].name)
    return newest


def report(context: AttemptContext, message: Mapping[str, Any]) -> None:
    """Append what the trainer reported to the attempt's events."""
    fields = {name: value for name, value in message.items() if name != "event"}
    if "metrics" in fields:
        fields["metrics"] = of_point(fields["metrics"])
    context.emit(str(message["event"]), **fields)


@contextlib.contextmanager
def new_checkpoint(context: AttemptContext, step: int) -> Iterator[Path]:
    """A new folder for the state. Complete once the block ends; a kill inside the block leaves the former one."""
    home = context.folder / CHECKPOINTS
    path = home / f"step-{step:08d}"
    home.mkdir(exist_ok=True)  # not its parents: a store that was moved is not begun again here
    with whole_folder(path, replace=True) as aside:
        yield aside
        write_json(_description(path), {"step": step, "files": _described(aside)})
    context.emit("checkpoint", step=step, path=f"{CHECKPOINTS}/{path.name}")
    for old in checkpoints(context.folder)[:-KEPT]:
        discard(old)
        _description(old).unlink(missing_ok=True)


def close_folder(context: AttemptContext, facts: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Remove the checkpoints, which are no longer needed; `facts` of the trainer completed by those of its device."""
    final, kind, threads = context.folder / FINAL, context.device.kind, context.device.threads
    remove_folder(context.folder / CHECKPOINTS)
    fsync_tree(final)
    name = device_name(kind, threads) or f"processor ({number(threads, 'thread')})"
    device = {"device_kind": kind, "threads": threads, "device": name}
    return {**device, **(facts or {}), "example_files": _described(final / EXAMPLES)}


def _newest(context: AttemptContext) -> Path | None:
    """The newest checkpoint with unchanged files; others are reported and skipped."""
    complete = [path for folder in (context.folder, *context.earlier) for path in checkpoints(folder)]
    for path in sorted(complete, key=lambda path: path.name, reverse=True):
        try:
            described = read_json(_description(path))
            if described is None:
                raise Damaged(f"{_description(path).name}, which describes it, is missing")
            for name, written in described["files"].items():
                check_file(path / name, written)
        except Damaged as damage:
            context.emit("checkpoint_skipped", path="/".join(path.parts[-3:]), reason=str(damage))
        else:
            return path
    return None


def _description(path: Path) -> Path:
    """Record the files of a checkpoint with their hashes, beside its folder, which belongs to the user."""
    return path.with_name(f".{path.name}.json")


def _described(folder: Path) -> dict[str, Any]:
    """Sizes and hashes of the regular files below a folder, except those that their owner made unreadable."""
    described = {}
    for path in sorted(regular_files(folder)):
        with contextlib.suppress(PermissionError):
            described[str(path.relative_to(folder))] = describe_file(path)
    return described


def checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints of an attempt, oldest first."""
    return sorted((folder / CHECKPOINTS).glob("step-*"))


def keep_metrics(folder: Path, metrics: Mapping[str, Mapping[str, float]]) -> None:
    """Write the metrics by set."""
    folder.mkdir(exist_ok=True)  # a trainer may have removed its folder at its end
    write_json(folder / "metrics.json", metrics)


# --- The metrics that a user's trainer reported: which are recorded, of a set and of a step


Metrics = dict[str, dict[str, float]]
MOST, MOST_OF_A_POINT = 10_000, 1_000  # metrics of a set, and of a point of the curve: MLflow takes minutes for more
SHOWN = 1_000  # characters of their names in a message
log = logging.getLogger(__name__)


def of_point(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics of a point of the curve that are recorded."""
    return _few({text(name): value for name, value in metrics.items()}, MOST_OF_A_POINT)


def _few(metrics: Mapping[str, float], most: int) -> dict[str, float]:
    """The first of them, without names that no column can have; the log says how many are left out."""
    names = [name for name in metrics if len(name) <= LONGEST_NAME][:most]
    _say(len(metrics) - len(names), most)
    return {name: metrics[name] for name in names}


@functools.cache  # once: a training may have a million points
def _say(left_out: int, most: int) -> None:
    if left_out:
        log.warning(
            "%s of the trainer's metrics are left out: at most %s are recorded %s, with names of at most %s characters",
            f"{left_out:,}", f"{most:,}", "for a set" if most == MOST else "for a step", LONGEST_NAME,
        )  # fmt: skip


def of_set(kept: Metrics, set_: str, promised: Sequence[str]) -> dict[str, float]:
    """The metrics of one set among those that a trainer reported.

    `promised` as in EvaluationSpec: "dev.accuracy", or "accuracy" if there is one set only; then metrics without a set
    are this one's.
    """
    alone = not any(name.startswith(f"{set_}.") for name in promised)
    return {**(kept.get("", {}) if alone else {}), **kept.get(set_, {})}


def recorded(metrics: Mapping[str, float], set_: str, promised: Sequence[str]) -> dict[str, float]:
    """The metrics of a set that are recorded: the promised ones, and other finite ones, at most MOST in all.

    Raises Diverged for a promised metric that is not finite.
    """
    names = [name for each in promised if (name := each.removeprefix(f"{set_}.")) in metrics]
    for name in names:
        if not math.isfinite(metrics[name]):
            value = {"nan": "NaN", "inf": "infinity", "-inf": "-infinity"}[str(metrics[name])]
            raise Diverged(f"The run ended with {name} = {value} on the set {set_}: counted as diverged.")
    first = {name: metrics[name] for name in names}
    return _few(first | {name: value for name, value in metrics.items() if math.isfinite(value)}, MOST)


def not_returned(name: str, set_: str, kept: Metrics) -> str:
    """A message for a promised metric that the trainer did not return, with those that it did return."""
    there = ", ".join(f"{s}.{m}" if s else m for s, metrics in kept.items() for m in metrics) or "nothing"
    there = f"{there[:SHOWN]} …" if len(there) > SHOWN else there
    return (
        f"The trainer did not return {name} for the set {set_}, which the table prints. It returned {there}. Return "
        "it, or correct the name of the column."
    )
