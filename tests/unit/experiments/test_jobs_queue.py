"""The queue: nothing is claimed twice, requests are merged, SQLite's errors become messages."""

import multiprocessing
import os
import sqlite3
import threading
import time

import pytest

from experiments.errors import Damaged, UserError
from experiments.jobs.queue import database
from experiments.jobs.queue.job import Ending, Job, Member, Outcome, State
from experiments.jobs.queue.ledger import Ledger
from experiments.jobs.queue.queue import Queue, left_s
from experiments.store.retention import BEST, SPACED, Keep

CONFIG = {"model": {"d_model": 8}, "training": {"train_steps": 10}, "data": {"corpus": "builtin"}}


def make(number, **more):
    return Job(run_id=f"{number:016x}", task="stub", config=CONFIG, **more)


def evaluation(name):
    return {"eval_id": name, "set": "dev", "settings": {}, "inputs": {}}


@pytest.fixture
def ledger(tmp_path):
    with_file = Ledger(tmp_path / "queue.db")
    yield with_file
    with_file.close()


@pytest.mark.parametrize("ended", [None, State.FAILED, State.FINISHED, State.CANCELLED])
def test_what_a_training_must_keep_is_the_union_of_all_who_asked_for_it(ledger, ended):
    """Requests from before its end are kept too: trained again, the run still serves them."""
    ledger.enqueue([make(1, keeps=(Keep(SPACED, 10, 2), Keep(BEST, 5, 1, 1)))])
    if ended:
        ledger.end_waiting([make(1).run_id], ended)
    ledger.enqueue([make(1, keeps=(Keep(SPACED, 10, 5, 5), Keep(SPACED, 4, 1)))])
    assert ledger.job(make(1).run_id).job.keeps == (
        Keep(BEST, 5, 1, 1), Keep(SPACED, 4, 1), Keep(SPACED, 10, 5, 5)
    )  # fmt: skip


def test_evaluations_of_replaced_weights_are_made_again_but_not_stale_ones(ledger):
    for number, stale in ((1, 0), (2, 1)):
        job = make(number, evaluations=(evaluation("new"),), rerun_after=stale)
        ledger.enqueue([job])
        ledger.claim(job.run_id, 2, "cpu:0", "cpu")
        ledger.score_again(job, [evaluation("old")])
    assert [[e["eval_id"] for e in ledger.job(make(n).run_id).job.evaluations] for n in (1, 2)] == [
        ["new", "old"], ["new"],
    ]  # fmt: skip


def test_an_ensemble_waits_for_its_members_and_for_nothing_else(ledger):
    """Whatever became of them: its own attempt says which one is missing. A damaged entry harms no other job."""
    one, two, three = (make(number).run_id for number in (1, 2, 3))
    ledger.enqueue([make(9, after=(one, two, make(7).run_id), priority=5), make(1), make(2), make(3)])
    assert [job.run_id for job in ledger.waiting(9)] == [one, two, three]
    assert [row.doing for row in ledger.status() if row.run_id == make(9).run_id] == ["waits for its members"]
    ledger.claim(one, 1, "cpu:0", "cpu")
    ledger.end_waiting([two], State.FAILED, "why")
    assert [job.run_id for job in ledger.waiting(9)] == [three]
    ledger.end(one, 1, Ending(State.FINISHED, Outcome.FINISHED))
    assert [job.run_id for job in ledger.waiting(9)] == [make(9).run_id, three]
    ledger._db.execute("UPDATE jobs SET spec='{' WHERE run_id=?", (three,))
    assert [job.run_id for job in ledger.waiting(9)] == [make(9).run_id, three]


