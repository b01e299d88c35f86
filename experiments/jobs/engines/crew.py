"""The node workers of a store: find those that live, submit more while attempts wait, judge those that have ended."""

import math
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.errors import UserError
from experiments.jobs.devices.node import Node
from experiments.jobs.engines.base import Handle, Launch, child_environment
from experiments.jobs.engines.cluster import ClusterEngine
from experiments.jobs.engines.remote import recorded_exit
from experiments.jobs.engines.tickets import BEGAN, FAILED, JOB, WORKER, Ticket, Tickets, names
from experiments.store.durable import remove_folder
from experiments.store.sealed import read_json, write_json

TRIES = 3  # workers in a row that may end before they begin
PROGRAM = (sys.executable, "-P", "-m", "experiments.jobs.engines.node_worker")
SAFE = "No run was lost: the same command continues."


@dataclass(frozen=True)
class Crew:
    """At most so many workers at a time, each with the slots of `node`, after these shell lines."""

    workers: int
    node: Node
    setup: Sequence[str] = ()


class Workers:
    """`living` are those that the cluster still has, by the name of their folder. `why`: why the last one failed."""

    def __init__(self, cluster: ClusterEngine, tickets: Tickets, crew: Crew | None) -> None:
        self._cluster, self._tickets, self._crew = cluster, tickets, crew
        self.living: dict[str, Handle] = {}
        self.why = ""
        self._nodes: dict[str, Node] = {}
        self._misses = 0  # workers in a row that ended before they began
        self._hopeless = False  # another worker would end the same way

    def look(self) -> None:
        """Adopt workers of earlier coordinators, and take leave of those that have ended."""
        for folder in self._tickets.workers():
            if folder.name not in self.living:
                self._find(folder)
        for name, worker in list(self.living.items()):
            if self._cluster.poll(worker) is not None:
                self._gone(name)

    def keep_alive(self) -> None:
        """Submit workers for the tickets that there are. Raises UserError if workers end before they begin."""
        crew = self._crew
        if crew is None:
            return
        waiting = [ticket for ticket in self._tickets.waiting() if ticket.fits(crew.node)]
        taken = [ticket for name in self.living for ticket in self._tickets.taken(name)]
        wanted = min(crew.workers, math.ceil(sum(ticket.size for ticket in waiting + taken) / crew.node.at_once))
        tries = 0 if self._hopeless else TRIES - self._misses
        if waiting and not self.living and tries <= 0:
            raise UserError(self.why)
        if waiting and wanted > len(self.living) and tries > 0:
            self._submit(wanted - len(self.living), crew)

    def serve(self, ticket: Ticket) -> bool:
        """Whether there is or will be a worker for a ticket that waits."""
        nodes = [self._nodes[name] for name in self.living] + ([self._crew.node] if self._crew else [])
        return any(ticket.fits(node) for node in nodes)

    def reasons(self) -> list[str]:
        """Why workers that are submitted have not begun, each reason once."""
        found = [self._cluster.waiting_for(worker) for name, worker in self.living.items() if not self._began(name)]
        return list(dict.fromkeys(filter(None, found)))

    def end(self) -> None:
        """Ask all of them to end after checkpoints."""
        for worker in self.living.values():
            self._cluster.terminate(worker)

    def _submit(self, count: int, crew: Crew) -> None:
        launches = []
        for _ in range(count):
            folder = self._tickets.folder / f"worker-{uuid.uuid4().hex[:8]}"
            folder.mkdir()
            write_json(folder / WORKER, {"node": crew.node.to_json(), "setup": list(crew.setup)})
            environment = child_environment(crew.node.whole, 1)
            launches.append(Launch([*PROGRAM, str(folder)], environment, folder / "log.txt", crew.node.whole))
        try:
            handles = self._cluster.start_all(launches)
        except UserError:
            for launch in launches:
                remove_folder(launch.log.parent)
            raise
        for launch, handle in zip(launches, handles, strict=True):
            if isinstance(handle, OSError):
                raise handle
            name = launch.log.parent.name
            self.living[name], self._nodes[name] = handle, crew.node
            write_json(launch.log.parent / JOB, handle.ref)

    def _find(self, folder: Path) -> None:
        ref, told = read_json(folder / JOB), read_json(folder / WORKER)
        if ref is None or told is None:
            return
        self._nodes[folder.name] = Node(**told["node"])
        worker = self._cluster.adopt(ref)
        if worker is None or recorded_exit(folder) is not None:
            failed = read_json(folder / FAILED)
            self.why = str(failed["error"]) if failed else self.why  # its setup lines may be mended by now
            _forget(folder)
        else:
            self.living[folder.name] = worker

    def _gone(self, name: str) -> None:
        job = self.living.pop(name).ref.get("id")
        folder = self._tickets.folder / name
        failed = read_json(folder / FAILED)
        if failed:
            self.why, self._hopeless = f"{failed['error']}\n{SAFE}", True
        elif not self._began(name):
            self._misses += 1
            store = folder.parent.parent
            logs = f" (it is in {store / self._cluster.name})" if (store / self._cluster.name).is_dir() else ""
            self.why = (
                f"A node worker ({self._cluster.name} job {job}) ended before it began. Either it was cancelled, or "
                f"its node does not see the store {store} or the Python {sys.executable} under the same path, or the "
                f"cluster's log says why{logs}. {SAFE}"
            )
        else:
            self._misses = 0
        _forget(folder)

    def _began(self, name: str) -> bool:
        return BEGAN in names(self._tickets.folder / name)


def _forget(folder: Path) -> None:
    """A worker has ended: remove its folder, or only the note of its job if its log may say why it ended."""
    ended = recorded_exit(folder)
    if (ended is not None and ended.code == 0) or "log.txt" not in names(folder):
        remove_folder(folder)
    else:
        (folder / JOB).rename(folder / "ended.json")
