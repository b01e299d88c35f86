"""Progress in the terminal: one live line per running row; plain lines where output is not a terminal."""

import sys
import time
from types import TracebackType
from typing import Self

import typer
from rich.console import Console
from rich.live import Live as RichLive
from rich.text import Text

from ablations.cli.terminal import unguarded, visible
from ablations.service.work import WorkOptions, held
from ablations.study.messages import duration
from experiments.identity import seed_in_words
from experiments.jobs.coordinator.loop import Until
from experiments.jobs.coordinator.reporter import Summary, View
from experiments.jobs.coordinator.watch import GRACE_S
from experiments.jobs.queue.states import State
from experiments.store.layout import Store

PLAIN_EVERY_S = 10.0


def work_on(store: Store, options: WorkOptions, until: Until = "empty") -> Summary:
    """Work on the store's queue, show progress, and print why held runs were not started."""
    with Live() as live:
        summary = options.start(store, until, live.update)
    for reason in held(store):
        typer.echo(f"not run, {reason}", err=True)
    return summary


class Live:
    """Live progress of the coordinator, which calls `update` about twice a second."""

    def __init__(self) -> None:
        self._console = Console(file=unguarded(sys.stderr))
        self._live = RichLive(console=self._console, auto_refresh=False, transient=True)
        self._printed_at = time.monotonic()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def update(self, view: View) -> None:
        """Show the coordinator's state: redrawn in a terminal, otherwise a line every PLAIN_EVERY_S."""
        if self._console.is_terminal:
            self._live.update(Text(visible("\n".join([self._summary(view), *_running(view)]))), refresh=True)
        elif time.monotonic() - self._printed_at >= PLAIN_EVERY_S:
            self._printed_at = time.monotonic()
            print("; ".join([self._summary(view), *_running(view)]), file=sys.stderr, flush=True)

    def _summary(self, view: View) -> str:
        counts = view.counts
        words = [f"{counts[state]} {state.value}" for state in State if counts[state]]
        eta = f"about {duration(view.left_s)} left" if view.left_s else ""
        stopping = STOPPING if view.stopping else ""
        return ", ".join(filter(None, [*words, view.preparing, eta, stopping]))


STOPPING = f"stopping after checkpoints, within {duration(GRACE_S)} (Ctrl-C again: at once)"


def _running(view: View) -> list[str]:
    lines = []
    for live in view.running:
        job = live.claimed.job
        name = job.members[0].row if job.members else job.run_id
        step = (
            f"step {live.progress.step}/{job.total_steps}" if live.progress.step is not None and job.total_steps else ""
        )
        words = [f"{name} ({seed_in_words(job.seed)})", live.progress.doing, step, f"on {live.slot.name}"]
        lines.append(" ".join(filter(None, words)))
    return lines
