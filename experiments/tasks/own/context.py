"""Handle the folder, checkpoints, events and metrics of a user's trainer in the child process.

This module does not import torch.
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
KEPT = 2  # number of newest checkpoints that are kept


def open_folder(context: AttemptContext) -> Path | None:
    """Create the folder of a trainer. Return the newest complete checkpoint of the run, or None if there is none."""
    (context.folder / FINAL).mkdir(exist_ok=True)
    newest = _newest(context)
    if newest is not None:
        step, path = int(newest.name.removeprefix("step-")), "/".join(newest.parts[-3:])
        context.emit("resumed", step=step, path=path, run=newest.parents[3].name)
    return newest


def report(context: AttemptContext, message: Mapping[str, Any]) -> None:
    """Append a message of the trainer to the attempt's events."""
    fields = {name: value for name, value in message.items() if name != "event"}
    if "metrics" in fields:
        fields["metrics"] = of_point(fields["metrics"])
    context.emit(str(message["event"]), **fields)


@contextlib.contextmanager
def new_checkpoint(context: AttemptContext, step: int) -> Iterator[Path]:
    """Return a context whose value is a new folder for the state of the training.

    The checkpoint is complete when the block ends. If the process is killed inside the block, the previous checkpoint
    remains.
    """
    home = context.folder / CHECKPOINTS
    path = home / f"step-{step:08d}"
    home.mkdir(exist_ok=True)  # no parents=True, because a store that was moved must not be created again
    with whole_folder(path, replace=True) as aside:
        yield aside
        write_json(_description(path), {"step": step, "files": _described(aside)})
    context.emit("checkpoint", step=step, path=f"{CHECKPOINTS}/{path.name}")
    for old in checkpoints(context.folder)[:-KEPT]:
        discard(old)
        _description(old).unlink(missing_ok=True)


def close_folder(context: AttemptContext, facts: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Remove the checkpoints of a finished training. Return `facts` together with facts about the device and files."""
    final, kind, threads = context.folder / FINAL, context.device.kind, context.device.threads
    remove_folder(context.folder / CHECKPOINTS)
    fsync_tree(final)
    name = device_name(kind, threads) or f"processor ({number(threads, 'thread')})"
    device = {"device_kind": kind, "threads": threads, "device": name}
    return {**device, **(facts or {}), "example_files": _described(final / EXAMPLES)}


def _newest(context: AttemptContext) -> Path | None:
    """Return the newest checkpoint whose files are unchanged. Damaged checkpoints are reported and skipped."""
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
    """Return the file with the hashes of a checkpoint's files. This file is outside the checkpoint's folder."""
    return path.with_name(f".{path.name}.json")


def _described(folder: Path) -> dict[str, Any]:
    """Return the sizes and hashes of the regular files below a folder. Unreadable files are left out."""
    described = {}
    for path in sorted(regular_files(folder)):
        with contextlib.suppress(PermissionError):
            described[str(path.relative_to(folder))] = describe_file(path)
    return described


def checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints of an attempt, the oldest first."""
    return sorted((folder / CHECKPOINTS).glob("step-*"))


def keep_metrics(folder: Path, metrics: Mapping[str, Mapping[str, float]]) -> None:
    """Write the metrics, by set, to metrics.json."""
    folder.mkdir(exist_ok=True)  # the trainer may have removed its folder
    write_json(folder / "metrics.json", metrics)


Metrics = dict[str, dict[str, float]]
MOST, MOST_OF_A_POINT = 10_000, 1_000  # metrics recorded per set and per step; MLflow would take minutes for more
SHOWN = 1_000  # maximum length of the list of metrics in a message
log = logging.getLogger(__name__)


def of_point(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that are recorded for a point of the training curve."""
    return _few({text(name): value for name, value in metrics.items()}, MOST_OF_A_POINT)


def _few(metrics: Mapping[str, float], most: int) -> dict[str, float]:
    """Return the first `most` metrics whose names are not too long. Log how many metrics are left out."""
    names = [name for name in metrics if len(name) <= LONGEST_NAME][:most]
    _say(len(metrics) - len(names), most)
    return {name: metrics[name] for name in names}


@functools.cache  # log each message once, because a training may have a million points
def _say(left_out: int, most: int) -> None:
    if left_out:
        log.warning(
            "%s of the trainer's metrics are left out: at most %s are recorded %s, with names of at most %s characters",
            f"{left_out:,}", f"{most:,}", "for a set" if most == MOST else "for a step", LONGEST_NAME,
        )  # fmt: skip


def of_set(kept: Metrics, set_: str, promised: Sequence[str]) -> dict[str, float]:
    """Return the metrics of one set.

    kept: the metrics that the trainer reported, by set.
    promised: the metrics that the study prints, as in EvaluationSpec: names such as "dev.accuracy", or "accuracy" if
        the study prints only one set. If it prints only one set, metrics without a set belong to this set.
    """
    alone = not any(name.startswith(f"{set_}.") for name in promised)
    return {**(kept.get("", {}) if alone else {}), **kept.get(set_, {})}


def recorded(metrics: Mapping[str, float], set_: str, promised: Sequence[str]) -> dict[str, float]:
    """Return the metrics of a set that are recorded: the promised metrics and other finite metrics, at most MOST.

    Raises Diverged if a promised metric is not finite.
    """
    names = [name for each in promised if (name := each.removeprefix(f"{set_}.")) in metrics]
    for name in names:
        if not math.isfinite(metrics[name]):
            value = {"nan": "NaN", "inf": "infinity", "-inf": "-infinity"}[str(metrics[name])]
            raise Diverged(f"The run ended with {name} = {value} on the set {set_}: counted as diverged.")
    first = {name: metrics[name] for name in names}
    return _few(first | {name: value for name, value in metrics.items() if math.isfinite(value)}, MOST)


def not_returned(name: str, set_: str, kept: Metrics) -> str:
    """Return the error message for a promised metric that the trainer did not return."""
    there = ", ".join(f"{s}.{m}" if s else m for s, metrics in kept.items() for m in metrics) or "nothing"
    there = f"{there[:SHOWN]} …" if len(there) > SHOWN else there
    return (
        f"The trainer did not return {name} for the set {set_}, which the table prints. It returned {there}. Return "
        "it, or correct the name of the column."
    )
