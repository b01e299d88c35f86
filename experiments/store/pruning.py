"""Find folders that can be deleted without losing a number of a table: checkpoints of finished runs."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from experiments.errors import UserError
from experiments.store.durable import discard, regular_files
from experiments.store.layout import Store


@dataclass(frozen=True)
class Removable:
    """A folder that can be deleted."""

    path: Path
    run_id: str
    what: str  # "checkpoints", "weights of an attempt that was done again", "half-written files"


def removable(store: Store, busy: Iterable[str] = ()) -> Iterator[Removable]:
    """Folders that no table reads. `busy`: runs that wait or run, which are left alone.

    Always kept: configurations, events, logs, results, evaluations, and the final weights. Without its checkpoints a
    run can no longer be averaged, evaluated at its best step, or trained for more steps.
    """
    busy = set(busy)
    for run_id in store.run_ids():
        if run_id in busy:
            continue
        try:
            result = store.result(run_id)
        except UserError:  # damaged: its weights may be all that is left
            continue
        for number in store.attempts(run_id):
            folder = store.attempt_folder(run_id, number)
            if result is None:
                for path in folder.glob("checkpoints/.*.partial"):
                    yield Removable(path, run_id, "half-written files")
                continue
            if (folder / "checkpoints").is_dir():
                yield Removable(folder / "checkpoints", run_id, "checkpoints")
            if result.attempt != number and (folder / "final").is_dir():
                yield Removable(folder / "final", run_id, "weights of an attempt that was done again")


def size(folders: Iterable[Path]) -> int:
    """Bytes that deleting would free; a file that also has a hard link elsewhere does not count."""
    links: dict[int, tuple[int, int, int]] = {}  # inode → bytes, total links, links found here
    for folder in folders:
        for path in regular_files(folder):
            stat = path.stat()
            found = links.get(stat.st_ino, (0, 0, 0))[2]
            links[stat.st_ino] = (stat.st_blocks * 512, stat.st_nlink, found + 1)
    return sum(count for count, there, found in links.values() if found >= there)


def remove(folders: Iterable[Path]) -> None:
    """Delete the folders, each so that a kill leaves none that looks complete."""
    for folder in folders:
        discard(folder)
