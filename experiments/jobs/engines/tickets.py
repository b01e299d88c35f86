"""Tickets: attempts for node workers, as files on the disk that all machines share.

    workers/tickets/<name>             an attempt that no worker has taken
    workers/requests/<name>.stop       a request to end one after a checkpoint; .kill: at once
    workers/<worker>/taken/<name>      an attempt of this worker; removed once its end is recorded
    workers/<worker>/worker.json       what the worker has to offer, and its setup lines
    workers/<worker>/job.json          the cluster's job; a worker takes nothing before it is known
    workers/<worker>/began.json, failed.json, log.txt

A worker takes a ticket by renaming it, which only one can do. Folders are listed and files not asked for by name,
because a network disk may answer for a while that a new file does not exist.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from experiments.jobs.devices.node import Node
from experiments.jobs.engines.remote import LAUNCH, record_exit
from experiments.store.sealed import read_json, write_json

WORKER, JOB, BEGAN, FAILED = "worker.json", "job.json", "began.json", "failed.json"
STOP, KILL = ".stop", ".kill"


@dataclass(frozen=True)
class Ticket:
    """An attempt, and the slots that it needs: `shares` of each of `devices`."""

    name: str  # by age
    folder: str
    kind: str
    devices: int = 1
    shares: int = 1

    @property
    def size(self) -> int:
        return self.devices * self.shares

    def fits(self, node: Node) -> bool:
        """Whether such a node, with nothing else on it, can run the attempt."""
        return self.kind == node.kind and self.devices <= node.devices and self.shares <= node.shares


class Tickets:
    """The tickets of a store; the workers of one engine take them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._waiting, self._requests = folder / "tickets", folder / "requests"
        self._read: dict[str, Ticket] = {}

    def create(self) -> None:
        for folder in (self._waiting, self._requests):
            folder.mkdir(parents=True, exist_ok=True)

    def add(self, ticket: Ticket) -> None:
        write_json(self._waiting / ticket.name, asdict(ticket))

    def waiting(self) -> list[Ticket]:
        """Tickets that no worker has taken, oldest first."""
        found = (self._ticket(self._waiting / name) for name in names(self._waiting))
        return [ticket for ticket in found if ticket]

    def taken(self, worker: str) -> list[Ticket]:
        """Tickets of a worker whose end is not recorded yet."""
        folder = self.folder / worker / "taken"
        return [ticket for name in names(folder) if (ticket := self._ticket(folder / name))]

    def take(self, ticket: Ticket, worker: str) -> bool:
        """Take a ticket for a worker; False if it is gone."""
        mine = self.folder / worker / "taken" / ticket.name
        with contextlib.suppress(OSError):  # a server may answer so though it has renamed the file
            (self._waiting / ticket.name).rename(mine)
        return mine.exists()

    def withdraw(self, name: str, attempt: Path, why: str) -> bool:
        """Remove a ticket that no worker has taken, and record that its attempt was not begun; False if one has."""
        try:
            (self._waiting / name).unlink()
        except OSError:
            return False
        (attempt / LAUNCH).unlink(missing_ok=True)  # its environment may contain secrets
        record_exit(attempt, None, why)
        return True

    def request(self, name: str, what: str) -> None:
        """Ask the worker that has taken a ticket to end its attempt: STOP or KILL."""
        (self._requests / f"{name}{what}").touch()

    def requests(self) -> list[tuple[str, str]]:
        """(ticket, STOP or KILL) of all requests."""
        return [(Path(name).stem, Path(name).suffix) for name in names(self._requests)]

    def done(self, name: str, worker: str) -> None:
        """Forget a ticket whose end is recorded."""
        for path in (
            self.folder / worker / "taken" / name,
            *(self._requests / f"{name}{what}" for what in (STOP, KILL)),
        ):
            path.unlink(missing_ok=True)

    def workers(self) -> Iterator[Path]:
        """Folders of workers with a known job."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self.folder) as entries:
            yield from (Path(entry.path) for entry in entries if JOB in names(Path(entry.path)))

    def _ticket(self, path: Path) -> Ticket | None:
        if path.name not in self._read:
            record = read_json(path)
            if record is None:  # taken just now
                return None
            self._read[path.name] = Ticket(**{name: record[name] for name in Ticket.__dataclass_fields__})
        return self._read[path.name]


def names(folder: Path) -> list[str]:
    """The files in a folder, sorted, without hidden ones; none if it does not exist."""
    try:
        return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []
