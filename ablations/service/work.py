"""Options for working on the queue: engine, slots, time limit for hanging runs, notifications."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ablations.study.messages import suggestion
from experiments.errors import UserError
from experiments.jobs.coordinator.background import Background
from experiments.jobs.coordinator.loop import Until
from experiments.jobs.coordinator.notify import Notifier
from experiments.jobs.coordinator.reporter import Summary, View
from experiments.jobs.coordinator.watch import HANG_S
from experiments.jobs.coordinator.work import work
from experiments.jobs.devices.slots import Slot, parse_cluster_slots, parse_slots
from experiments.jobs.engines.load import ENGINES, load_engine
from experiments.jobs.queue.queue import Queue
from experiments.store.layout import Store
from experiments.tasks.load import load_task
from experiments.tracking.mlflow import Tracker
from experiments.tracking.sinks.sink import SinkProcess, check_sink


@dataclass(frozen=True)
class WorkOptions:
    """The options of `run` and `work`. The constructor checks them (UserError); `start` begins the work."""

    devices: str = "auto"
    engine: str = "local"
    settings: Sequence[str] = ()
    hang_s: float = HANG_S
    notify: str | None = None
    sinks: Sequence[str] = ()
    slots: Sequence[Slot] = field(init=False)

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise UserError(
                f"--engine {self.engine}: there is no such engine. {suggestion(self.engine, ENGINES, 'engines')}"
            )
        if self.settings and self.engine == "local":
            raise UserError("--engine-set and --address are for slurm and ray; the local engine has no settings.")
        for name in self.sinks:
            check_sink(name)
        parse = parse_slots if self.engine == "local" else parse_cluster_slots
        object.__setattr__(self, "slots", parse(self.devices))

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
        slots = self.slots if until != "submitted" else _for_all(self.slots, store)
        return work(
            store,
            slots,
            load_task,
            Background(lambda: Tracker(store)) if tracked else None,
            on_progress,
            until=until,
            engine=load_engine(self.engine, dict(map(_pair, self.settings)), store.root, len(self.slots)),
            hang_s=self.hang_s,
            notifier=Notifier(self.notify) if self.notify else None,
            sinks=[sink_of(store, name) for name in dict.fromkeys(self.sinks)] if tracked else (),
        )


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
    """The reasons why queued runs are held (see `Queue.held`), each once."""
    with Queue(store.queue_db) as queue:
        return queue.held()


def _for_all(slots: Sequence[Slot], store: Store) -> list[Slot]:
    """As many slots as the queued runs need: the cluster itself limits how many run at once."""
    with Queue(store.queue_db) as queue:
        count = max(len(slots), queue.devices_wanted())
    return [replace(slots[0], name=f"{slots[0].kind}.{i}") for i in range(count)]
