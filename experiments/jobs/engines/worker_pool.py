"""The node workers of a store: find living workers, submit more while attempts wait, and examine ended workers."""

import math
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

from experiments.errors import UserError
from experiments.jobs.devices.node import Node
from experiments.jobs.engines.cluster import ClusterEngine
from experiments.jobs.engines.engine import Handle, Launch, child_environment
from experiments.jobs.engines.keeper import recorded_exit
from experiments.jobs.engines.work_items import BEGAN, FAILED, JOB, WORKER, WorkItem, WorkItems, file_names
from experiments.store.checksummed import read_json, write_json
from experiments.store.durable import remove_folder

TRIES = 3  # number of workers in a row that may end before they begin
PROGRAM = (sys.executable, "-P", "-m", "experiments.jobs.engines.node_worker")
SAFE = "No run was lost. Continue with the same command."


@dataclass(frozen=True)
class WorkerPool:
    """The largest number of node workers at a time, and the slots of each worker."""

    workers: int
    node: Node


class Workers:
    """The node workers of a store.

    living: folder name → handle of each worker that the cluster still has.
    why: the reason why the last worker failed; "" if none has failed.
    """

    def __init__(self, cluster: ClusterEngine, items: WorkItems, pool: WorkerPool | None) -> None:
        self._cluster, self._items, self._pool = cluster, items, pool
        self.living: dict[str, Handle] = {}
        self.why = ""
        self._nodes: dict[str, Node] = {}
        self._misses = 0  # number of workers in a row that ended before they began
        self._hopeless = False  # whether another worker would end in the same way

    def look(self) -> None:
        """Adopt the workers of earlier coordinators, and remove workers that have ended."""
        for folder in self._items.workers():
            if folder.name not in self.living:
                self._find(folder)
        for name, worker in list(self.living.items()):
            if self._cluster.poll(worker) is not None:
                self._gone(name)

    def keep_alive(self) -> None:
        """Submit as many workers as the work items need, but at most `WorkerPool.workers`.

        Raises UserError if items wait, no worker lives, and TRIES workers in a row have ended before they began (or one
        has reported an error).
        """
        pool = self._pool
        if pool is None:
            return
        waiting = [item for item in self._items.waiting() if item.fits(pool.node)]
        taken = [item for name in self.living for item in self._items.taken(name)]
        wanted = min(pool.workers, math.ceil(sum(item.size for item in waiting + taken) / pool.node.at_once))
        tries = 0 if self._hopeless else TRIES - self._misses
        if waiting and not self.living and tries <= 0:
            raise UserError(self.why)
        if waiting and wanted > len(self.living) and tries > 0:
            self._submit(wanted - len(self.living), pool)

    def serve(self, item: WorkItem) -> bool:
        """Return whether a living worker, or a worker that may be submitted, has enough slots for a waiting item."""
        nodes = [self._nodes[name] for name in self.living] + ([self._pool.node] if self._pool else [])
        return any(item.fits(node) for node in nodes)

    def reasons(self) -> list[str]:
        """Return the distinct reasons why submitted workers have not begun."""
        found = [self._cluster.waiting_for(worker) for name, worker in self.living.items() if not self._began(name)]
        return list(dict.fromkeys(filter(None, found)))

    def end(self) -> None:
        """Ask all workers to end. Their attempts save a checkpoint first."""
        for worker in self.living.values():
            self._cluster.terminate(worker)

    def _submit(self, count: int, pool: WorkerPool) -> None:
        launches = []
        for _ in range(count):
            folder = self._items.folder / f"worker-{uuid.uuid4().hex[:8]}"
            folder.mkdir()
            write_json(folder / WORKER, pool.node.to_json())
            environment = child_environment(pool.node.whole, 1)
            launches.append(Launch([*PROGRAM, str(folder)], environment, folder / "log.txt", pool.node.whole))
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
            self.living[name], self._nodes[name] = handle, pool.node
            write_json(launch.log.parent / JOB, handle.ref)

    def _find(self, folder: Path) -> None:
        ref, told = read_json(folder / JOB), read_json(folder / WORKER)
        if ref is None or told is None:
            return
        self._nodes[folder.name] = Node(**told)
        worker = self._cluster.adopt(ref)
        if worker is None or recorded_exit(folder) is not None:
            failed = read_json(folder / FAILED)
            self.why = str(failed["error"]) if failed else self.why
            _forget(folder)
        else:
            self.living[folder.name] = worker

    def _gone(self, name: str) -> None:
        job = self.living.pop(name).ref.get("id")
        folder = self._items.folder / name
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
        return BEGAN in file_names(self._items.folder / name)


def _forget(folder: Path) -> None:
    """Remove the folder of an ended worker.

    If the worker failed and has a log, keep the folder and only rename the record of the worker's job.
    """
    ended = recorded_exit(folder)
    if (ended is not None and ended.code == 0) or "log.txt" not in file_names(folder):
        remove_folder(folder)
    else:
        (folder / JOB).rename(folder / "ended.json")