def test_what_ensembles_read_of_a_run_is_the_union_of_all_who_asked(ledger):
    first, second = ({"set": name, "settings": {}, "inputs": {}} for name in ("dev", "test"))
    ledger.enqueue([make(1, read_by=(first,))])
    ledger.enqueue([make(1, read_by=(second, first))])
    ledger.enqueue([make(1)])
    assert ledger.job(make(1).run_id).job.read_by == (first, second)
    assert (
        make(1, inputs={"corpus": "c", "ensemble member 1": "0" * 16}).inputs_key
        == make(1, inputs={"corpus": "c"}).inputs_key
    )


def claim_all(path, claimed):
    ledger = Ledger(path)
    mine = []
    while waiting := ledger.waiting(3):
        mine += [w.run_id for w in waiting if ledger.claim(w.run_id, 1, "cpu:0", "cpu")]
    ledger.close()
    claimed.put(mine)


@pytest.mark.parametrize("kind", [threading.Thread, multiprocessing.get_context("spawn").Process])
def test_many_claim_at_once_and_nothing_is_claimed_twice(tmp_path, kind):
    path, count = tmp_path / "queue.db", 120
    Queue(path).enqueue(make(i) for i in range(count))
    claimed = multiprocessing.get_context("spawn").Queue()
    workers = [kind(target=claim_all, args=(path, claimed)) for _ in range(3)]
    for worker in workers:
        worker.start()
    got = [claimed.get(timeout=30) for _ in workers]
    for worker in workers:
        worker.join()
    assert sorted(run_id for mine in got for run_id in mine) == [f"{i:016x}" for i in range(count)]


def test_many_open_a_new_queue_at_once(tmp_path):
    errors = []

    def add(number):
        try:
            Queue(tmp_path / "queue.db").enqueue([make(number)])
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=add, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(Queue(tmp_path / "queue.db").status()) == 8


def test_a_job_comes_back_as_it_went_in(ledger):
    member = Member("table3", "demo", "builtin", "A-h16", "A")
    job = make(
        1,
        seed=3,
        steps=10,
        evaluations=(evaluation("e1"),),
        inputs={"corpus": "ab"},
        members=(member,),
        continues=("c",),
    )
    ledger.enqueue([job])
    assert ledger.job(job.run_id).job == job
    row = ledger.status()[0]
    assert (row.state, row.seed, row.total, row.members) == (State.WAITING, 3, 10, (member,))


def test_the_order_is_priority_then_turn_then_cost_then_age(ledger):
    ledger.enqueue([make(1, cost=1.0)], now=1)
    ledger.enqueue([make(2, cost=5.0)], now=2)
    ledger.enqueue([make(3, cost=5.0)], now=1)
    ledger.enqueue([make(4, cost=0.5, priority=1)], now=3)
    ledger.enqueue([make(5, cost=9.0, turn=1)], now=0)
    assert [int(w.run_id, 16) for w in ledger.waiting(10)] == [4, 3, 2, 1, 5]
    assert [int(row.run_id, 16) for row in ledger.rows(State.WAITING, 10)] == [4, 3, 2, 1, 5]
    ledger.enqueue([make(5, cost=9.0)])  # asked again, as a first seed
    assert [int(w.run_id, 16) for w in ledger.waiting(10)] == [4, 5, 3, 2, 1]
    key = make(1).inputs_key
    assert ledger.waiting(10, without=[key]) == []


def test_asked_twice_is_one_job_with_both_wishes(ledger):
    here, there = Member("one", "demo", "builtin", "base"), Member("two", "demo", "builtin", "base")
    first = make(1, evaluations=(evaluation("e1"),), members=(here,), priority=2)
    again = make(1, evaluations=(evaluation("e2"), evaluation("e1")), members=(there,), train=False)
    assert ledger.enqueue([first]) == 1
    assert ledger.enqueue([again]) == 0
    joined = ledger.job(first.run_id).job
    assert [e["eval_id"] for e in joined.evaluations] == ["e1", "e2"]
    assert joined.train and joined.priority == 2 and set(joined.members) == {here, there}


