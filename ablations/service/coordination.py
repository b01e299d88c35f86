"""Start a coordinator on a store's queue, and write the missing runs to MLflow."""

import contextlib
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from experiments.errors import UserError
from experiments.jobs.coordinator.attempt_watch import HANG_S
from experiments.jobs.coordinator.background import Background
from experiments.jobs.coordinator.loop import Until
from experiments.jobs.coordinator.reporter import Reporter, Summary, View
from experiments.jobs.coordinator.work import work
from experiments.jobs.devices.node import Node
from experiments.jobs.devices.slots import Slot, parse_cluster_slots, parse_slots
from experiments.jobs.engines.by_name import engines, load_engine
from experiments.jobs.engines.engine import Engine
from experiments.jobs.engines.local import LIGHT, LocalEngine
from experiments.jobs.engines.worker_pool import WorkerPool
from experiments.jobs.queue.job import State
from experiments.jobs.queue.queue import Queue
from experiments.jobs.queue.work_queue import WorkQueue
from experiments.messages import number, suggestion
from experiments.store.layout import Store
from experiments.tasks.load import task_of, trains_apart
from experiments.tracking.mlflow import Tracker
from experiments.tracking.rebuild import lacking, recognise, write_lacking
from experiments.tracking.sinks.sink import SinkProcess, check_sink
from experiments.tracking.written import is_unknown


@dataclass(frozen=True, kw_only=True)
class WorkOptions:
    """The options of `run` and `work`, as typed.

    The constructor raises UserError for invalid options. Devices are checked when `slots` is read.
    """

    devices: str = "auto"
    hang_after: float = HANG_S / 60  # minutes without an event after which a run is stopped
    sinks: list[str] | None = None
    engine: str = "local"
    engine_set: list[str] | None = None
    address: str | None = None
    workers: int | None = None
    setup: list[str] | None = None

    def __post_init__(self) -> None:
        if self.engine not in engines():
            near = suggestion(self.engine, engines(), "engines")
            raise UserError(f"--engine {self.engine}: unknown engine. {near}")
        for name in self.sinks or ():
            check_sink(name)
        if self.engine == "local" and (self.engine_set or self.address):
            raise UserError("--engine-set and --address need --engine slurm or ray; the local engine has no settings.")
        if self.engine == "local" and (self.workers is not None or self.setup):
            option = "--setup" if self.setup else "--workers"
            raise UserError(f"{option} needs a cluster: add --engine slurm or --engine ray.")
        if self.workers is not None and self.workers < 1:
            raise UserError(
                f"--workers {self.workers}: write how many node workers may run at once, 1 or more. Without --workers "
                "each run is a separate job."
            )

    @cached_property
    def pool(self) -> WorkerPool | None:
        """The node workers of a cluster; None if each run is a separate job. Raises UserError (see `Node.parse`)."""
        return WorkerPool(self.workers, Node.parse(self.devices)) if self.workers else None

    @cached_property
    def slots(self) -> Sequence[Slot]:
        """The slots of `devices`. Raises UserError (see `parse_slots`)."""
        if self.pool:
            return self.pool.node.slots(self.pool.workers)
        return parse_slots(self.devices) if self.engine == "local" else parse_cluster_slots(self.devices)

    def start(
        self,
        store: Store,
        until: Until = "empty",
        on_progress: Callable[[View], None] | None = None,
        *,
        tracked: bool = True,
        only: Collection[str] | None = None,
    ) -> Summary:
        """Work on the store's queue until the state `until` is reached.

        on_progress: called about twice a second. tracked: whether to write the runs to MLflow and to sinks. only: the
        run_ids to train. Other runs that wait now stay queued. If `only` is None, all runs are trained.
        """
        slots = self.slots if until != "submitted" else self._for_all(store)
        return work(
            store,
            slots,
            task_of,
            Background(lambda: Tracker(store)) if tracked else None,
            on_progress,
            until=until,
            engine=self._engine(store),
            hang_s=self.hang_after * 60,
            sinks=[sink_of(store, name) for name in dict.fromkeys(self.sinks or ())] if tracked else (),
            only=only,
        )

    def _engine(self, store: Store) -> Engine:
        if self.engine == "local" and _all_train_apart(store):
            return LocalEngine(LIGHT)
        at_once = self.pool.workers if self.pool else len(self.slots)
        settings = dict(map(_pair, self.engine_set or ())) | ({"address": self.address} if self.address else {})
        return load_engine(self.engine, settings, store.root, at_once, self.pool, self.setup or ())

    def _for_all(self, store: Store) -> list[Slot]:
        """Return as many slots as the queued runs need. The cluster limits the number of runs that run at once."""
        with Queue(store.queue_db) as queue:
            count = max(len(self.slots), queue.devices_wanted())
        if self.pool:
            return self.pool.node.slots(math.ceil(count / self.pool.node.devices))
        return [replace(self.slots[0], name=f"{self.slots[0].kind}.{i}") for i in range(count)]


def complete_mlflow(store: Store, say: Callable[[str], None]) -> None:
    """Write the finished runs that MLflow lacks.

    Does nothing while a coordinator works, because the coordinator writes the runs. Also does nothing if an earlier
    coordinator could not write ended runs, because that coordinator has reported the reason.
    """
    try:
        if store.coordinator() or _untracked(store):
            return
        if is_unknown(store.mlflow_db):
            with store.coordinator_lock():
                recognise(store)
        if not (before := lacking(store)):
            return
    except UserError as error:
        say(str(error))
        return
    with contextlib.suppress(UserError), store.coordinator_lock():  # another command may hold the lock now
        if write_lacking(store) == len(before):
            added = [run_id for run_id, older in before.items() if not older]
            if added:
                say(f"{number(len(added), 'missing run')} added to MLflow")
            if updated := len(before) - len(added):
                say(f"{number(updated, 'run')} updated in MLflow, because rows or scores have changed")


def _all_train_apart(store: Store) -> bool:
    """Return whether there are queued runs and all of them train in a separate process.

    In this case, this program need not import torch, which takes seconds.
    """
    with Queue(store.queue_db) as queue:
        tasks = queue.tasks_wanted()
    return bool(tasks) and all(map(trains_apart, tasks))


def track_ended(store: Store) -> None:
    """Write to MLflow the ended runs that a killed coordinator did not write.

    Does nothing while another coordinator works on the store.
    """
    if not _untracked(store):
        return
    tracker = Background(lambda: Tracker(store))
    with contextlib.suppress(UserError), store.coordinator_lock(), WorkQueue(store.queue_db) as queue:
        reporter = Reporter(queue, tracker, None)
        reporter.catch_up()
        tracker.close()
        reporter.note_tracked()


def _untracked(store: Store) -> bool:
    """Return whether the queue has ended runs that were not written to MLflow."""
    with Queue(store.queue_db, create=False) as queue:
        return any(queue.untracked(state) for state in State if state.ended)


def sink_of(store: Store, name: str) -> Background:
    """Return a sink that records the store's runs in a separate thread and process."""
    return Background(
        lambda: SinkProcess(store, name), patience_s=0, name=name, rebuild=f"ablations ui --rebuild {name}"
    )


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UserError(f"--engine-set {text}: write KEY=VALUE, for example partition=gpu.")
    return name, value


def held(store: Store) -> list[str]:
    """Return the reasons why queued runs are held, without repetitions."""
    with Queue(store.queue_db) as queue:
        return queue.held()
