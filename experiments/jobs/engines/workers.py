"""Node workers: jobs of a cluster that take one attempt after the other, instead of one job per attempt.

An attempt becomes a ticket on the shared disk (tickets.py); a node worker takes it (node_worker.py), by itself and in
the order of the tickets. This engine keeps as many workers alive as tickets need, at most `Crew.workers`: it submits
them through another engine, as whose children they start, get their signals and are adopted. Where workers end, by
their time limit or with their node, their attempts end as those of any engine do, and the coordinator starts new ones.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.errors import UserError
from experiments.jobs.engines.base import Exit, Handle, Launch
from experiments.jobs.engines.cluster import LOOK_EVERY_S, ClusterEngine
from experiments.jobs.engines.crew import Crew, Workers
from experiments.jobs.engines.remote import recorded_exit
from experiments.jobs.engines.tickets import KILL, STOP, Ticket, Tickets

AGAIN_S = 60.0  # until the next try after the cluster has refused a worker
UNTAKEN = "no node worker had taken it"
log = logging.getLogger(__name__)


class NodeWorkers(ClusterEngine):
    """Starts attempts by node workers, which are children of `inner`; without a crew, by `inner` itself.

    In both cases it adopts attempts of either kind. `folder`: of the store.
    """

    def __init__(self, inner: ClusterEngine, folder: Path, crew: Crew | None = None) -> None:
        super().__init__()
        self.name = inner.name
        self._inner, self._crew = inner, crew
        self._tickets = Tickets(folder / "workers")
        self._workers = Workers(inner, self._tickets, crew)
        self._places: dict[str, str] = {}  # ticket → the worker that has taken it, or ""
        self._looked, self._keep_alive_at = -LOOK_EVERY_S, 0.0
        if crew:
            self._tickets.create()

    def start_all(self, launches: Sequence[Launch]) -> list[Handle | OSError]:
        return super().start_all(launches) if self._crew else self._inner.start_all(launches)

    def _ref(self, name: str, folder: Path) -> dict[str, Any]:
        return {**super()._ref(name, folder), "ticket": True}

    def _submit(self, folders: Sequence[Path], launches: Sequence[Launch]) -> list[str]:
        assert self._crew is not None
        names = []
        for folder, launch in zip(folders, launches, strict=True):
            name = f"{time.time_ns():020d}-{folder.parent.parent.name}-{folder.name}"
            needs = self._crew.node.needs(launch.slot)
            self._tickets.add(Ticket(name, str(folder), launch.slot.kind, *needs))
            names.append(name)
        try:
            self._look(now=True)
            self._workers.keep_alive()
        except UserError:
            for name, folder in zip(names, folders, strict=True):
                self._tickets.withdraw(name, folder, UNTAKEN)
            raise
        return names

    def _holds(self, name: str) -> bool:
        self._look()
        return name in self._places

    def _look(self, *, now: bool = False) -> None:
        """Look again, unless that was just done, which workers live and where the tickets are."""
        if not now and time.monotonic() - self._looked < LOOK_EVERY_S:
            return
        self._looked = time.monotonic()
        self._workers.look()
        waiting = {ticket.name: "" for ticket in self._tickets.waiting()}
        taken = ((ticket, name) for name in self._workers.living for ticket in self._tickets.taken(name))
        running = {ticket.name: name for ticket, name in taken if recorded_exit(Path(ticket.folder)) is None}
        self._places = running | waiting

    def adopt(self, ref: Mapping[str, Any]) -> Handle | None:
        return super().adopt(ref) if ref.get("ticket") else self._inner.adopt(ref)

    def poll(self, handle: Handle) -> Exit | None:
        if not handle.ref.get("ticket"):
            return self._inner.poll(handle)
        self._look()
        name = str(handle.ref["id"])
        if self._places.get(name) == "":
            ticket = next((ticket for ticket in self._tickets.waiting() if ticket.name == name), None)
            if ticket and not self._workers.serve(ticket):
                self._withdraw(handle)
        return super().poll(handle)

    def waiting_for(self, handle: Handle) -> str:
        if not handle.ref.get("ticket"):
            return self._inner.waiting_for(handle)
        if self._places.get(str(handle.ref["id"])) != "":
            return ""
        return ": ".join(["waits for a node worker", *self._workers.reasons()])

    def terminate(self, handle: Handle) -> None:
        if not handle.ref.get("ticket"):
            self._inner.terminate(handle)
        elif not self._withdraw(handle):
            self._tickets.request(str(handle.ref["id"]), STOP)

    def kill(self, handle: Handle) -> None:
        if not handle.ref.get("ticket"):
            self._inner.kill(handle)
        elif not self._withdraw(handle):
            self._tickets.request(str(handle.ref["id"]), KILL)

    def _withdraw(self, handle: Handle) -> bool:
        why = (self._workers.why or UNTAKEN).splitlines()[0]
        return self._tickets.withdraw(str(handle.ref["id"]), Path(handle.ref["folder"]), why)

    def wait(self, timeout_s: float) -> None:
        """Also replaces workers that have ended. Raises UserError if none can begin."""
        if time.monotonic() >= self._keep_alive_at:
            self._keep_alive_at = time.monotonic() + LOOK_EVERY_S
            self._look()
            try:
                self._workers.keep_alive()
            except UserError as error:
                if not self._workers.living:
                    raise
                log.warning("no further node worker for now: %s", error)  # the cluster may be busy
                self._keep_alive_at += AGAIN_S
        time.sleep(timeout_s)

    def close(self) -> None:
        """End the workers if they have nothing to do; else they continue, and end when they have nothing to do."""
        if self._crew:
            self._look(now=True)
            if not self._places:
                self._workers.end()
        self._inner.close()
