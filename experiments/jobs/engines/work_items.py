"""Work items: files on the shared disk that describe attempts for node workers.

    workers/items/<name>               an attempt that no worker has taken
    workers/requests/<name>.stop       a request to end an attempt after a checkpoint
    workers/requests/<name>.kill       a request to end an attempt immediately
    workers/<worker>/taken/<name>      an attempt of this worker; removed once its end is recorded
    workers/<worker>/worker.json       the slots of the worker (`Node`)
    workers/<worker>/job.json          the cluster's job; a worker takes no attempt before this file exists
    workers/<worker>/began.json, failed.json, log.txt

A worker takes an item by renaming the item's file. If several workers try this, only one succeeds. The code lists
folders instead of checking for files by name, because a network disk may report for a while that a new file does not
exist.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from experiments.jobs.devices.node import Node
from experiments.jobs.engines.keeper import LAUNCH, record_exit
from experiments.store.checksummed import read_json, write_json

WORKER, JOB, BEGAN, FAILED = "worker.json", "job.json", "began.json", "failed.json"
STOP, KILL = ".stop", ".kill"


@dataclass(frozen=True)
class WorkItem:
    """An attempt and the slots that it needs: `shares` shares of each of `devices` devices."""

    name: str  # begins with the time of creation, so that sorted names are in order of age
    folder: str
    kind: str
    devices: int = 1
    shares: int = 1

    @property
    def size(self) -> int:
        return self.devices * self.shares

    def fits(self, node: Node) -> bool:
        """Return whether the attempt can run on `node` if no other attempt runs there."""
        return self.kind == node.kind and self.devices <= node.devices and self.shares <= node.shares


class WorkItems:
    """The work items of a store, which the workers of one engine take."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._waiting, self._requests = folder / "items", folder / "requests"
        self._read: dict[str, WorkItem] = {}

    def create(self) -> None:
        for folder in (self._waiting, self._requests):
            folder.mkdir(parents=True, exist_ok=True)

    def add(self, item: WorkItem) -> None:
        write_json(self._waiting / item.name, asdict(item))

    def waiting(self) -> list[WorkItem]:
        """Return the items that no worker has taken, oldest first."""
        found = (self._item(self._waiting / name) for name in file_names(self._waiting))
        return [item for item in found if item]

    def taken(self, worker: str) -> list[WorkItem]:
        """Return the items that a worker has taken and whose end it has not recorded yet."""
        folder = self.folder / worker / "taken"
        return [item for name in file_names(folder) if (item := self._item(folder / name))]

    def take(self, item: WorkItem, worker: str) -> bool:
        """Take an item for a worker. Return False if another worker has taken it."""
        mine = self.folder / worker / "taken" / item.name
        with contextlib.suppress(OSError):  # a file server may report an error although it has renamed the file
            (self._waiting / item.name).rename(mine)
        return mine.exists()

    def withdraw(self, name: str, attempt: Path, why: str) -> bool:
        """Remove an item that no worker has taken, and record that its attempt did not begin.

        Returns False if a worker has taken the item.
        """
        try:
            (self._waiting / name).unlink()
        except OSError:
            return False
        (attempt / LAUNCH).unlink(missing_ok=True)  # the environment in it may contain secrets
        record_exit(attempt, None, why)
        return True

    def request(self, name: str, what: str) -> None:
        """Ask the worker that has taken an item to end its attempt: STOP (after a checkpoint) or KILL."""
        (self._requests / f"{name}{what}").touch()

    def requests(self) -> list[tuple[str, str]]:
        """Return all requests as (item, STOP or KILL)."""
        return [(Path(name).stem, Path(name).suffix) for name in file_names(self._requests)]

    def done(self, name: str, worker: str) -> None:
        """Remove the files of an item whose end is recorded."""
        for path in (
            self.folder / worker / "taken" / name,
            *(self._requests / f"{name}{what}" for what in (STOP, KILL)),
        ):
            path.unlink(missing_ok=True)

    def workers(self) -> Iterator[Path]:
        """Yield the folders of the workers whose cluster job is known."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self.folder) as entries:
            yield from (Path(entry.path) for entry in entries if JOB in file_names(Path(entry.path)))

    def _item(self, path: Path) -> WorkItem | None:
        if path.name not in self._read:
            record = read_json(path)
            if record is None:  # a worker has just taken the item
                return None
            self._read[path.name] = WorkItem(**{name: record[name] for name in WorkItem.__dataclass_fields__})
        return self._read[path.name]


def file_names(folder: Path) -> list[str]:
    """Return the sorted names of the files in a folder, without hidden ones; [] if the folder does not exist."""
    try:
        return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []
