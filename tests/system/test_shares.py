"""Several users of one store, with real coordinators: turns, and the command."""

import json

import pytest

from experiments.jobs.queue.queue import Queue
from experiments.store.layout import Store
from tests.system import stub_store
from tests.system.stub_store import SLOTS, enqueue, go, make


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


def test_the_command_says_what_each_user_has_used(store, cli, tiny):
    where = ("--store", store.root)
    go(store, make(1, user="ann"), make(2, user="ann"), slots=SLOTS[:1])
    cli("queue", tiny, "--user", "bob", *where)
    found = json.loads(cli("status", "--users", "--json", *where).stdout)["users"]
    with Queue(store.queue_db) as queue:
        used_h = queue.use()["ann"].used_s / 3600
    assert found[0] == {"user": "ann", "running": 0, "waiting": 0, "used_h": pytest.approx(used_h)} and used_h > 0
    assert found[1]["user"] == "bob" and found[1]["waiting"] > 0 == found[1]["used_h"]
    assert "  bob: 0 device-hours used, 0 running," in cli("status", "--users", *where).stdout
    assert "without spaces" in cli("queue", tiny, "--user", "a b", *where, code=2).stderr
    assert json.loads(cli("status", "--users", "--json", *where).stdout)["users"] == found
