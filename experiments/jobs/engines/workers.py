"""Node workers: jobs of a cluster that run many attempts one after the other, instead of one job per attempt.

An attempt becomes a work item on the shared disk. Node workers (node_worker.py) take the items by themselves, in the
order of the items. This engine keeps as many workers alive as the items need, but at most `WorkerPool.workers`. Another
engine submits the workers: they are children of that engine, which starts, signals and adopts them. If a worker ends,
because of its time limit or with its node, its attempts end like those of any engine, and the coordinator starts new
ones.
"""

import contextlib
import logging
import math
import os
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiments.errors import UserError
from experiments.jobs.devices.slots import Node
from experiments.jobs.engines.cluster import LAUNCH, LOOK_EVERY_S, ClusterEngine, record_exit, recorded_exit
from experiments.jobs.engines.engine import Exit, Handle, Launch, child_environment
from experiments.store.checksummed import read_json, write_json
from experiments.store.durable import remove_folder

# --- Work items: attempts for node workers, as files on the disk that all machines share
#
#     workers/items/<name>               an attempt that no worker has taken
#     workers/requests/<name>.stop       a request to end an attempt after a checkpoint; .kill: at once
#     workers/<worker>/taken/<name>      an attempt of this worker; removed once its end is recorded
#     workers/<worker>/worker.json       the slots of the worker (`Node`)
#     workers/<worker>/job.json          the cluster's job; a worker takes no attempt before this file exists
#     workers/<worker>/began.json, failed.json, log.txt
#
# A worker takes an item by renaming its file, which only one worker can do. The code lists folders instead of checking
# for files by name, because a network disk may report for a while that a new file does not exist.


WORKER, JOB, BEGAN, FAILED = "worker.json", "job.json", "began.json", "failed.json"
STOP, KILL = ".stop", ".kill"


@dataclass(frozen=True)
class WorkItem:
    """An attempt and the slots that it needs: `shares` shares of each of `devices` devices."""

    name: str  # names sort by age
    folder: str
    kind: str
    devices: int = 1
    shares: int = 1

    @property
    def size(self) -> int:
        return self.devices * self.shares

    def fits(self, node: Node) -> bool:
        """Return whether an otherwise idle node of this kind can run the attempt."""
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
        found = (self._item(self._waiting / name) for name in names(self._waiting))
        return [item for item in found if item]

    def taken(self, worker: str) -> list[WorkItem]:
        """Return the items of a worker whose end is not recorded yet."""
        folder = self.folder / worker / "taken"
        return [item for name in names(folder) if (item := self._item(folder / name))]

    def take(self, item: WorkItem, worker: str) -> bool:
        """Take an item for a worker. Return False if another worker has taken it."""
        mine = self.folder / worker / "taken" / item.name
        with contextlib.suppress(OSError):  # a server may report an error although it has renamed the file
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
        return [(Path(name).stem, Path(name).suffix) for name in names(self._requests)]

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
            yield from (Path(entry.path) for entry in entries if JOB in names(Path(entry.path)))

    def _item(self, path: Path) -> WorkItem | None:
        if path.name not in self._read:
            record = read_json(path)
            if record is None:  # a worker has just taken the item
                return None
            self._read[path.name] = WorkItem(**{name: record[name] for name in WorkItem.__dataclass_fields__})
        return self._read[path.name]


def names(folder: Path) -> list[str]:
    """Return the sorted names of the files in a folder, without hidden ones; [] if the folder does not exist."""
    try:
        return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []


# --- The node workers of a store: find living ones, submit more while attempts wait, examine those that have ended


TRIES = 3  # workers in a row that may end before they begin
PROGRAM = (sys.executable, "-P", "-m", "experiments.jobs.engines.node_worker")
SAFE = "No run was lost. Continue with the same command."


@dataclass(frozen=True)
class WorkerPool:
    """The largest number of workers at a time, and the slots of each."""

    workers: int
    node: Node


class Workers:
    """The node workers of a store.

    living: folder name → handle of each worker that the cluster still has.
    why: why the last worker failed.
    """

    def __init__(self, cluster: ClusterEngine, items: WorkItems, pool: WorkerPool | None) -> None:
        self._cluster, self._items, self._pool = cluster, items, pool
        self.living: dict[str, Handle] = {}
        self.why = ""
        self._nodes: dict[str, Node] = {}
        self._misses = 0  # number of workers in a row that ended before they began
        self._hopeless = False  # whether another worker would end in the same way

    def look(self) -> None:
        """Adopt workers of earlier coordinators, and remove those that have ended."""
        for folder in self._items.workers():
            if folder.name not in self.living:
                self._find(folder)
        for name, worker in list(self.living.items()):
            if self._cluster.poll(worker) is not None:
                self._gone(name)

    def keep_alive(self) -> None:
        """Submit as many workers as the work items need. Raise UserError if workers end before they begin."""
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
        """Return whether a worker can take a waiting item, now or once it is submitted."""
        nodes = [self._nodes[name] for name in self.living] + ([self._pool.node] if self._pool else [])
        return any(item.fits(node) for node in nodes)

    def reasons(self) -> list[str]:
        """Return the distinct reasons why submitted workers have not begun."""
        found = [self._cluster.waiting_for(worker) for name, worker in self.living.items() if not self._began(name)]
        return list(dict.fromkeys(filter(None, found)))

    def end(self) -> None:
        """Ask all workers to end after checkpoints."""
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
        return BEGAN in names(self._items.folder / name)


def _forget(folder: Path) -> None:
    """Remove the folder of an ended worker. If its log may show why it ended, rename only the record of its job."""
    ended = recorded_exit(folder)
    if (ended is not None and ended.code == 0) or "log.txt" not in names(folder):
        remove_folder(folder)
    else:
        (folder / JOB).rename(folder / "ended.json")


# --- The engine


AGAIN_S = 60.0  # time until the next try after the cluster has refused a worker
UNTAKEN = "no node worker had taken it"
log = logging.getLogger(__name__)


class NodeWorkers(ClusterEngine):
    """Starts attempts by node workers, which are children of `inner`. Without a pool, `inner` starts the attempts.

    In both cases it adopts attempts that were started in either way. folder: folder of the store.
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
        """Update which workers live and where the items are, unless that was done less than LOOK_EVERY_S ago."""
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
        """End the workers if there is no attempt. Otherwise they continue, and end by themselves when they are idle."""
        if self._pool:
            self._look(now=True)
            if not self._places:
                self._workers.end()
        self._inner.close()
