"""Progress display: one bar per running row if the output is a terminal, plain lines otherwise."""

import contextlib
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live as RichLive
from rich.progress_bar import ProgressBar
from rich.table import Table as RichTable
from rich.text import Text

from ablations.cli.terminal import unguarded, visible
from ablations.service import progress_text
from ablations.service.coordination import WorkOptions, held
from experiments.errors import UserError
from experiments.jobs.coordinator.attempt_watch import GRACE_S
from experiments.jobs.coordinator.loop import Until
from experiments.jobs.coordinator.reporter import Summary, View
from experiments.jobs.queue.job import State
from experiments.jobs.queue.queue import Queue
from experiments.messages import duration
from experiments.store.layout import Store
from reports.render.formats import render
from reports.render.terminal import so_far
from reports.results.table import Table

PLAIN_EVERY_S = 2.0  # minimum seconds between plain lines; a line is printed only if something has changed
PLAIN_SILENT_S = 600.0  # seconds after which a plain line is printed even if nothing has changed
SO_FAR_S = 120.0  # seconds until the partial table is first printed, if the output is not a terminal
BUILDING = 0.05  # maximum share of the coordinator's time that building the partial table may take
BAR = 20  # width of a bar in characters
STOPPING = f"stopping after checkpoints, within {duration(GRACE_S)} (press Ctrl-C again to stop at once)"


@dataclass(frozen=True)
class Watched:
    """The table that is being trained, with its run_ids. The store may contain other runs too."""

    name: str
    run_ids: Collection[str]
    expected_s: float | None = None  # predicted seconds, from measurements in the store
    table: Callable[[], Table] | None = None  # builds the present table without notes; None: show no table


def work_on(store: Store, options: WorkOptions, until: Until = "empty", watched: Watched | None = None) -> Summary:
    """Work on the store's queue, show progress, and print why held runs were not started.

    watched: start only the runs of this table. Other runs stay queued.
    """
    with Live(store, watched) as live:
        summary = options.start(store, until, live.update, only=watched.run_ids if watched else None)
    for reason in held(store):
        typer.echo(f"not started: {reason}", err=True)
    return summary


class Live:
    """A live display of progress. The coordinator calls `update` about twice a second."""

    def __init__(self, store: Store, watched: Watched | None = None) -> None:
        """Create the display. Without `watched`, the display counts the runs of the whole queue."""
        self._console = Console(file=unguarded(sys.stderr))
        self._live = RichLive(console=self._console, auto_refresh=False, transient=True)
        self._began = self._printed_at = time.monotonic()
        self._printed: object = None  # the facts of the last plain line (see `_facts`)
        self._store, self._watched = store, watched
        self._counted: dict[State, int] = {}  # counts of the whole queue when `_counts` was computed
        self._counts: dict[State, int] = {}
        self._shown: RenderableType = ""  # the partial table
        self._finished = 0  # number of finished runs when the partial table was built
        # When the partial table is due, in seconds since the start.
        self._next_table_s = 0.0 if self._console.is_terminal else SO_FAR_S

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def update(self, view: View) -> None:
        """Show the coordinator's state: redraw the terminal, or print a plain line when runs start or end."""
        if self._console.is_terminal:
            summary = Text(visible(self._summary(view)), overflow="ellipsis", no_wrap=True)
            self._live.update(Group(summary, _bars(view), self._table_so_far(view)), refresh=True)
            return
        now, facts = time.monotonic(), self._facts(view)
        if now - self._printed_at >= (PLAIN_EVERY_S if facts != self._printed else PLAIN_SILENT_S):
            self._printed_at, self._printed = now, facts
            print("; ".join([self._summary(view), *progress_text.lines(view)]), file=sys.stderr, flush=True)
        self._print_table_so_far(view)

    def _table_so_far(self, view: View) -> RenderableType:
        """Return the partial table.

        The table is built again when a run has finished, if building takes at most the share BUILDING of the time.
        """
        finished, began = view.counts.get(State.FINISHED, 0), time.monotonic()
        due = finished > self._finished and began - self._began >= self._next_table_s
        if self._watched and self._watched.table and due:
            lines = self._console.height - len(view.running) - 2
            with contextlib.suppress(UserError):  # the command itself reports a damaged store
                self._shown = Group("", so_far(self._watched.table(), self._console.width, lines))
            self._finished, now = finished, time.monotonic()
            self._next_table_s = now - self._began + (now - began) / BUILDING
        return self._shown

    def _print_table_so_far(self, view: View) -> None:
        """Print the partial table as Markdown after SO_FAR_S, and again whenever the elapsed time has doubled.

        Print nothing if no run has finished since the last print.
        """
        passed, finished = time.monotonic() - self._began, view.counts.get(State.FINISHED, 0)
        if self._watched and self._watched.table and passed >= self._next_table_s and finished > self._finished:
            with contextlib.suppress(UserError):
                text = render(self._watched.table(), "markdown")
                print(f"\nThe table so far:\n\n{text.strip()}\n", file=sys.stderr, flush=True)
            self._finished, self._next_table_s = finished, 2 * passed

    def _facts(self, view: View) -> object:
        """Return the facts that a plain line reports. A new line is printed when these facts change."""
        running = {live.run_id for live in view.running}
        return dict(self._counts_of(view.counts)), view.preparing.rstrip("0123456789,/ "), view.stopping, running

    def _summary(self, view: View) -> str:
        counts = self._counts_of(view.counts)
        counted = progress_text.counted(counts)
        if self._watched:
            counted = [f"{self._watched.name}: {counted[0]}", *counted[1:]] if counted else [self._watched.name]
        left = view.left_s
        unfinished = any(counts.get(state) for state in (State.WAITING, State.RUNNING))
        if left is None and unfinished and self._watched and self._watched.expected_s is not None:
            left = max(0.0, self._watched.expected_s - (time.monotonic() - self._began))
        return progress_text.summary(counted, view.preparing, left, STOPPING if view.stopping else "")

    def _counts_of(self, queue: Mapping[State, int]) -> Mapping[State, int]:
        """Return the number of the table's runs in each state.

        The states are read again when the queue's counts have changed.
        """
        if self._watched is None:
            return queue
        if queue != self._counted:
            with Queue(self._store.queue_db, create=False) as opened:
                states = opened.states()
            of = [states.get(run_id, State.FINISHED) for run_id in self._watched.run_ids]
            self._counted, self._counts = dict(queue), {state: of.count(state) for state in State}
        return self._counts


def _bars(view: View) -> RichTable:
    """Return a grid with one line per running row: name, bar, step, numbers with the time left, device."""
    grid = RichTable.grid(padding=(0, 1))
    for _ in range(5):
        grid.add_column(no_wrap=True)
    for live in view.running:
        total, step = live.claimed.job.total_steps or live.progress.total, live.progress.step
        bar = ProgressBar(total, step or 0, width=BAR) if total else Text("")
        name, *rest = (Text(visible(text), overflow="ellipsis") for text in progress_text.fields(live))
        grid.add_row(name, bar, *rest)
    return grid
