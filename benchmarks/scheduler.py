"""What the coordinator, the queue and the scheduler cost.

   python -m benchmarks.scheduler [--quick] [--json]

- overhead: stub runs that sleep 10 ms on 2 slots. The coordinator's share is what remains of the wall time after the
  sleep, on an engine that starts nothing (a child is a deadline); starting processes and MLflow are measured beside.
- queue: operations a second (enqueue, claim, finish), and `status` of a long queue with the memory it takes.
- makespan: random lengths, longest first, against the lower bound max(longest, total / slots).
- simulation: many GPUs and many runs on a clock that jumps, with the real queue and the real scheduler.
- start: from placing a child to the first line of its program, forked from a process that has imported torch.
"""

import argparse
import contextlib
import heapq
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.events import EventWriter
from experiments.jobs.coordinator import work
from experiments.jobs.engines.base import Engine, Exit, Handle, Launch, child_environment
from experiments.jobs.engines.local import LocalEngine
from experiments.jobs.job import Ending, Job, Member
from experiments.jobs.ledger import Ledger
from experiments.jobs.reporter import tracked_run
from experiments.jobs.scheduler import place
from experiments.jobs.slots import Slot
from experiments.jobs.states import Outcome, State
from experiments.jobs.widths import makespan
from experiments.store import Store

SLEEP_S = 0.010
SLEEPER = """
import pathlib, sys, time
time.sleep(0.01)
(pathlib.Path(sys.argv[1]).parent / "result.json").write_text("{}")
"""
CHILD = "import time; open(__import__('sys').argv[1], 'w').write(repr(time.time()))"


class Deadlines(Engine):
    """Starts nothing: a child is a moment at which it will have ended. Its result is written when it does."""

    name = "deadlines"

    def __init__(self) -> None:
        self._ends: dict[int, tuple[float, Path]] = {}
        self._number = 0
        self.child_s = 0.0  # spent on what a child would do

    def start(self, launch: Launch) -> Handle:
        self._number += 1
        self._ends[self._number] = (time.perf_counter() + SLEEP_S, launch.log.parent)
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
        events.emit("metrics", step=1, loss=1.0)
        (folder / "result.json").write_text('{"step": 1}')
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


def job(number: int, cost: float = 1.0) -> Job:
    config = {"training": {"train_steps": 1}, "model": {"d_model": 512, "dropout": 0.1}}
    return Job(f"{number:016x}", "stub", config, members=(Member("s", "p", "c", str(number)),), cost=cost)


def overhead(folder: Path, runs: int) -> dict[str, float]:
    """Wall time over the sleep, per run: of the coordinator, of MLflow beside it, of real processes."""
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


def _mlflow(store: Store, runs: int) -> dict[str, float]:
    """What the tracking thread spends, beside the work."""
    from experiments.tracking import Tracker

    began = time.perf_counter()
    tracker = Tracker(store)
    opened = time.perf_counter()
    for number in range(runs):
        tracker.sync(tracked_run(job(number), State.FINISHED))
    per_run = (time.perf_counter() - opened) / runs
    return {"mlflow_open_s_beside": opened - began, "mlflow_ms_a_run_beside": per_run * 1e3}


@contextlib.contextmanager
def _counting_fsync() -> Iterator[list[float]]:
    """Seconds spent in waiting for the disk."""
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
    ledger = Ledger(store.queue_db)
    ledger.enqueue(job(n) for n in range(runs))
    ledger.close()
    script = store.root / "child.py"
    script.write_text(SLEEPER)
    began = time.perf_counter()
    summary = work(store, slots, engine=engine, child=(sys.executable, str(script)))
    assert summary.finished == runs, summary
    return time.perf_counter() - began


def queue(folder: Path, count: int, long: int) -> dict[str, float]:
    """Operations a second, and what looking at a long queue takes."""
    ledger = Ledger(folder / "queue.db")
    done = Ending(State.FINISHED, Outcome.FINISHED)
    rates = {
        "enqueue_one_a_s": _rate(count, lambda n: ledger.enqueue([job(n)])),
        "claim_a_s": _rate(count, lambda n: ledger.claim(job(n).run_id, 1, "cpu:0", "cpu")),
        "finish_a_s": _rate(count, lambda n: ledger.end(job(n).run_id, 1, done)),
    }
    ledger.enqueue(job(n) for n in range(count, count + long))
    store = Store.open(folder / "long")
    ledger.close()
    for path in folder.glob("queue.db*"):
        path.rename(store.root / path.name)
    empty = Store.open(folder / "empty")
    Ledger(empty.queue_db).close()
    return {**rates, "queued": long} | _status(store, "") | _status(empty, "_of_an_empty_queue")