def test_asked_while_it_runs_the_wish_is_joined_and_it_goes_on_running(ledger):
    job = make(1, evaluations=(evaluation("e1"),))
    ledger.enqueue([job])
    assert ledger.claim(job.run_id, 1, "cpu:0", "cpu")
    assert ledger.enqueue([make(1, evaluations=(evaluation("e2"),))]) == 0
    assert ledger.status()[0].state is State.RUNNING
    assert len(ledger.job(job.run_id).job.evaluations) == 2


@pytest.mark.parametrize("state", [State.FINISHED, State.FAILED, State.CANCELLED])
def test_asked_after_its_end_it_waits_again(ledger, state):
    ledger.enqueue([make(1, evaluations=(evaluation("e1"),))])
    ledger.claim(make(1).run_id, 1, "cpu:0", "cpu")
    ledger.end(make(1).run_id, 1, Ending(state, Outcome.BUG, error="it broke", stalls=3))
    assert ledger.enqueue([make(1, evaluations=(evaluation("e2"),))]) == 1
    row = ledger.status()[0]
    assert (row.state, row.error, row.attempt) == (State.WAITING, "", 1)
    assert [e["eval_id"] for e in ledger.job(row.run_id).job.evaluations] == ["e2"]
    assert ledger.job(row.run_id).stalls == 0


def test_cancel_ends_what_waits_and_asks_what_runs(ledger):
    ledger.enqueue([make(1), make(2), make(3)])
    ledger.claim(make(2).run_id, 1, "cpu:0", "cpu")
    ledger.end_waiting([make(3).run_id], State.FINISHED)
    assert ledger.cancel(make(i).run_id for i in (1, 2, 3, 4)) == 2
    assert [row.state for row in ledger.status()] == [State.CANCELLED, State.RUNNING, State.FINISHED]
    assert ledger.in_state(State.RUNNING, request="cancel") == [make(2).run_id]
    assert not ledger.claim(make(1).run_id, 1, "cpu:0", "cpu")


def test_retry_is_for_the_failed_and_cancelled(ledger):
    ledger.enqueue([make(1), make(2), make(3)])
    ledger.end_waiting([make(1).run_id], State.FAILED, "it broke", "bug")
    ledger.end_waiting([make(2).run_id], State.FINISHED)
    assert ledger.retry(make(i).run_id for i in (1, 2, 3)) == 1
    rows = {int(row.run_id, 16): row for row in ledger.status()}
    assert [rows[i].state for i in (1, 2, 3)] == [State.WAITING, State.FINISHED, State.WAITING]
    assert rows[1].error == rows[1].error_class == ""


def test_a_late_ending_of_an_old_attempt_changes_nothing(ledger):
    ledger.enqueue([make(1)])
    ledger.claim(make(1).run_id, 1, "cpu:0", "cpu")
    ledger.end(make(1).run_id, 1, Ending(State.WAITING, Outcome.KILLED))
    ledger.claim(make(1).run_id, 2, "cpu:0", "cpu")
    ledger.end(make(1).run_id, 1, Ending(State.FAILED, Outcome.BUG))
    assert ledger.status()[0].state is State.RUNNING


def test_history_and_progress(ledger):
    run_id = make(1).run_id
    ledger.enqueue([make(1)])
    ledger.claim(run_id, 1, "cpu:1", "cpu")
    ledger.started(run_id, 1, {"pid": 7}, {"threads": 2}, 0)
    ledger.progress([(run_id, 4, "training", 9.5)])
    assert (ledger.status()[0].step, ledger.status()[0].doing) == (4, "training")
    assert ledger.job(run_id).ref == {"pid": 7} and ledger.job(run_id).pinned == {"threads": 2}
    ledger.end(run_id, 1, Ending(State.WAITING, Outcome.KILLED, detail="goes on", best=4, stalls=1), (0, 5))
    attempt = ledger.history(run_id)[0]
    assert (attempt["slot"], attempt["outcome"], attempt["first_step"], attempt["last_step"]) == (
        "cpu:1",
        "killed",
        0,
        5,
    )
    assert ledger.status()[0].doing == "goes on"
    assert ledger.counts()[State.WAITING] == 1


