"""Progress in the terminal: a line with a bar per running row; plain lines where output is not a terminal."""

import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import typer
from rich.console import Console, Group
from rich.live import Live as RichLive
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ablations.cli.terminal import unguarded, visible
from ablations.service.work import WorkOptions, held
from ablations.study.messages import duration
from experiments.identity import seed_in_words
from experiments.jobs.attempts.attempt import RunningAttempt
from experiments.jobs.coordinator.loop import Until
from experiments.jobs.coordinator.reporter import Summary, View
from experiments.jobs.coordinator.watch import GRACE_S
from experiments.jobs.queue.queue import Queue
from experiments.jobs.queue.states import State
from experiments.processes.load import gpus_percent, processors_percent
from experiments.store.layout import Store

PLAIN_EVERY_S = 10.0
BAR = 20  # characters
LOAD_EVERY_S = 2.0
STOPPING = f"stopping after checkpoints, within {duration(GRACE_S)} (Ctrl-C again: at once)"


@dataclass(frozen=True)
class Watched:
    """The table that is trained: its runs, of which a store may hold others too."""

    name: str
    run_ids: Collection[str]
    expected_s: float | None = None  # predicted before the start, from what the store has measured


def work_on(store: Store, options: WorkOptions, until: Until = "empty", watched: Watched | None = None) -> Summary:
    """Work on the store's queue, show progress, and print why held runs were not started."""
    with Live(store, watched) as live:
        summary = options.start(store, until, live.update)
    for reason in held(store):
        typer.echo(f"not run, {reason}", err=True)
    return summary


class Live:
    """Live progress of the coordinator, which calls `update` about twice a second."""

    def __init__(self, store: Store, watched: Watched | None = None) -> None:
        """Without `watched` the counts are those of the whole queue."""
        self._console = Console(file=unguarded(sys.stderr))
        self._live = RichLive(console=self._console, auto_refresh=False, transient=True)
        self._began = self._printed_at = time.monotonic()
        self._store, self._watched = store, watched
        self._counted: dict[State, int] = {}  # of the whole queue, when `_counts` was made
        self._counts: dict[State, int] = {}
        self._load = _Load()

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
            summary = Text(visible(f"{self._summary(view)}; {self._load.words()}"), overflow="ellipsis", no_wrap=True)
            self._live.update(Group(summary, _bars(view)), refresh=True)
        elif time.monotonic() - self._printed_at >= PLAIN_EVERY_S:
            self._printed_at = time.monotonic()
            print("; ".join([self._summary(view), *_lines(view)]), file=sys.stderr, flush=True)

    def _summary(self, view: View) -> str:
        counts = self._counts_of(view.counts)
        words = [f"{counts[state]} {state.value}" for state in State if counts.get(state)]
        if self._watched:
            words = [f"{self._watched.name}: {words[0]}", *words[1:]] if words else [self._watched.name]
        left = view.left_s
        if left is None and self._watched and self._watched.expected_s is not None:
            left = max(0.0, self._watched.expected_s - (time.monotonic() - self._began))
        eta = f"about {duration(left)} left" if left else ""
        return ", ".join(filter(None, [*words, view.preparing, eta, STOPPING if view.stopping else ""]))

    def _counts_of(self, queue: Mapping[State, int]) -> Mapping[State, int]:
        """The states of the table's runs, read again when the queue's counts have changed."""
        if self._watched is None:
            return queue
        if queue != self._counted:
            with Queue(self._store.queue_db, create=False) as opened:
                states = opened.states()
            of = [states.get(run_id, State.FINISHED) for run_id in self._watched.run_ids]
            self._counted, self._counts = dict(queue), {state: of.count(state) for state in State}
        return self._counts


class _Load:
    """The load of processors and GPUs, read every LOAD_EVERY_S."""

    def __init__(self) -> None:
        self._read_at, self._words = 0.0, ""
        processors_percent()  # the first call knows no interval

    def words(self) -> str:
        if time.monotonic() - self._read_at >= LOAD_EVERY_S:
            gpus = ", ".join(f"{percent} %" for percent in gpus_percent())
            self._read_at = time.monotonic()
            self._words = f"CPU {processors_percent():.0f} %" + (f", GPU {gpus}" if gpus else "")
        return self._words


def _bars(view: View) -> Table:
    """A line per running row: name, bar, step, numbers, time left, device."""
    grid = Table.grid(padding=(0, 1))
    for _ in range(5):
        grid.add_column(no_wrap=True)
    for live in view.running:
        job, step = live.claimed.job, live.progress.step
        bar = ProgressBar(job.total_steps or 1, step or 0, width=BAR) if job.total_steps else Text("")
        texts = [_name(live), _step(live), ", ".join(_numbers(live)), f"on {live.slot.name}"]
        name, *rest = (Text(visible(text), overflow="ellipsis") for text in texts)
        grid.add_row(name, bar, *rest)
    return grid


def _lines(view: View) -> list[str]:
    return [
        " ".join(filter(None, [_name(live), _step(live), ", ".join(_numbers(live)), f"on {live.slot.name}"]))
        for live in view.running
    ]


def _name(live: RunningAttempt) -> str:
    job = live.claimed.job
    return f"{job.members[0].row if job.members else job.run_id} ({seed_in_words(job.seed)})"


def _step(live: RunningAttempt) -> str:
    total, step = live.claimed.job.total_steps, live.progress.step
    at = f"step {step:,}/{total:,}" if step is not None and total else ""
    return " ".join(filter(None, [live.progress.doing, at]))


def _numbers(live: RunningAttempt) -> list[str]:
    """The newest loss, perplexity and speed, or the first numbers that the user's trainer has logged; time left."""
    values = live.progress.metrics
    if live.progress.doing != "training":
        return []
    shown = [f"{word} {values[name]:.4g}" for name, word in NUMBERS.items() if name in values]
    if not shown:
        shown = [f"{name} {value:.4g}" for name, value in list(values.items())[:2] if isinstance(value, int | float)]
    if "target_tokens_per_s" in values:
        shown.append(f"{values['target_tokens_per_s']:,.0f} tokens/s")
    left = live.progress.left_s(live.claimed.job.total_steps)
    return [*shown, *([f"{duration(left)} left"] if left else [])]


NUMBERS = {"loss": "loss", "perplexity": "ppl", "dev_perplexity": "dev ppl"}
