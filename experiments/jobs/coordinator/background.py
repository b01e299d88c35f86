"""Write the latest state of each run to the tracking store, in a background thread.

The import of MLflow takes more than a second, and each call of MLflow takes some milliseconds. In a background thread,
they do not delay the coordinator. An error of the tracking store never stops a run. The error is logged once, and the
run continues. The next write, the next coordinator, or `ablations ui --rebuild` adds the missing data.
"""

import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from experiments.errors import UserError
from experiments.records import RUNNING
from experiments.store.tracked_run import TrackedRun

INTERVAL_S = 10.0  # seconds between two writes
PATIENCE_S = 120.0  # longest time in seconds that the thread waits at its end for a locked database
AGAIN_S = 1.0  # seconds between two tries while the database is locked
JOIN_S = 0.2  # seconds between two calls of `hurry` by `close`
log = logging.getLogger(__name__)


class Writer(Protocol):
    def sync(self, run: TrackedRun) -> None:
        """Write those data of a run that are not yet in the tracking store."""


class Background:
    """Writes runs in a thread. The thread calls `make_writer` when the first run arrives."""

    def __init__(
        self,
        make_writer: Callable[[], Writer],
        interval_s: float = INTERVAL_S,
        patience_s: float = PATIENCE_S,
        name: str = "MLflow",
        rebuild: str = "ablations ui --rebuild mlflow",
    ) -> None:
        """Set the writer and its times.

        name: name of the tracking store, for messages.
        rebuild: command that writes the tracking store again, for messages.
        """
        self._name, self._rebuild = name, rebuild
        self._make_writer, self._interval_s, self._patience_s = make_writer, interval_s, patience_s
        self._news: queue.SimpleQueue[TrackedRun | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._runs: dict[str, TrackedRun] = {}  # run_id → run that is not completely written; only the thread uses it
        self._fresh: set[str] = set()  # run_ids of the runs that have just ended
        self._written: set[str] = set()  # run_ids of the runs that the last try has written
        self._complained = self._locked = False
        self._given_up = threading.Event()  # set when `close` stops waiting
        self._thread = threading.Thread(target=self._work, daemon=True, name="tracking")

    def track(self, run: TrackedRun) -> None:
        """Note that a run has started, changed or ended.

        The curve of the run is written repeatedly while its status is RUNNING.
        """
        if not self._thread.is_alive():
            self._thread.start()
        self._news.put(run)

    def synced(self) -> list[str]:
        """Return the run_ids of the runs whose end was written since the last call."""
        done = []
        while not self._done.empty():
            done.append(self._done.get())
        return done

    def close(self, timeout_s: float | None = None, hurry: Callable[[], bool] = lambda: True) -> None:
        """Write all remaining data, and end the thread.

        Wait without limit until `hurry` returns true, and then for at most `timeout_s` (None: without limit). If the
        thread has not ended by then, log a warning. The thread then completes only the write that is in progress.
        """
        if not self._thread.is_alive():
            return
        self._news.put(None)
        until = math.inf
        while self._thread.is_alive() and time.monotonic() < until:
            if timeout_s is not None and until == math.inf and hurry():
                until = time.monotonic() + timeout_s
            self._thread.join(min(JOIN_S, max(0.0, until - time.monotonic())))
        if self._thread.is_alive():
            self._given_up.set()
            log.warning(
                "%s is not up to date after %g s. Write the rest with `%s`, or with the next `ablations work`.",
                self._name,
                timeout_s,
                self._rebuild,
            )

    def _work(self) -> None:
        writer: Writer | None = None
        due, closing = 0.0, False
        while not closing:
            closing = self._collect(due)
            all_due = closing or time.monotonic() >= due
            runs = [run for run in self._runs.values() if all_due or run.run_id in self._fresh]
            if all_due:
                due = time.monotonic() + self._interval_s
            self._fresh.clear()
            writer = self._write_all(writer, runs)
        self._wait_for_lock(writer)

    def _wait_for_lock(self, writer: Writer | None) -> None:
        """If the database is locked, try again for at most `patience_s` to write the remaining runs.

        Log how many runs could not be written.
        """
        left = {run_id: run for run_id, run in self._runs.items() if run_id not in self._written}
        if left and self._locked:
            log.warning(
                "%s's database is locked by another process; waiting for it at most %g s", self._name, self._patience_s
            )
        until = time.monotonic() + self._patience_s
        while left and self._locked and time.monotonic() < until and not self._given_up.is_set():
            time.sleep(AGAIN_S)
            writer = self._write_all(writer, list(left.values()))
            left = {run_id: run for run_id, run in left.items() if run_id not in self._written}
        if left and not self._given_up.is_set():
            log.warning(
                "Runs not up to date in %s: %d. Write them with `%s`, or with the next `ablations work`.",
                self._name,
                len(left),
                self._rebuild,
            )

    def _write_all(self, writer: Writer | None, runs: Sequence[TrackedRun]) -> Writer | None:
        self._written, self._locked = set(), False
        with self._forgiving():
            if runs and writer is None:
                writer = self._make_writer()
        if writer is not None:
            for run in runs:
                if self._given_up.is_set():
                    break
                with self._forgiving():
                    writer.sync(run)
                    self._written.add(run.run_id)
                    if run.status != RUNNING:
                        del self._runs[run.run_id]
                        self._done.put(run.run_id)
        return writer

    def _collect(self, due: float) -> bool:
        """Wait for changed runs, and add them to `_runs`. Return whether the thread must end.

        If some runs are not completely written, wait until `due` at most. Otherwise, wait without limit.
        """
        wait = max(0.0, due - time.monotonic()) if self._runs else None
        with contextlib.suppress(queue.Empty):
            news = self._news.get(timeout=wait)
            while news is not None:
                self._runs[news.run_id] = news
                if news.status != RUNNING:
                    self._fresh.add(news.run_id)
                news = self._news.get_nowait()
            return True
        return False

    @contextlib.contextmanager
    def _forgiving(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._locked = self._locked or "locked" in str(error)
            if not self._complained:
                self._complained = True
                log.warning(
                    "%s could not be written; the runs continue. Add them with `%s`. The reason: %s",
                    self._name,
                    self._rebuild,
                    error,
                    # Errors with a cause outside this program need no traceback.
                    exc_info=not isinstance(error, OSError | UserError),
                )