def test_others_see_a_change_by_the_data_version(ledger):
    before = ledger.data_version()
    assert ledger.data_version() == before
    Queue(ledger.path).enqueue([make(1)])
    assert ledger.data_version() != before


@pytest.mark.slow
def test_a_thousand_operations_a_second_and_status_of_ten_thousand_in_a_second(ledger):
    began = time.process_time()
    ledger.enqueue(make(i, members=(Member("s", "demo", "builtin", str(i)),)) for i in range(10_000))
    assert time.process_time() - began < 5
    began = time.process_time()
    for i in range(500):
        ledger.claim(f"{i:016x}", 1, "cpu:0", "cpu")
        ledger.end(f"{i:016x}", 1, Ending(State.FINISHED, Outcome.FINISHED))
    assert time.process_time() - began < 1
    began = time.process_time()
    assert len(ledger.status()) == 10_000
    assert time.process_time() - began < 1


class TestBadFiles:
    def test_no_queue_reads_as_an_empty_one_and_is_not_made(self, tmp_path):
        assert Queue(tmp_path / "queue.db", create=False).status() == []
        assert not (tmp_path / "queue.db").exists()

    def test_not_a_database(self, tmp_path):
        (tmp_path / "queue.db").write_text("these are my shopping notes, and they are long enough to be read\n" * 20)
        with pytest.raises(UserError, match="not an SQLite file"):
            Queue(tmp_path / "queue.db")

    def test_somebody_elses_database_is_left_alone(self, tmp_path):
        other = sqlite3.connect(tmp_path / "queue.db")
        other.execute("CREATE TABLE jobs (a)")
        other.commit()
        before = (tmp_path / "queue.db").read_bytes()
        with pytest.raises(UserError, match="not a queue"):
            Queue(tmp_path / "queue.db")
        assert (tmp_path / "queue.db").read_bytes() == before

    @pytest.mark.parametrize("other", [-1, 1])
    def test_another_schema(self, tmp_path, other):
        queue = Queue(tmp_path / "queue.db")
        queue._db.execute(f"PRAGMA user_version={database.VERSION + other}")
        queue.close()
        before = (tmp_path / "queue.db").read_bytes()
        for create in (False, True):
            with pytest.raises(UserError, match="another version of this program"):
                Queue(tmp_path / "queue.db", create=create)
        assert (tmp_path / "queue.db").read_bytes() == before

    def test_no_folder(self, tmp_path):
        with pytest.raises(UserError, match="cannot be opened"):
            Queue(tmp_path / "missing" / "queue.db")

    def test_a_full_disk_is_said_and_the_queue_survives(self, ledger):
        ledger.enqueue([make(1)])
        pages = ledger._db.execute("PRAGMA page_count").fetchone()[0]
        ledger._db.execute(f"PRAGMA max_page_count={pages}")  # SQLite's own way to run out of space
        with pytest.raises(UserError, match="no space left"):
            ledger.enqueue(make(i) for i in range(1000))
        ledger._db.execute("PRAGMA max_page_count=1000000")
        assert [row.run_id for row in ledger.status()] == [make(1).run_id]

    def test_a_read_only_file_can_be_looked_at_but_not_changed(self, ledger):
        ledger.enqueue([make(1)])
        ledger._db.execute("PRAGMA query_only=1")
        assert len(ledger.status()) == 1
        with pytest.raises(UserError, match="cannot be written"):
            ledger.enqueue([make(2)])

    def test_a_read_only_folder_can_be_looked_at(self, tmp_path, monkeypatch):
        Queue(tmp_path / "queue.db").enqueue([make(1)])
        monkeypatch.setattr(os, "access", lambda *_: False)
        assert len(Queue(tmp_path / "queue.db", create=False).status()) == 1


