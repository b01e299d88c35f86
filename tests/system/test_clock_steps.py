"""A step of the machine's clock while a coordinator runs ends no process."""

import subprocess
import sys
from pathlib import Path

from experiments.jobs.queue.queue import Queue
from experiments.store.layout import Store
from tests.chaos import with_stepped_clock

from .stub_store import STUB, assert_whole, events, make, outcomes, wait_for

STEPS_S = [1, -1, 5, -5, 3600, -3600]  # relative to the clock when the coordinator started
COORDINATOR = """
import sys
from experiments.jobs.coordinator.work import work
from experiments.jobs.engines.local import LocalEngine
from experiments.jobs.devices.slots import Slot
from experiments.store.layout import Store

work(Store.open(sys.argv[1]), [Slot("cpu:0", "cpu", 1)], engine=LocalEngine(()), child=(sys.executable, sys.argv[2]))
"""


def test_runs_finish_at_the_first_attempt_while_the_clock_is_set_to_and_fro(tmp_path: Path) -> None:
    store, numbers = Store.open(tmp_path / "store"), range(1, len(STEPS_S) + 2)
    queue = Queue(store.queue_db)
    queue.enqueue([make(number, step_s=0.05, priority=-number) for number in numbers])
    queue.close()
    environment = with_stepped_clock(store)
    coordinator = subprocess.Popen([sys.executable, "-c", COORDINATOR, store.root, STUB], env=environment)
    try:
        for number, seconds in zip(numbers, STEPS_S, strict=False):
            wait_for(lambda number=number: outcomes(store, number) or coordinator.poll() is not None)
            (tmp_path / "store.clock").write_text(str(seconds))
        assert coordinator.wait(300) == 0
    finally:
        coordinator.kill()
        coordinator.wait()
    for number in numbers:
        assert outcomes(store, number) == ["finished"]
        assert_whole(store, number)
        times = [event["t"] for event in events(store, 1, number)]
        assert times == sorted(times) and times[-1] - times[0] < 600
        assert 0 < _duration(store, number) < 600


def _duration(store: Store, number: int) -> float:
    queue = Queue(store.queue_db)
    [made] = queue.history(f"{number:016x}")
    queue.close()
    return float(made["ended"] - made["started"])
