"""How the queue is worked off: on which engine and slots, with what patience, and who is told."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import typer

from ablations.cli.progress import Live
from experiments.errors import UserError
from experiments.jobs.coordinator.background import Background
from experiments.jobs.coordinator.coordinator import work
from experiments.jobs.coordinator.loop import Until
from experiments.jobs.coordinator.notify import Notifier
from experiments.jobs.coordinator.reporter import Summary
from experiments.jobs.coordinator.watch import HANG_S
from experiments.jobs.devices.slots import Slot, parse_cluster_slots, parse_slots
from experiments.jobs.engines.base import Engine
from experiments.jobs.queue.queue import Queue
from experiments.store.layout import Store
from experiments.tasks.load import load_task
from experiments.tracking.mlflow import Tracker

EngineName = Annotated[str, typer.Option("--engine", metavar="local|slurm|ray", help="Where runs execute.")]
EngineSet = Annotated[
    list[str] | None,
    typer.Option("--engine-set", metavar="KEY=VALUE", help="For the engine: partition=gpu, time=720, …; repeatable."),
]
Address = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Of the Ray cluster; else the one nearby.")]
HangAfter = Annotated[
    float, typer.Option("--hang-after", metavar="MIN", min=0.01, help="Stop a run without a step for so many minutes.")
]
Notify = Annotated[
    str | None,
    typer.Option(metavar="COMMAND", envvar="ABLATIONS_NOTIFY", help="Run this when a row fails or a table has ended."),
]
DEFAULT_HANG_MIN = HANG_S / 60
ENGINES = ("local", "slurm", "ray")


@dataclass(frozen=True)
class Working:
    """What the options of `run` and `work` say. Making it checks them; nothing is started yet."""

    devices: str = "auto"
    engine: str = "local"
    settings: Sequence[str] = ()
    hang_s: float = HANG_S
    notify: str | None = None
    slots: Sequence[Slot] = field(init=False)

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise UserError(f"--engine {self.engine}: write one of {', '.join(ENGINES)}.")
        if self.settings and self.engine == "local":
            raise UserError("--engine-set and --address are for slurm and ray; the local engine has no settings.")
        parse = parse_slots if self.engine == "local" else parse_cluster_slots
        object.__setattr__(self, "slots", parse(self.devices))

    def start(self, store: Store, until: Until = "empty") -> Summary:
        """Work on the store's queue, with progress in the terminal."""
        slots = self.slots if until != "submitted" else _for_all(self.slots, store)
        with Live() as live:
            summary = work(
                store,
                slots,
                load_task,
                Background(lambda: Tracker(store)),
                live.update,
                until=until,
                engine=make_engine(self.engine, self.settings, store, len(self.slots)),
                hang_s=self.hang_s,
                notifier=Notifier(self.notify) if self.notify else None,
            )
        for reason in _held(store):
            typer.echo(f"not run, {reason}", err=True)
        return summary


def make_engine(name: str, settings: Sequence[str], store: Store, at_once: int) -> Engine | None:
    """None is the local one. Raises UserError if the engine is not installed, or its cluster cannot be found."""
    if name == "slurm":
        from experiments.jobs.engines.slurm import SlurmEngine

        return SlurmEngine(store.root / "slurm", dict(map(_pair, settings)), at_once)
    if name == "ray":
        from experiments.jobs.engines.ray import RayEngine

        return RayEngine(dict(map(_pair, settings)))
    return None


def engine_settings(pairs: Sequence[str] | None, address: str | None) -> list[str]:
    """Of --engine-set and --address."""
    return [*(pairs or ()), *([f"address={address}"] if address else ())]


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UserError(f"--engine-set {text}: write KEY=VALUE, for example partition=gpu.")
    return name, value


def _held(store: Store) -> list[str]:
    queue = Queue(store.queue_db)
    try:
        return queue.held()
    finally:
        queue.close()


def _for_all(slots: Sequence[Slot], store: Store) -> list[Slot]:
    """As many slots as the runs want: the cluster sees to it that no more run at once than it was told."""
    queue = Queue(store.queue_db)
    try:
        count = max(len(slots), queue.devices_wanted())
    finally:
        queue.close()
    return [replace(slots[0], name=f"{slots[0].kind}.{i}") for i in range(count)]