def test_a_queue_that_another_process_makes_at_the_same_moment_is_used(tmp_path, monkeypatch):
    """The database is created under another name, so nobody sees it incomplete; a used one keeps its journal mode."""
    path, make_it = tmp_path / "queue.db", database._make

    def later(path):
        Queue(path).enqueue([make(7)])
        assert path.stat().st_size > 0
        make_it(path)

    monkeypatch.setattr(database, "_make", lambda path: (monkeypatch.undo(), later(path)))
    queue = Queue(path)
    assert [row.run_id for row in queue.status()] == [make(7).run_id]
    queue.close()
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def spoil(ledger, number, **values):
    """Write values into a job's entry as a damaged file would hold them."""
    for name, value in values.items():
        ledger._db.execute(f"UPDATE jobs SET {name}=? WHERE run_id=?", (value, make(number).run_id))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", "one"),
        ("cost", "x"),
        ("step", "x"),
        ("started", b"x"),
        ("state", "asleep"),
        ("error", b"x"),
    ],
)
def test_an_entry_of_wrong_types_is_damaged_and_names_the_field(ledger, name, value):
    ledger.enqueue([make(1)])
    assert len(ledger.status()) == 1
    spoil(ledger, 1, **{name: value})
    with pytest.raises(Damaged, match=rf"\({name} of an entry\)"):
        ledger.status()


@pytest.mark.parametrize("name", ["best", "stalls", "alone", "hangs"])
def test_numbers_of_attempts_that_are_none_are_damage(ledger, name):
    ledger.enqueue([make(1)])
    spoil(ledger, 1, **{name: "many"})
    with pytest.raises(Damaged, match="is not a number"):
        ledger.job(make(1).run_id)


def test_a_job_that_is_not_there_and_one_whose_last_attempt_is_missing(ledger):
    with pytest.raises(KeyError):
        ledger.job(make(1).run_id)
    ledger.enqueue([make(1)])
    assert (ledger.job(make(1).run_id).attempt, ledger.job(make(1).run_id).ref) == (0, None)
    ledger.claim(make(1).run_id, 1, "cpu:0", "cpu")
    ledger._db.execute("DELETE FROM attempts")
    with pytest.raises(Damaged, match="its last attempt is missing"):
        ledger.job(make(1).run_id)


def test_a_damaged_entry_is_written_again_unless_it_runs(ledger):
    ledger.enqueue([make(1, seed=1)])
    for name, value in (("spec", "{"), ("pinned", "["), ("state", "asleep")):
        spoil(ledger, 1, **{name: value})
        assert ledger.enqueue([make(1, seed=2)]) == 1
        assert ledger.job(make(1).run_id).job.seed == 2 and ledger.status()[0].state is State.WAITING
    ledger.claim(make(1).run_id, 1, "cpu:0", "cpu")
    spoil(ledger, 1, spec="{")
    with pytest.raises(Damaged):
        ledger.enqueue([make(1)])


def test_speed_is_cost_by_second_of_runs_that_finished_at_once(ledger):
    assert ledger.speed() is None
    spans = [(1, 6.0, 1, State.FINISHED, 2.0), (2, 4.0, 1, State.FINISHED, 3.0), (3, 9.0, 2, State.FINISHED, 1.0),
             (4, 9.0, 1, State.FAILED, 1.0), (5, 0.0, 1, State.FINISHED, 50.0)]  # fmt: skip
    for number, cost, attempt, state, seconds in spans:
        ledger.enqueue([make(number, cost=cost)])
        ledger.claim(make(number).run_id, attempt, "cpu:0", "cpu")
        ledger.end(make(number).run_id, attempt, Ending(state, Outcome.FINISHED))
        ledger._db.execute(
            "UPDATE attempts SET started=100, ended=? WHERE run_id=?", (100 + seconds, make(number).run_id)
        )
    assert ledger.speed() == pytest.approx((6.0 + 4.0) / (2.0 + 3.0))
    ledger._db.execute("UPDATE attempts SET ended=90")  # a clock that went back
    assert ledger.speed() is None


