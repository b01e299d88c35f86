"""What of a store can go without a table losing a number: checkpoints of runs that are finished."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from experiments.errors import UserError
from experiments.store.durable import discard
from experiments.store.layout import Store


@dataclass(frozen=True)
class Removable:
    """A folder that may go, of a run and an attempt."""

    path: Path
    run_id: str
    what: str  # "checkpoints", "weights of an attempt that was done again", "half-written files"


def removable(store: Store, busy: Iterable[str] = ()) -> Iterator[Removable]:
    """Folders that no table reads; `busy` are runs that wait or run.

    Kept always: configurations, events, logs, results, evaluations, and the weights that count. Without its
    checkpoints a run can no longer be averaged, evaluated at its best step, or trained for more steps.
    """
    busy = set(busy)
    for run_id in store.run_ids():
        if run_id in busy:
            continue
        try:
            result = store.result(run_id)
        except UserError:  # damaged: its weights may be all there is of it
            continue
        for number in store.attempts(run_id):
            folder = store.attempt_folder(run_id, number)
            if result is None:
                for path in folder.glob("checkpoints/.*.partial"):
                    yield Removable(path, run_id, "half-written files")
                continue
            if (folder / "checkpoints").is_dir():
                yield Removable(folder / "checkpoints", run_id, "checkpoints")
            if int(result["attempt"]) != number and (folder / "final").is_dir():
                yield Removable(folder / "final", run_id, "weights of an attempt that was done again")


def size(folders: Iterable[Path]) -> int:
    """Bytes that would be free: a file that is hard-linked elsewhere too does not count."""
    links: dict[int, tuple[int, int, int]] = {}  # by inode: bytes, links there are, links found here
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                stat = path.stat()
                found = links.get(stat.st_ino, (0, 0, 0))[2]
                links[stat.st_ino] = (stat.st_blocks * 512, stat.st_nlink, found + 1)
    return sum(count for count, there, found in links.values() if found >= there)


def remove(folders: Iterable[Path]) -> None:
    for folder in folders:
        discard(folder)
