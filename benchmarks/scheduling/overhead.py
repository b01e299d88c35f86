"""Measure the time that the coordinator, processes and MLflow add to a run."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.scheduling.jobs import job
from experiments.events.event_log import EventWriter
from experiments.jobs.coordinator.reporter import tracked_run
from experiments.jobs.coordinator.work import work
from experiments.jobs.devices.slots import Slot
from experiments.jobs.engines.engine import Engine, Exit, Handle, Launch
from experiments.jobs.engines.local import LocalEngine
from experiments.jobs.queue.job import State
from experiments.jobs.queue.work_queue import WorkQueue
from experiments.store.layout import Store

SLEEP_S = 0.010
SLEEPER = """
import pathlib, sys, time
time.sleep(0.01)
(pathlib.Path(sys.argv[1]).parent / "result.json").write_text('{"attempt": 1}')
"""


class Deadlines(Engine):
    """An engine that starts no processes. Each child ends after a fixed time, and the engine then writes its result."""

    name = "deadlines"

    def __init__(self, sleep_s: float = SLEEP_S) -> None:
        self._sleep_s = sleep_s
        self._ends: dict[int, tuple[float, Path]] = {}
        self._number = 0
        self.child_s = 0.0  # seconds spent on work that a real child would do

    def start(self, launch: Launch) -> Handle:
        self._number += 1
        self._ends[self._number] = (time.perf_counter() + self._sleep_s, launch.log.parent)
        return Handle({"id": self._number})

    def poll(self, handle: Handle) -> Exit | None:
        number = int(handle.ref["id"])
        if number in self._ends:
            due, folder = self._ends[number]
            if time.perf_counter() < due:
                return None
            del self._ends[number]
            self._finish(folder)
        return Exit(0)

    def _finish(self, folder: Path) -> None:
        began = time.perf_counter()
        events = EventWriter(folder)
        events.emit("metrics", step=1, metrics={"loss": 1.0})
        (folder / "result.json").write_text('{"step": 1, "attempt": 1}')
        events.close()
        self.child_s += time.perf_counter() - began

    def adopt(self, ref: Mapping[str, Any]) -> Handle | None:
        return None

    def terminate(self, handle: Handle) -> None: ...

    def kill(self, handle: Handle) -> None: ...

    def wait(self, timeout_s: float) -> None:
        due = min((end for end, _ in self._ends.values()), default=0.0)
        time.sleep(min(timeout_s, max(0.0, due - time.perf_counter())))

    def close(self) -> None: ...


def overhead(folder: Path, runs: int) -> dict[str, float]:
    """Return the wall time per run without the sleep, for the coordinator, for real processes, and for MLflow."""
    slots = [Slot("cpu:0", "cpu"), Slot("cpu:1", "cpu")]
    ideal = runs * SLEEP_S / len(slots)
    engine, store = Deadlines(), Store.open(folder / "alone")
    with _counting_fsync() as spent:
        alone = _timed_work(store, slots, runs, engine)
    processes = _timed_work(Store.open(folder / "processes"), slots, runs // 5, LocalEngine(()))
    return {
        "coordinator_ms_a_run": (alone - ideal - engine.child_s) / runs * 1e3,
        "of_which_fsync_ms": spent[0] / runs * 1e3,
        "process_ms_a_run_beside": (processes - ideal / 5) / (runs // 5) * 1e3,
        **_mlflow(store, runs // 5),
    }


def crowd(folder: Path, count: int, runs: int, sleep_s: float = 5.0) -> dict[str, float]:
    """Run the real coordinator with many slots.

    Return its processor time per run, and the share of time in which slots are busy.
    """
    slots = [Slot(f"cuda:{i}", "cuda", 1, str(i), None, 80.0) for i in range(count)]
    engine, began = Deadlines(sleep_s), time.process_time()
    wall = _timed_work(Store.open(folder / "crowd"), slots, runs, engine)
    used = time.process_time() - began - engine.child_s
    return {
        "slots": count,
        "runs": runs,
        "run_s": sleep_s,
        "coordinator_cpu_ms_a_run": used / runs * 1e3,
        "busy": runs * sleep_s / count / wall,
        # With shorter runs, slots would wait for the coordinator.
        "shortest_mean_run_s": count * used / runs,
    }


def _mlflow(store: Store, runs: int) -> dict[str, float]:
    """Return the time that the tracking thread takes, which runs in parallel to the coordinator."""
    from experiments.tracking.mlflow import Tracker

    began = time.perf_counter()
    tracker = Tracker(store)
    opened = time.perf_counter()
    for number in range(runs):
        tracker.sync(tracked_run(job(number), State.FINISHED))
    per_run = (time.perf_counter() - opened) / runs
    return {"mlflow_open_s_beside": opened - began, "mlflow_ms_a_run_beside": per_run * 1e3}


@contextlib.contextmanager
def _counting_fsync() -> Iterator[list[float]]:
    """Within this context, count the seconds that os.fsync takes."""
    spent, fsync = [0.0], os.fsync

    def counted(file: int) -> None:
        began = time.perf_counter()
        fsync(file)
        spent[0] += time.perf_counter() - began

    os.fsync = counted  # type: ignore[assignment]
    try:
        yield spent
    finally:
        os.fsync = fsync


def _timed_work(store: Store, slots: Sequence[Slot], runs: int, engine: Engine) -> float:
    work_queue = WorkQueue(store.queue_db)
    work_queue.enqueue(job(n) for n in range(runs))
    work_queue.close()
    script = store.root / "child.py"
    script.write_text(SLEEPER)
    began = time.perf_counter()
    summary = work(store, slots, engine=engine, child=(sys.executable, str(script)))
    assert summary.finished == runs, summary
    return time.perf_counter() - began