def test_the_time_left_is_that_of_the_longest_first_on_as_many_slots_as_run(ledger):
    assert left_s(ledger) is None and left_s(ledger, 2.0) is None  # nothing to do
    ledger.enqueue([make(number, cost=cost) for number, cost in ((1, 1.0), (2, 8.0), (3, 6.0), (4, 4.0))])
    assert left_s(ledger) is None  # the speed is not known
    assert left_s(ledger, 2.0) == pytest.approx(19.0 / 2)
    ledger.hold(make(1).run_id, "why")
    assert left_s(ledger, 2.0) == pytest.approx(9.0)
    for number in (2, 3):
        ledger.claim(make(number).run_id, 1, f"cpu:{number}", "cpu")
    assert left_s(ledger, 2.0) == pytest.approx(2.0)  # nothing known of the two that run: 4.0 of cost on a free slot
    spoil(ledger, 2, left_s=10.0)
    spoil(ledger, 3, left_s=1.0)
    assert sorted(ledger.running_left()) == [1.0, 10.0] and ledger.waiting_costs() == [4.0]
    assert left_s(ledger, 2.0) == pytest.approx(10.0) and left_s(ledger, 0.25) == pytest.approx(1.0 + 16.0)
    ledger.end_waiting([make(4).run_id], State.FINISHED)
    assert left_s(ledger) == pytest.approx(10.0)  # running ones need no speed


def test_what_is_wanted_of_devices_and_which_tasks(ledger):
    assert ledger.devices_wanted() == 0 and ledger.tasks_wanted() == []
    ledger.enqueue([make(1, devices=3), make(2), make(3, devices=2), make(4)])
    ledger.claim(make(1).run_id, 1, "cpu:0", "cpu")
    ledger.end_waiting([make(4).run_id], State.FINISHED)
    assert ledger.devices_wanted() == 3 + 1 + 2
    spoil(ledger, 2, spec="{")
    assert sorted(ledger.tasks_wanted()) == ["", "stub"]


def test_what_failed_asked_for_is_known_but_for_damaged_entries(ledger):
    ledger.enqueue([make(1, evaluations=(evaluation("e1"), evaluation("e2"))), make(2), make(3)])
    ledger.end_waiting([make(1).run_id, make(2).run_id], State.FAILED)
    spoil(ledger, 2, spec="{")
    assert ledger.asked_of_failed() == {make(1).run_id: {"e1", "e2"}}


def test_a_forgotten_run_leaves_nothing_unless_it_runs(ledger):
    here = Member("one", "demo", "builtin", "base")
    ledger.enqueue([make(1, members=(here,)), make(2, members=(here,))])
    for number in (1, 2):
        ledger.claim(make(number).run_id, 1, "cpu:0", "cpu")
    ledger.end(make(1).run_id, 1, Ending(State.FAILED, Outcome.BUG))
    ledger.forget([make(1).run_id, make(2).run_id, make(3).run_id])
    assert [row.run_id for row in ledger.status()] == [make(2).run_id]
    assert ledger.members() == {make(2).run_id: (here,)}
    assert ledger.history(make(1).run_id) == [] and len(ledger.history(make(2).run_id)) == 1


def test_of_damaged_lines_those_notes_are_read_that_are_whole(ledger):
    ledger.enqueue([make(1)])
    ledger.claim(make(1).run_id, 1, "cpu:0", "cpu")
    assert ledger.damaged_lines() == {}
    ledger.events_read(make(1).run_id, 1, "120-77", 3)
    assert ledger.damaged_lines() == {(make(1).run_id, 1): ("120-77", 3)}
    ledger._db.execute("UPDATE attempts SET events='120-77'")
    assert ledger.damaged_lines() == {}
