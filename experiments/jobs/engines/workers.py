"""Node workers: jobs of a cluster that run many attempts one after the other, instead of one job per attempt.

This engine writes each attempt as a work item to the shared disk. Node workers (node_worker.py) take the oldest items
first. This engine keeps as many workers alive as the items need, but at most `WorkerPool.workers`. A second engine, for
example Slurm's, starts, signals and adopts the workers as its children. If a worker ends because of its time limit or
because its node fails, its attempts end too, and the coordinator starts new attempts.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.errors import UserError
from experiments.jobs.engines.cluster import LOOK_EVERY_S, ClusterEngine
from experiments.jobs.engines.engine import Exit, Handle, Launch
from experiments.jobs.engines.keeper import recorded_exit
from experiments.jobs.engines.work_items import KILL, STOP, WorkItem, WorkItems
from experiments.jobs.engines.worker_pool import WorkerPool, Workers

AGAIN_S = 60.0  # seconds until the next try after the cluster has refused a worker
UNTAKEN = "no node worker had taken it"
log = logging.getLogger(__name__)


class NodeWorkers(ClusterEngine):
    """Runs attempts on node workers, which the engine `inner` starts. Without a pool, `inner` starts each attempt.

    With or without a pool, this engine adopts attempts of both kinds: work items, and jobs of `inner`.

    folder: folder of the store.
    """

    def __init__(self, inner: ClusterEngine, folder: Path, pool: WorkerPool | None = None) -> None:
        super().__init__()
        self.name = inner.name
        if pool:  # the lines of --setup are for the runs, not for the worker
            self.setup, inner.setup = inner.setup, ()
        self._inner, self._pool = inner, pool
        self._items = WorkItems(folder / "workers")
        self._workers = Workers(inner, self._items, pool)
        self._places: dict[str, str] = {}  # item → the worker that has taken it; "" if it waits
        self._looked, self._keep_alive_at = -LOOK_EVERY_S, 0.0
        if pool:
            self._items.create()

    def start_all(self, launches: Sequence[Launch]) -> list[Handle | OSError]:
        return super().start_all(launches) if self._pool else self._inner.start_all(launches)

    def _ref(self, name: str, folder: Path) -> dict[str, Any]:
        return {**super()._ref(name, folder), "item": True}

    def _submit(self, folders: Sequence[Path], launches: Sequence[Launch]) -> list[str]:
        assert self._pool is not None
        names = []
        for folder, launch in zip(folders, launches, strict=True):
            name = f"{time.time_ns():020d}-{folder.parent.parent.name}-{folder.name}"
            needs = self._pool.node.needs(launch.slot)
            self._items.add(WorkItem(name, str(folder), launch.slot.kind, *needs))
            names.append(name)
        try:
            self._look(now=True)
            self._workers.keep_alive()
        except UserError:
            for name, folder in zip(names, folders, strict=True):
                self._items.withdraw(name, folder, UNTAKEN)
            raise
        return names

    def _holds(self, name: str) -> bool:
        self._look()
        return name in self._places

    def _look(self, *, now: bool = False) -> None:
        """Update the living workers and the worker of each item, at most once every LOOK_EVERY_S unless `now`."""
        if not now and time.monotonic() - self._looked < LOOK_EVERY_S:
            return
        self._looked = time.monotonic()
        self._workers.look()
        waiting = {item.name: "" for item in self._items.waiting()}
        taken = ((item, name) for name in self._workers.living for item in self._items.taken(name))
        running = {item.name: name for item, name in taken if recorded_exit(Path(item.folder)) is None}
        self._places = running | waiting

    def adopt(self, ref: Mapping[str, Any]) -> Handle | None:
        return super().adopt(ref) if ref.get("item") else self._inner.adopt(ref)

    def poll(self, handle: Handle) -> Exit | None:
        if not handle.ref.get("item"):
            return self._inner.poll(handle)
        self._look()
        name = str(handle.ref["id"])
        if self._places.get(name) == "":
            item = next((item for item in self._items.waiting() if item.name == name), None)
            if item and not self._workers.serve(item):
                self._withdraw(handle)
        return super().poll(handle)

    def waiting_for(self, handle: Handle) -> str:
        if not handle.ref.get("item"):
            return self._inner.waiting_for(handle)
        if self._places.get(str(handle.ref["id"])) != "":
            return ""
        return ": ".join(["waits for a node worker", *self._workers.reasons()])

    def terminate(self, handle: Handle) -> None:
        if not handle.ref.get("item"):
            self._inner.terminate(handle)
        elif not self._withdraw(handle):
            self._items.request(str(handle.ref["id"]), STOP)

    def kill(self, handle: Handle) -> None:
        if not handle.ref.get("item"):
            self._inner.kill(handle)
        elif not self._withdraw(handle):
            self._items.request(str(handle.ref["id"]), KILL)

    def _withdraw(self, handle: Handle) -> bool:
        why = (self._workers.why or UNTAKEN).splitlines()[0]
        return self._items.withdraw(str(handle.ref["id"]), Path(handle.ref["folder"]), why)

    def wait(self, timeout_s: float) -> None:
        """Wait, and replace workers that have ended. Raise UserError if no worker lives and none can start."""
        if time.monotonic() >= self._keep_alive_at:
            self._keep_alive_at = time.monotonic() + LOOK_EVERY_S
            self._look()
            try:
                self._workers.keep_alive()
            except UserError as error:
                if not self._workers.living:
                    raise
                log.warning("no further node worker was started: %s", error)  # the cluster may be busy
                self._keep_alive_at += AGAIN_S
        time.sleep(timeout_s)

    def close(self) -> None:
        """End the workers if no attempt waits or runs. Otherwise the workers continue, and end when they are idle."""
        if self._pool:
            self._look(now=True)
            if not self._places:
                self._workers.end()
        self._inner.close()
