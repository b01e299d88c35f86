"""Measure the queue's operations, `ablations status` with a long queue, and the time until a placed run trains."""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.scheduling.jobs import job
from experiments.events.event_log import read_events
from experiments.jobs.queue.job import Ending, Outcome, State
from experiments.jobs.queue.queue import Queue
from experiments.jobs.queue.work_queue import WorkQueue
from experiments.store.layout import Store

TINY = """
name = "tiny"
title = "Starting"
[base]
model = {num_layers = 1, d_model = 8, d_ff = 16, num_heads = 2, d_k = 4, d_v = 4}
data = {vocab_size = 200, builtin_pairs = 300}
training = {train_steps = 2, tokens_per_batch = 400}
evaluation = {beam_size = 1, max_extra_length = 1}
[[variation]]
key = "base"
"""


def queue(folder: Path, count: int, long: int) -> dict[str, float]:
    """Return operations per second, and the time and memory of `status` for a long and an empty queue."""
    work_queue = WorkQueue(folder / "queue.db")
    done = Ending(State.FINISHED, Outcome.FINISHED)

    def claim(number: int) -> None:
        assert work_queue.claim(job(number).run_id, 1, "cpu:0", "cpu")

    rates = {
        "enqueue_one_a_s": _rate(count, lambda n: work_queue.enqueue([job(n)])),
        "claim_a_s": _rate(count, claim),
        "finish_a_s": _rate(count, lambda n: work_queue.end(job(n).run_id, 1, done)),
    }
    work_queue.enqueue(job(n) for n in range(count, count + long))
    store = Store.open(folder / "long")
    work_queue.close()
    for path in folder.glob("queue.db*"):
        path.rename(store.root / path.name)
    empty = Store.open(folder / "empty")
    WorkQueue(empty.queue_db).close()
    return {**rates, "queued": long} | _status(store, "") | _status(empty, "_of_an_empty_queue")


def _status(store: Store, name: str) -> dict[str, float]:
    """Return the time of the whole `status` command, including the interpreter and imports, and its peak memory."""
    code = "import sys; from ablations.cli.main import app\n" + (
        f"try: app(['status', '--store', {str(store.root)!r}])\n"
        "except SystemExit as ended: assert not ended.code, ended.code\n"
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


def start(folder: Path, runs: int) -> dict[str, float]:
    """Return the seconds from the placement of a real run to its first batch.

    The first run waits for the fork server, which imports torch once. Without a fork server, each run would need
    `import_torch_s` for this import.
    """
    study = folder / "tiny.toml"
    study.write_text(TINY)
    store = Store.open(folder / "started")
    options = [str(study), "--seeds", str(runs), "--store", str(store.root), "--devices", "cpu:1"]
    subprocess.run([sys.executable, "-m", "ablations.cli.main", "run", *options], check=True, capture_output=True)
    queue = Queue(store.queue_db)
    assert runs >= 3, "the first run waits for the fork server, so at least two more are needed"
    placed = sorted((queue.history(row.run_id)[0]["started"], row.run_id) for row in queue.status())
    queue.close()
    waits = []
    for began, run_id in placed:
        events = read_events(store.attempt_folder(run_id, 1))
        waits.append(next(event["t"] for event in events if event["kind"] == "pinned") - began)
    imported = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch, torch._dynamo"], check=True)
    return {
        "training_s": statistics.median(waits[1:]),
        "worst_s": max(waits[1:]),
        "first_s": waits[0],
        "import_torch_s": time.perf_counter() - imported,
    }
