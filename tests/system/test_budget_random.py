"""Budget and ledger stay correct under random requests of parallel clients and kills of children and coordinator."""

import random
import signal
import subprocess
import sys
import time

import pytest

from experiments.events.accounting import attempt_costs
from experiments.events.event_log import read_events
from experiments.jobs.queue.queue import Queue
from experiments.store import ledger
from experiments.store.budget import HOUR, Account
from experiments.store.layout import Store

from .stub_store import CHILD, ROOT

CLIENT = """
import random, sys, time
from experiments.jobs.queue.queue import Queue
from experiments.store import ledger
from experiments.store.layout import Store
from tests.system.stub_store import make

store, requests, seed, runs = Store.open(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
chance = random.Random(seed)
for _ in range(requests):
    number, what = chance.randrange(1, runs), chance.choice(("request",) * 6 + ("retry", "cancel", "budget"))
    run_id = make(number).run_id
    if what == "budget":  # a line that is not allowed to raise a limit only lowers it
        ledger.append(store, what, limits={"hours": 100.0, "runs": 10_000}, allowed="")
        continue
    bad = {"1": {"at": chance.randrange(6), "do": chance.choice(("kill", "exit", "bug", "deaf", "raise"))}}
    job = make(number, bad if chance.random() < 0.3 else {}, steps=6, step_s=chance.choice((0.0, 0.05, 0.2)))
    ledger.append(store, what, study="s", profile="p", run_ids=[run_id])
    with Queue(store.queue_db) as queue:
        queue.enqueue([job]) if what == "request" else getattr(queue, what)([run_id])
    time.sleep(chance.uniform(0, 0.02))
"""
COORDINATOR = """
import sys
from experiments.jobs.coordinator.work import work
from experiments.jobs.devices.slots import Slot
from experiments.jobs.engines.local import LocalEngine
from experiments.store.layout import Store

slots = [Slot(f"cpu:{i}", "cpu", 1) for i in range(2)]
work(Store.open(sys.argv[1]), slots, engine=LocalEngine(()), child=sys.argv[2:])
"""


def start(program, *words):
    return subprocess.Popen([sys.executable, "-c", program, *map(str, words)], cwd=ROOT, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("requests", "seconds", "runs", "clients"),
    [
        pytest.param(60, 12.0, 12, 3, marks=pytest.mark.nightly),
        pytest.param(1000, 150.0, 150, 4, marks=pytest.mark.nightly),
    ],
)
def test_random_requests_never_exceed_the_budget(tmp_path, requests, seconds, runs, clients):
    store, chance = Store.open(tmp_path / "s"), random.Random(requests)
    ledger.append(store, "budget", limits={"hours": seconds / HOUR, "runs": runs}, allowed="")
    asking = [start(CLIENT, store.root, requests // (clients + 1), seed, 2 * runs) for seed in range(clients)]
    kills, coordinator = 0, start(COORDINATOR, store.root, *CHILD)
    until = time.monotonic() + 3000
    while time.monotonic() < until:
        time.sleep(chance.uniform(0.2, 1.5))
        if coordinator.poll() is not None:
            with Queue(store.queue_db) as queue:  # failed runs are requested again, as an agent would do
                waiting = queue.retry([row.run_id for row in queue.status() if row.state == "failed"])
            idle = not waiting and all(client.poll() is not None for client in asking)
            if idle and coordinator.returncode == 0:
                break
            coordinator = start(COORDINATOR, store.root, *CHILD)
        elif kills < requests // 10 and Account(store).open and chance.random() < 0.5:
            kills += 1
            coordinator.send_signal(signal.SIGKILL)
            coordinator.wait()
            if len(asking) == clients and all(client.poll() is not None for client in asking):
                for path in store.state_dir.glob("queue.db*"):  # the queue can be rebuilt
                    path.unlink()
                asking.append(start(CLIENT, store.root, requests // (clients + 1), clients, 2 * runs))
    coordinator.wait()
    time.sleep(2.0)  # children of a killed coordinator save a checkpoint
    start(COORDINATOR, store.root, *CHILD).wait()
    begun = {
        (run_id, number): events
        for run_id in store.run_ids()
        for number in store.attempts(run_id)
        if (events := read_events(store.attempt_folder(run_id, number)))
    }
    spent = sum(one.wall_s for run_id in store.run_ids() for one in attempt_costs(store, run_id))
    longest = max(events[-1]["t"] - events[0]["t"] for events in begun.values())
    found = ledger.entries(store)
    started = {(entry["run_id"], entry["attempt"]) for entry in found if entry["what"] == "start"}
    account = Account(store)
    print(
        f"{requests} requests, {clients} clients, {kills} kills of the coordinator, {len(begun)} attempts at "
        f"{len(account.runs)} runs (limit {runs}); {spent:.1f} s by events, {account.spent_s:.1f} s by the ledger, "
        f"limit {seconds:.1f} s, the longest attempt {longest:.1f} s; {len(found)} lines"
    )
    assert ledger.damaged(store) == [] and [entry["n"] for entry in found] == list(range(1, len(found) + 1))
    assert begun.keys() <= started and not account.open
    assert len({entry["run_id"] for entry in found if entry["what"] == "start"}) == len(account.runs) <= runs
    assert spent <= seconds + longest and account.spent_s <= seconds + longest
    assert account.limits["runs"] == runs and account.limits["hours"] == seconds / HOUR
