"""Decide which checkpoints a run keeps, find the files that may be deleted, and move removed runs to another folder.

Studies that share a run may need different checkpoints. For example, one study averages the last 5 checkpoints, and
another one evaluates a checkpoint every 500 steps and takes the best. The run is trained once and keeps the checkpoints
for all studies. Therefore, these demands are not part of its run_id. This module does not import torch.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from experiments.config.evaluation import EvaluationConfig
from experiments.config.training import TrainingConfig
from experiments.errors import UserError
from experiments.store.durable import discard, fsync_folder, regular_files
from experiments.store.layout import Store

SPACED = "spaced"  # checkpoints at multiples of `every`, and at the last step
BEST = "best"  # the checkpoint with the best dev score among the checkpoints at multiples of `every`
AT = "at"  # only the checkpoint of step `every`, with its optimizer state, because another run begins as its branch


class Keep(NamedTuple):
    """A demand for checkpoints.

    kept: number of checkpoints that the run keeps.
    needed: number of these checkpoints that a requested evaluation or branch uses. Later requests may use the other
    ones.
    """

    what: str
    every: int  # number of steps between checkpoints; for AT, the step of the checkpoint
    kept: int = 1
    needed: int = 0

    def steps(self, last_step: int) -> list[int]:
        """Return the steps of the needed checkpoints of a run with `last_step` steps, in ascending order.

        Return [] for BEST, because the step of the best checkpoint is not known in advance.
        """
        if self.what == AT:
            return [self.every] if self.needed and self.every <= last_step else []
        if self.what != SPACED or not self.needed:
            return []
        return spaced_steps(last_step, self.every, self.needed)


def spaced_steps(last_step: int, every: int, count: int) -> list[int]:
    """Return the last `count` checkpoint steps, ascending.

    Checkpoints are at multiples of `every` and at the last step.
    """
    return [*range(every, last_step, every), *([last_step] if last_step else [])][-count:]


def at_steps(steps: Iterable[int]) -> tuple[Keep, ...]:
    """Return the demands of branches that begin after these steps."""
    return tuple(Keep(AT, step, 1, 1) for step in steps)


def keeps_of(training: TrainingConfig, evaluation: EvaluationConfig | None = None) -> tuple[Keep, ...]:
    """Return the demands of one configuration."""
    kind, _, number = evaluation.checkpoint.partition(":") if evaluation else ("last", "", "")
    averaged, best = int(number or 0) if kind == "average" else 0, kind == "best"
    spaced = Keep(SPACED, training.checkpoint_steps, max(training.keep_checkpoints, averaged), averaged)
    return (spaced, Keep(BEST, training.eval_steps, 1, int(best))) if training.eval_steps else (spaced,)


def union(*demands: Iterable[Keep]) -> tuple[Keep, ...]:
    """Return all demands. Demands of the same kind with the same `every` become one demand that fulfils all of them."""
    found: dict[tuple[str, int], Keep] = {}
    for keep in (Keep(*keep) for some in demands for keep in some):
        other = found.get((keep.what, keep.every), keep)
        kept, needed = max(keep.kept, other.kept), max(keep.needed, other.needed)
        found[keep.what, keep.every] = keep._replace(kept=kept, needed=needed)
    return tuple(found[key] for key in sorted(found))


@dataclass(frozen=True)
class Removable:
    """A folder that can be deleted without changing a table."""

    path: Path
    run_id: str
    what: str  # "checkpoints", "weights of an attempt that was done again", "files left by a kill"


def removable(store: Store, busy: Iterable[str] = ()) -> Iterator[Removable]:
    """Yield the folders that no table reads.

    Configurations, events, logs, results, evaluations and the final weights are always kept. After the checkpoints of a
    run are removed, an evaluation can no longer use an average of checkpoints or the best checkpoint. Also, the run can
    no longer be continued with more steps.

    busy: run_ids of waiting and running runs, whose folders are skipped.
    """
    busy = set(busy)
    for run_id in store.run_ids():
        if run_id in busy:
            continue
        try:
            result = store.result(run_id)
        except UserError:  # the record is damaged, so the weights may be the only usable files
            continue
        for number in store.attempts(run_id):
            folder = store.attempt_folder(run_id, number)
            for path in folder.glob("checkpoints/.*.partial" if result is None else ".*.partial"):
                yield Removable(path, run_id, "files left by a kill")
            if result is None:
                continue
            if (folder / "checkpoints").is_dir():
                yield Removable(folder / "checkpoints", run_id, "checkpoints")
            if result.attempt != number and (folder / "final").is_dir():
                yield Removable(folder / "final", run_id, "weights of an attempt that was done again")


def size(folders: Iterable[Path]) -> int:
    """Return the number of bytes that become free if the folders are deleted.

    A file that has a hard link outside of the folders is not counted.
    """
    links: dict[int, tuple[int, int, int]] = {}  # inode → bytes, total links, links found here
    for folder in folders:
        for path in regular_files(folder):
            stat = path.stat()
            found = links.get(stat.st_ino, (0, 0, 0))[2]
            links[stat.st_ino] = (stat.st_blocks * 512, stat.st_nlink, found + 1)
    return sum(count for count, there, found in links.values() if found >= there)


def remove(folders: Iterable[Path]) -> None:
    """Delete the folders. If the process is killed meanwhile, no partly deleted folder looks complete."""
    for folder in folders:
        discard(folder)


FOLDER = "forgotten"


def put_aside(store: Store, run_id: str) -> None:
    """Move a run's folder to STORE/forgotten in one step. The caller must hold the store's coordinator lock."""
    source = store.run_folder(run_id)
    target = store.root / FOLDER / source.name
    if not source.is_dir():
        return
    target.parent.mkdir(exist_ok=True)
    number = 0
    while target.exists():  # the run was put aside before, and was trained again later
        number += 1
        target = target.with_name(f"{run_id}.{number}")
    source.rename(target)
    fsync_folder(source.parent)
    fsync_folder(target.parent)
