"""Several users of one store, with real coordinators: turns, quotas over kill -9, and the command."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from experiments.jobs.coordinator.work import work
from experiments.jobs.engines.local import LocalEngine
from experiments.jobs.queue.job import State
from experiments.jobs.queue.queue import Queue
from experiments.jobs.queue.shares import Shares, keep_shares, load_shares
from experiments.store.layout import Store
from tests.system import stub_store
from tests.system.stub_store import CHILD, ROOT, SLOTS, enqueue, go, make, wait_for


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store")


def starts(store):
    """(user, seconds of use) of the attempts, in the order of their starts."""
    with Queue(store.queue_db) as queue:
        users = {row.run_id: row.user for row in queue.status()}
        begun = sorted((one["started"], run_id, one) for run_id in users for one in queue.history(run_id))
    first = {run_id: stub_store.events(store, one["number"], int(run_id, 16))[0]["t"] for _, run_id, one in begun}
    return [(users[run_id], one["ended"] - first[run_id]) for _, run_id, one in begun]


def used_s(store, user):
    with Queue(store.queue_db) as queue:
        return queue.use()[user].used_s


def test_two_users_take_turns_and_who_comes_late_is_not_starved(store):
    enqueue(store, *(make(n, user="ann", step_s=0.02) for n in range(1, 13)))
    summary = go(store, *(make(n, user="bob", step_s=0.02) for n in range(20, 24)), slots=SLOTS[:1])
    assert summary.finished == 16 and summary.left == 0
    order = starts(store)
    assert {user for user, _ in order[:2]} == {"ann", "bob"}
    used = {"ann": 0.0, "bob": 0.0}
    for place, (user, seconds) in enumerate(order):
        waiting = {other for other, _ in order[place:]}
        assert used[user] <= min(used[other] for other in waiting) + 0.1, (place, order)
        used[user] += seconds
    for number in (1, 23):
        stub_store.assert_whole(store, number)


def test_a_quota_is_held_over_a_killed_coordinator_and_loses_no_run(store):
    """Killed with SIGKILL while a run trains: what it used until then counts, and is not counted twice."""
    keep_shares(store, Shares(quotas={"ann": 0.5 / 3600}))  # half a second of a device
    enqueue(store, *(make(n, user="ann", steps=60, step_s=0.05) for n in (1, 2)))
    code = (
        "import sys; from experiments.store.layout import Store; from tests.system.stub_store import go, SLOTS\n"
        "go(Store.open(sys.argv[1]), slots=SLOTS[:1])"
    )
    began = time.monotonic()
    first = subprocess.Popen(
        [sys.executable, "-c", code, str(store.root)], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    wait_for(lambda: any(e["kind"] == "checkpoint" and e["step"] > 10 for e in stub_store.events(store, 1)))  # 0.5 s
    first.send_signal(signal.SIGKILL)
    first.wait()
    summary = work(store, SLOTS[:1], engine=LocalEngine(()), child=CHILD)
    with Queue(store.queue_db) as queue:
        assert queue.over_quota(load_shares(store)).keys() == {"ann"}
        waiting = queue.counts()[State.WAITING]
    assert (summary.finished, summary.left) == (0, 2) and waiting == 2, "both wait, none is lost"
    before = used_s(store, "ann")
    assert 0.5 < before < time.monotonic() - began
    assert work(store, SLOTS[:1], engine=LocalEngine(()), child=CHILD).left == 2
    assert used_s(store, "ann") == pytest.approx(before, rel=0.01)
    assert go(store, make(3, user="bob"), slots=SLOTS[:1]).finished == 1, "others go on"
    keep_shares(store, Shares())
    assert work(store, SLOTS, engine=LocalEngine(()), child=CHILD).finished == 2
    stub_store.assert_whole(store, 1, 60)
    stub_store.assert_whole(store, 2, 60)


def test_a_raised_quota_is_seen_by_the_coordinator_that_works(store, cli):
    keep_shares(store, Shares(quotas={"ann": 0.0}))
    long = make(2, user="bob", steps=100_000, step_s=0.05)
    working = stub_store.in_thread(store, make(1, user="ann"), long, slots=SLOTS)
    try:
        wait_for(lambda: stub_store.row(store, 2).state is State.RUNNING)
        said = cli("status", "--store", store.root).stdout
        assert (
            "the quota of ann is used up (0 of 0 device-hours in 7 days): other runs of ann wait until the quota is"
            in said
        )
        assert stub_store.row(store, 1).state is State.WAITING
        cli("status", "--quota", "ann=5", "--store", store.root)
        wait_for(lambda: stub_store.row(store, 1).state is State.FINISHED)
        assert stub_store.row(store, 2).state is State.RUNNING
    finally:
        with Queue(store.queue_db) as queue:
            queue.cancel([long.run_id, f"{1:016x}"])
        working.join()


def test_the_command_says_who_waits_for_a_quota(store, cli, tiny, tmp_path):
    where = ("--store", store.root)
    cli("status", "--quota", "ann=0", *where)
    said = cli("queue", tiny, "--user", "ann", *where).stderr
    assert "note: the quota of ann is used up" in said
    done = cli("run", tiny, "--user", "ann", "--devices", "cpu:1", *where, code=1)
    assert "not run, the quota of ann is used up" in done.stderr and "stay queued" in done.stderr
    found = json.loads(cli("status", "--users", "--json", *where).stdout)
    [ann] = found["users"]
    assert (ann["user"], ann["quota_h"]) == ("ann", 0) and ann["waiting"] > 0
    assert "ann: 0 of 0 device-hours used, 0 running," in cli("status", "--users", *where).stdout
    for wrong, said in (
        (("--quota", "ann=-1"), "must be 0 to"),
        (("--quota", "ann"), "write USER=HOURS"),
        (("--quota", "a b=1"), "without spaces"),
        (("--quota", "ann=much"), "no number of device-hours"),
    ):
        assert said in cli("status", "--users", *wrong, *where, code=2).stderr
    assert "without spaces" in cli("queue", tiny, "--user", "a b", *where, code=2).stderr
    assert json.loads(cli("status", "--users", "--json", *where).stdout) == found