def _status(store: Store, name: str) -> dict[str, float]:
    """The whole command, interpreter and imports included, and the most memory it held."""
    code = "import sys; from ablations.cli.main import app\n" + (
        f"try: app(['status', '--store', {str(store.root)!r}])\n"
        "except SystemExit: pass\n"
        "print([line for line in open('/proc/self/status') if 'VmHWM' in line][0].split()[1], file=sys.stderr)"
    )
    seconds, memory = [], []
    for _ in range(5):
        began = time.perf_counter()
        shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        seconds.append(time.perf_counter() - began)
        memory.append(int(shown.stderr.split()[-1]) / 1024)
    return {f"status_s{name}": min(seconds), f"status_mb{name}": min(memory)}


def _rate(count: int, act: Callable[[int], object]) -> float:
    began = time.perf_counter()
    for number in range(count):
        act(number)
    return count / (time.perf_counter() - began)


def makespans(tables: int) -> dict[str, float]:
    """Longest first over the lower bound, for tables of 20 to 200 runs with lengths as varied as Table 3's."""
    chance, ratios = random.Random(1), []
    for _ in range(tables):
        slots = chance.choice((2, 4, 8))
        lengths = [chance.lognormvariate(0, 0.8) for _ in range(chance.randint(20, 200))]
        ratios.append(makespan(lengths, slots) / max(max(lengths), sum(lengths) / slots))
    return {"mean": statistics.mean(ratios), "worst": max(ratios)}


def simulation(folder: Path, gpus: int, runs: int) -> dict[str, float]:
    """A clock that jumps from end to end; every claim and every end goes through the queue."""
    chance = random.Random(2)
    lengths = {job(n).run_id: chance.lognormvariate(0, 0.8) for n in range(runs)}
    ledger = Ledger(folder / "simulated.db")
    began = time.perf_counter()
    ledger.enqueue(job(n, lengths[job(n).run_id]) for n in range(runs))
    enqueued = time.perf_counter() - began
    slots = [Slot(f"cuda:{i}", "cuda", 1, str(i), None, 80.0) for i in range(gpus)]
    free, busy, now, finished = {slot.name: slot for slot in slots}, [], 0.0, 0
    done = Ending(State.FINISHED, Outcome.FINISHED)
    began = time.perf_counter()
    while finished < runs:
        for waiting, lease in place(ledger.waiting(len(free) + 64), list(free.values()), slots):
            assert ledger.claim(waiting.run_id, 1, lease[0].name, "cuda")
            del free[lease[0].name]
            heapq.heappush(busy, (now + lengths[waiting.run_id], waiting.run_id, lease[0].name))
        now, run_id, name = heapq.heappop(busy)
        ledger.end(run_id, 1, done)
        free[name], finished = next(slot for slot in slots if slot.name == name), finished + 1
    seconds = time.perf_counter() - began
    ledger.close()
    bound = max(max(lengths.values()), sum(lengths.values()) / gpus)
    return {
        "gpus": gpus,
        "runs": runs,
        "enqueue_s": enqueued,
        "decisions_a_s": runs / seconds,
        "makespan_over_bound": now / bound,
        "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        # a run must last this long on average for one coordinator to keep all GPUs busy
        "shortest_mean_run_s": gpus * seconds / runs,
    }


def start(folder: Path, times: int) -> dict[str, float]:
    """Seconds from `start` to the first line of the child's program, and what a child without the fork server takes."""
    engine = LocalEngine()
    with contextlib.closing(engine):
        _start_once(engine, folder, "warm")  # waits until torch is imported
        forked = [_start_once(engine, folder, str(n)) for n in range(times)]
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch, torch._dynamo"], check=True)
    return {
        "forked_s": statistics.median(forked),
        "worst_s": max(forked),
        "import_torch_s": time.perf_counter() - began,
    }


def _start_once(engine: Engine, folder: Path, name: str) -> float:
    place, slot = folder / f"start-{name}", Slot("cpu:0", "cpu")
    place.mkdir()
    (place / "child.py").write_text("import torch\n" + CHILD)
    argv = [sys.executable, str(place / "child.py"), str(place / "told")]
    began = time.time()
    handle = engine.start(Launch(argv, child_environment(slot, 1), place / "log.txt", slot))
    while engine.poll(handle) is None:
        engine.wait(0.01)
    return float((place / "told").read_text()) - began


def measure(quick: bool) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory(prefix="scheduler-") as name:
        folder = Path(name)
        return {
            "overhead": overhead(folder, 200 if quick else 1000),
            "queue": queue(folder, 500 if quick else 3000, 10_000),
            "makespan": makespans(50 if quick else 500),
            "simulation": simulation(folder, 64 if quick else 512, 5_000 if quick else 100_000),
            "start": start(folder, 5 if quick else 20),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a minute instead of ten")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = {name: {k: round(v, 4) for k, v in part.items()} for name, part in measure(given.quick).items()}
    if given.json:
        print(json.dumps({**found, "load": os.getloadavg()[0], "cores": os.cpu_count()}))
        return
    for name, part in found.items():
        print(f"{name}: " + ", ".join(f"{key} {value:g}" for key, value in part.items()))


if __name__ == "__main__":
    main()
