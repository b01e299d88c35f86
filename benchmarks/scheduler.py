"""Measure the cost of the coordinator, the queue and the scheduler.

   python -m benchmarks.scheduler [--quick] [--json]

- overhead: runs that sleep 10 ms on 2 slots. The coordinator's share is the wall time minus the sleep, with an engine
  that starts no processes. The start of processes and MLflow are measured separately.
- queue: operations per second (enqueue, claim, finish), and the time and memory of `status` for a long queue.
- makespan: the makespan of random runs in simulated time, divided by its lower bound max(longest, total / slots).
- simulation: 512 GPUs and 100,000 runs in simulated time, with the real queue and the real scheduler.
- crowd: the limit of the real coordinator with 512 slots, with an engine that starts no processes.
- start: the time from the placement of a run to its first training step, in a process forked from one with torch.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

from benchmarks.scheduling.clock import makespans, simulation
from benchmarks.scheduling.commands import queue, start
from benchmarks.scheduling.overhead import crowd, overhead


def measure(quick: bool) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory(prefix="scheduler-") as name:
        folder = Path(name)
        return {
            "overhead": overhead(folder, 200 if quick else 1000),
            "queue": queue(folder, 500 if quick else 3000, 10_000),
            "makespan": makespans(folder, 10 if quick else 100),
            "simulation": simulation(folder, 512, 5_000 if quick else 100_000),
            "crowd": crowd(folder, 512, 1024 if quick else 4096),
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
