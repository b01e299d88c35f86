"""How the queue is worked off: on which slots, with what patience, and who is told."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import typer

from ablations.cli.progress import Live
from experiments.jobs.background import Background
from experiments.jobs.coordinator import Until, work
from experiments.jobs.notify import Notifier
from experiments.jobs.reporter import Summary
from experiments.jobs.slots import Slot, parse_slots
from experiments.jobs.watch import HANG_S
from experiments.store import Store
from experiments.tasks.load import load_task
from experiments.tracking import Tracker

HangAfter = Annotated[
    float, typer.Option("--hang-after", metavar="MIN", min=0.01, help="Stop a run without a step for so many minutes.")
]
Notify = Annotated[
    str | None,
    typer.Option(metavar="COMMAND", envvar="ABLATIONS_NOTIFY", help="Run this when a row fails or a table has ended."),
]
DEFAULT_HANG_MIN = HANG_S / 60


@dataclass(frozen=True)
class Working:
    """What the options of `run` and `work` say. Making it checks them; nothing is started yet."""

    devices: str = "auto"
    hang_s: float = HANG_S
    notify: str | None = None
    slots: Sequence[Slot] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", parse_slots(self.devices))

    def start(self, store: Store, until: Until = "empty") -> Summary:
        """Work on the store's queue, with progress in the terminal."""
        with Live() as live:
            return work(
                store,
                self.slots,
                load_task,
                Background(lambda: Tracker(store)),
                live.update,
                until=until,
                hang_s=self.hang_s,
                notifier=Notifier(self.notify) if self.notify else None,
            )
