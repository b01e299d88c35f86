"""Fair shares: use of the last days, turns between users, on real queues."""

import pytest

from experiments.errors import UserError
from experiments.events import event_log as clock
from experiments.jobs.coordinator.scheduler import place
from experiments.jobs.devices.slots import Slot, join
from experiments.jobs.queue.job import Ending, Job, Member, Outcome, State
from experiments.jobs.queue.ledger import Ledger
from experiments.jobs.queue.shares import DAY_S, DAYS, check_user, login

DONE = Ending(State.FINISHED, Outcome.FINISHED)
HOUR = 3600.0


def job(number, user="", **more):
    member = Member("s", "p", "c", str(number))
    return Job(f"{number:016x}", "stub", {}, members=(member,), cost=1.0, user=user, **more)


@pytest.fixture
def ledger(tmp_path):
    with Ledger(tmp_path / "queue.db") as opened:
        yield opened


def work_off(ledger, slots=1, hours=1.0, limit=10_000):
    """Starts jobs as the coordinator does, each for so long; the users in the order of the starts."""
    all_slots, order, now = [Slot(f"cpu:{i}", "cpu") for i in range(slots)], [], clock.record_time()
    while len(order) < limit:
        charged = ledger.charged()
        placed = place(ledger.waiting(slots + 64, charged=charged), all_slots, all_slots, charged)
        if not placed:
            return order
        for waiting, (slot,) in placed:
            assert ledger.claim(waiting.run_id, 1, slot.name, slot.kind, slot.devices)
            order.append(waiting.user)
        for waiting, _ in placed:
            ledger.end(waiting.run_id, 1, DONE, span=(now - hours * HOUR, now))
    return order


def test_what_counts_are_the_last_days(ledger):
    ledger.enqueue([job(n, user) for n, user in enumerate(["ann", "ann", "ann", "bob"])])
    now = clock.record_time()
    for number, days_ago in enumerate([0, DAYS - 1, DAYS, DAYS - 1]):
        ledger.claim(job(number).run_id, 1, "cuda:0", "cuda", 2.0)
        end = now - days_ago * DAY_S
        ledger.end(job(number).run_id, 1, DONE, span=(end - 3 * HOUR, end))
    assert {user: use.used_s for user, use in ledger.use(now).items()} == {"ann": 12 * HOUR, "bob": 6 * HOUR}
    assert {user: use.used_s for user, use in ledger.use(now + DAY_S).items()} == {"ann": 6 * HOUR}


@pytest.mark.parametrize("slots", [1, 2, 8])
def test_two_users_with_equal_shares_alternate(ledger, slots):
    ledger.enqueue([job(n, "ann") for n in range(40)])
    ledger.enqueue([job(n, "bob") for n in range(40, 80)])
    order = work_off(ledger, slots)
    for end in range(2, 81):
        ahead = abs(order[:end].count("ann") - order[:end].count("bob"))
        assert ahead <= max(2, slots), order[:end]


def test_a_user_who_came_first_with_many_runs_does_not_starve_one_who_comes_with_two(ledger):
    ledger.enqueue([job(n, "ann") for n in range(100)])
    assert work_off(ledger, limit=10) == ["ann"] * 10
    ledger.enqueue([job(n, "bob") for n in range(100, 102)])
    order = work_off(ledger)
    assert order[:2] == ["bob", "bob"] and order.count("ann") == 90


def test_priority_goes_before_use_and_a_users_own_order_stays(ledger):
    ledger.enqueue([job(1, "ann"), job(2, "ann", turn=1), job(3, "bob", priority=1), job(4, "bob", priority=1)])
    assert work_off(ledger) == ["bob", "bob", "ann", "ann"]


@pytest.mark.parametrize("user", ["", "ann"])
def test_one_user_alone_has_the_order_of_before(ledger, user):
    """By priority, turn, cost, time and name."""
    jobs = [job(n, user, priority=n % 3, turn=n % 4) for n in range(60)]
    ledger.enqueue(jobs)
    expected = [one.run_id for one in sorted(jobs, key=lambda one: (-one.priority, one.turn, one.run_id))]
    assert [one.run_id for one in ledger.waiting(-1, charged=ledger.charged())] == expected
    assert [one.run_id for one in ledger.rows(State.WAITING, 100)] == expected


def test_devices_of_a_lease_are_counted(ledger):
    third = [Slot(f"cuda:0/{i}", "cuda", share=1 / 3) for i in range(3)]
    assert join(third[:2]).devices == pytest.approx(2 / 3)
    assert join([Slot("cuda:0", "cuda"), Slot("cuda:1", "cuda")], together=True).devices == 2
    assert join([Slot("cpu:0", "cpu"), Slot("cpu:1", "cpu")]).devices == 2
    ledger.enqueue([job(1, "ann")])
    ledger.claim(job(1).run_id, 1, "cuda:0/0", "cuda", third[0].devices)
    now = clock.record_time()
    ledger.end(job(1).run_id, 1, DONE, span=(now - 3 * HOUR, now))
    ledger.end(job(1).run_id, 1, DONE, span=(now - 3 * HOUR, now))  # counted once
    assert ledger.use()["ann"].used_s == pytest.approx(HOUR)


def test_running_attempts_count_from_their_first_event(ledger):
    """Not from their submission: a cluster may keep them waiting for days."""
    ledger.enqueue([job(1, "ann")])
    ledger.claim(job(1).run_id, 1, "cuda:0", "cuda", 1.0)
    now = clock.record_time()
    assert ledger.use(now + 5 * HOUR)["ann"].used_s == 0
    ledger.progress([(job(1).run_id, 3, "training", None, now)])
    assert ledger.use(now + 5 * HOUR)["ann"].used_s == pytest.approx(5 * HOUR)


def test_twenty_thousand_jobs_of_many_users_are_dealt_out_without_a_look_at_all_of_them(ledger):
    ledger.enqueue(job(n, f"user{n % 20}") for n in range(20_000))
    steps = 0

    def count():
        nonlocal steps
        steps += 1

    ledger._db.set_progress_handler(count, 1000)  # every thousand instructions of SQLite
    assert len({one.user for one in ledger.waiting(8, charged=ledger.charged())}) == 20
    assert steps < 100, "as many instructions as some hundred rows need"


@pytest.mark.parametrize("name", ["", "a b", "a=1", "a,b", "a\x1b[31m", "x" * 65, "a\n", "'"])
def test_names_that_cannot_be_written_are_refused(name):
    with pytest.raises(UserError, match="User "):
        check_user(name)


def test_the_login_name_is_always_one_that_can_be_written(monkeypatch):
    for name in ("ann", "Ännchen", "d\\ann", "ann@lab.example"):
        monkeypatch.setenv("LOGNAME", name)
        assert login() == name
    monkeypatch.setenv("LOGNAME", "two words")
    assert login().startswith("uid")
