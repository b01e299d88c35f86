"""Options for working on the queue: engine, slots, time limit for hanging runs, notifications."""

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ablations.study.messages import number, suggestion
from experiments.errors import UserError
from experiments.jobs.coordinator.background import Background
from experiments.jobs.coordinator.loop import Until
from experiments.jobs.coordinator.notify import Notifier
from experiments.jobs.coordinator.reporter import Reporter, Summary, View
from experiments.jobs.coordinator.watch import HANG_S
from experiments.jobs.coordinator.work import work
from experiments.jobs.devices.node import Node
from experiments.jobs.devices.slots import Slot, parse_cluster_slots, parse_slots
from experiments.jobs.engines.base import Engine
from experiments.jobs.engines.crew import Crew
from experiments.jobs.engines.load import ENGINES, load_engine
from experiments.jobs.engines.local import LIGHT, LocalEngine
from experiments.jobs.queue.ledger import Ledger
from experiments.jobs.queue.queue import Queue
from experiments.jobs.queue.shares import load_shares
from experiments.jobs.queue.states import State
from experiments.store.layout import Store
from experiments.tasks.load import load_task, trains_apart
from experiments.tracking.mlflow import Tracker
from experiments.tracking.rebuild import lacking, write_lacking
from experiments.tracking.sinks.sink import SinkProcess, check_sink

MOST_AT_ONCE = 100  # runs that are added to MLflow one by one: some 0.1 s each


@dataclass(frozen=True)
class WorkOptions:
    """The options of `run` and `work`. The constructor checks them (UserError); `start` begins the work."""

    devices: str = "auto"
    engine: str = "local"
    settings: Sequence[str] = ()
    hang_s: float = HANG_S
    notify: str | None = None
    sinks: Sequence[str] = ()
    workers: int | None = None
    setup: Sequence[str] = ()
    slots: Sequence[Slot] = field(init=False)
    crew: Crew | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise UserError(
                f"--engine {self.engine}: there is no such engine. {suggestion(self.engine, ENGINES, 'engines')}"
            )
        if self.settings and self.engine == "local":
            raise UserError("--engine-set and --address are for slurm and ray; the local engine has no settings.")
        for name in self.sinks:
            check_sink(name)
        if self.engine == "local" and (self.workers is not None or self.setup):
            option = "--setup" if self.setup else "--workers"
            raise UserError(f"{option} is for the nodes of a cluster: add --engine slurm or --engine ray.")
        object.__setattr__(self, "crew", self._crew())
        if self.crew:
            slots = self.crew.node.slots(self.crew.workers)
        elif self.engine == "local":
            slots = parse_slots(self.devices)
        else:
            slots = parse_cluster_slots(self.devices)
        object.__setattr__(self, "slots", slots)

    def _crew(self) -> Crew | None:
        if self.workers is not None and self.workers < 1:
            raise UserError(
                f"--workers {self.workers}: write how many node workers may run at once, 1 or more. Without --workers "
                "each run is a job of its own."
            )
        return Crew(self.workers, Node.parse(self.devices), self.setup) if self.workers else None

    def start(
        self,
        store: Store,
        until: Until = "empty",
        on_progress: Callable[[View], None] | None = None,
        *,
        tracked: bool = True,
    ) -> Summary:
        """Work on the store's queue until `until`; `on_progress` is called about twice a second.

        tracked: write the runs to MLflow.
        """
        slots = self.slots if until != "submitted" else self._for_all(store)
        return work(
            store,
            slots,
            load_task,
            Background(lambda: Tracker(store)) if tracked else None,
            on_progress,
            until=until,
            engine=self._engine(store),
            hang_s=self.hang_s,
            notifier=Notifier(self.notify) if self.notify else None,
            sinks=[sink_of(store, name) for name in dict.fromkeys(self.sinks)] if tracked else (),
        )

    def _engine(self, store: Store) -> Engine:
        if self.engine == "local" and _all_train_apart(store):
            return LocalEngine(LIGHT)
        at_once = self.crew.workers if self.crew else len(self.slots)
        settings, setup = dict(map(_pair, self.settings)), () if self.crew else self.setup
        return load_engine(self.engine, settings, store.root, at_once, self.crew, setup)

    def _for_all(self, store: Store) -> list[Slot]:
        """As many slots as the queued runs need: the cluster itself limits how many run at once."""
        with Queue(store.queue_db) as queue:
            count = max(len(self.slots), queue.devices_wanted())
        if self.crew:
            return self.crew.node.slots(math.ceil(count / self.crew.node.devices))
        return [replace(self.slots[0], name=f"{self.slots[0].kind}.{i}") for i in range(count)]


def complete_mlflow(store: Store, say: Callable[[str], None]) -> None:
    """Write the finished runs that MLflow lacks; of many, name the command that is quicker.

    Not beside a coordinator, which writes them itself; nor where one has just said why it could not.
    """
    try:
        if store.coordinator() or _untracked(store) or not (runs := lacking(store)):
            return
    except UserError as error:
        say(str(error))
        return
    if len(runs) > MOST_AT_ONCE:
        say(not_in_mlflow(len(runs)))
        return
    with contextlib.suppress(UserError), store.coordinator_lock():  # somebody else began to work meanwhile
        if written := write_lacking(store):
            say(f"{number(written, 'run')} added to MLflow, which lacked {'it' if written == 1 else 'them'}")


def not_in_mlflow(count: int, where: str = "") -> str:
    """A sentence for the user, with the command that writes them. where: the options that name the store."""
    command = f"ablations {'rebuild' if count > MOST_AT_ONCE else 'work'} {where}".strip()
    verb, them = ("is", "it") if count == 1 else ("are", "them")
    return f"{number(count, 'finished run')} {verb} not in MLflow: `{command}` adds {them}"


def _all_train_apart(store: Store) -> bool:
    """Whether there are runs, and none needs torch, whose import takes seconds before the first run starts."""
    with Queue(store.queue_db) as queue:
        tasks = queue.tasks_wanted()
    return bool(tasks) and all(map(trains_apart, tasks))


def track_ended(store: Store) -> None:
    """Write to MLflow the ends of runs that a killed coordinator left out, unless another one works on the store."""
    if not _untracked(store):
        return
    tracker = Background(lambda: Tracker(store))
    with contextlib.suppress(UserError), store.coordinator_lock(), Ledger(store.queue_db) as ledger:
        reporter = Reporter(ledger, tracker, None)
        reporter.catch_up()
        tracker.close()
        reporter.note_tracked()


def _untracked(store: Store) -> bool:
    """Whether runs of the queue have ended without MLflow."""
    with Queue(store.queue_db, create=False) as queue:
        return any(queue.untracked(state) for state in State if state.ended)


def sink_of(store: Store, name: str) -> Background:
    """A sink that follows the store's runs in a thread and a process of its own."""
    return Background(
        lambda: SinkProcess(store, name), patience_s=0, name=name, rebuild=f"ablations rebuild --sink {name}"
    )


def engine_settings(pairs: Sequence[str] | None, address: str | None) -> list[str]:
    """Combine --engine-set and --address."""
    return [*(pairs or ()), *([f"address={address}"] if address else ())]


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UserError(f"--engine-set {text}: write KEY=VALUE, for example partition=gpu.")
    return name, value


def held(store: Store) -> list[str]:
    """The reasons why queued runs are held or wait for a quota, each once."""
    with Queue(store.queue_db) as queue:
        return [*queue.held(), *queue.over_quota(load_shares(store)).values()]
