"""In the queue, no job is claimed twice, requests are merged, and SQLite's errors become messages."""

import json
import multiprocessing
import os
import sqlite3
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from experiments.child.run import _check_identities
from experiments.device_spec import DeviceSpec
from experiments.errors import Damaged, UserError
from experiments.identity import identity_of, with_members
from experiments.jobs.coordinator.placement import Placement
from experiments.jobs.queue import queue_file, trust
from experiments.jobs.queue.job import Ending, Member, Outcome, State, merge
from experiments.jobs.queue.job_json import job_from, to_text
from experiments.jobs.queue.queue import Queue
from experiments.jobs.queue.time_left import left_s
from experiments.jobs.queue.work_queue import WorkQueue
from experiments.run_spec import EvaluationSpec, TrainerSpec
from experiments.store import locks
from experiments.store.retention import BEST, SPACED, Keep
from experiments.store.spec import AttemptSpec
from experiments.tasks.load import load_task, task_of, validated
from tests.made_jobs import evaluation, made_job

CONFIG = {"model": {"d_model": 8}, "training": {"train_steps": 10}, "data": {"corpus": "builtin"}}


def make(number, **more):
    return made_job(f"{number:016x}", "stub", CONFIG, **more)


@pytest.fixture
def work_queue(tmp_path):
    with_file = WorkQueue(tmp_path / "queue.db")
    yield with_file
    with_file.close()


@pytest.mark.parametrize("ended", [None, State.FAILED, State.FINISHED, State.CANCELLED])
def test_what_a_training_must_keep_is_the_union_of_all_who_asked_for_it(work_queue, ended):
    """Requests that were made before the run's end are kept, so that the run still serves them when trained again."""
    work_queue.enqueue([make(1, keeps=(Keep(SPACED, 10, 2), Keep(BEST, 5, 1, 1)))])
    if ended:
        work_queue.end_waiting([make(1).run_id], ended)
    work_queue.enqueue([make(1, keeps=(Keep(SPACED, 10, 5, 5), Keep(SPACED, 4, 1)))])
    assert work_queue.job(make(1).run_id).job.keeps == (
        Keep(BEST, 5, 1, 1), Keep(SPACED, 4, 1), Keep(SPACED, 10, 5, 5)
    )  # fmt: skip


def test_evaluations_of_replaced_weights_are_made_again_but_not_stale_ones(work_queue):
    for number, stale in ((1, 0), (2, 1)):
        job = make(number, evaluations=(evaluation("new"),), rerun_after=stale)
        work_queue.enqueue([job])
        work_queue.claim(job.run_id, 2, "cpu:0", "cpu")
        work_queue.score_again(job, [evaluation("old")])
    assert [[e.eval_id for e in work_queue.job(make(n).run_id).job.evaluations] for n in (1, 2)] == [
        ["new", "old"], ["new"],
    ]  # fmt: skip


def test_an_ensemble_waits_for_its_members_and_for_nothing_else(work_queue):
    """Whatever became of them: its own attempt says which one is missing. A damaged entry harms no other job."""
    one, two, three = (make(number).run_id for number in (1, 2, 3))
    work_queue.enqueue(
        [make(9, inputs=with_members({}, (one, two, make(7).run_id)), priority=5), make(1), make(2), make(3)]
    )
    assert [job.run_id for job in work_queue.waiting(9)] == [one, two, three]
    assert [row.doing for row in work_queue.status() if row.run_id == make(9).run_id] == ["waits for its members"]
    work_queue.claim(one, 1, "cpu:0", "cpu")
    work_queue.end_waiting([two], State.FAILED, "why")
    assert [job.run_id for job in work_queue.waiting(9)] == [three]
    work_queue.end(one, 1, Ending(State.FINISHED, Outcome.FINISHED))
    assert [job.run_id for job in work_queue.waiting(9)] == [make(9).run_id, three]
    work_queue._db.execute("UPDATE jobs SET spec='{' WHERE run_id=?", (three,))
    assert [job.run_id for job in work_queue.waiting(9)] == [make(9).run_id, three]


def test_what_ensembles_read_of_a_run_is_the_union_of_all_who_asked(work_queue):
    first, second = (EvaluationSpec(name, {}, {}) for name in ("dev", "test"))
    work_queue.enqueue([make(1, read_by=(first,))])
    work_queue.enqueue([make(1, read_by=(second, first))])
    work_queue.enqueue([make(1)])
    assert work_queue.job(make(1).run_id).job.read_by == (first, second)
    assert (
        make(1, inputs={"corpus": "c", "ensemble member 1": "0" * 16}).inputs_key
        == make(1, inputs={"corpus": "c"}).inputs_key
    )


def claim_all(path, claimed):
    work_queue = WorkQueue(path)
    mine = []
    while waiting := work_queue.waiting(3):
        mine += [w.run_id for w in waiting if work_queue.claim(w.run_id, 1, "cpu:0", "cpu")]
    work_queue.close()
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


def test_a_job_comes_back_as_it_went_in(work_queue):
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
    work_queue.enqueue([job])
    assert work_queue.job(job.run_id).job == job
    row = work_queue.status()[0]
    assert (row.state, row.seed, row.total, row.members) == (State.WAITING, 3, 10, (member,))


def test_the_order_is_priority_then_turn_then_cost_then_age(work_queue):
    work_queue.enqueue([make(1, cost=1.0)], now=1)
    work_queue.enqueue([make(2, cost=5.0)], now=2)
    work_queue.enqueue([make(3, cost=5.0)], now=1)
    work_queue.enqueue([make(4, cost=0.5, priority=1)], now=3)
    work_queue.enqueue([make(5, cost=9.0, turn=1)], now=0)
    assert [int(w.run_id, 16) for w in work_queue.waiting(10)] == [4, 3, 2, 1, 5]
    assert [int(row.run_id, 16) for row in work_queue.rows(State.WAITING, 10)] == [4, 3, 2, 1, 5]
    work_queue.enqueue([make(5, cost=9.0)])  # asked again, as a first seed
    assert [int(w.run_id, 16) for w in work_queue.waiting(10)] == [4, 5, 3, 2, 1]
    key = make(1).inputs_key
    assert work_queue.waiting(10, without=[key]) == []


def test_asked_twice_is_one_job_with_both_wishes(work_queue):
    here, there = Member("one", "demo", "builtin", "base"), Member("two", "demo", "builtin", "base")
    first = make(1, evaluations=(evaluation("e1"),), members=(here,), priority=2)
    again = make(1, evaluations=(evaluation("e2"), evaluation("e1")), members=(there,), train=False)
    assert work_queue.enqueue([first]) == 1
    assert work_queue.enqueue([again]) == 0
    joined = work_queue.job(first.run_id).job
    assert [e.eval_id for e in joined.evaluations] == ["e1", "e2"]
    assert joined.train and joined.priority == 2 and set(joined.members) == {here, there}


def test_asked_while_it_runs_the_wish_is_joined_and_it_goes_on_running(work_queue):
    job = make(1, evaluations=(evaluation("e1"),))
    work_queue.enqueue([job])
    assert work_queue.claim(job.run_id, 1, "cpu:0", "cpu")
    assert work_queue.enqueue([make(1, evaluations=(evaluation("e2"),))]) == 0
    assert work_queue.status()[0].state is State.RUNNING
    assert len(work_queue.job(job.run_id).job.evaluations) == 2


@pytest.mark.parametrize("state", [State.FINISHED, State.FAILED, State.CANCELLED])
def test_asked_after_its_end_it_waits_again(work_queue, state):
    work_queue.enqueue([make(1, evaluations=(evaluation("e1"),))])
    work_queue.claim(make(1).run_id, 1, "cpu:0", "cpu")
    work_queue.end(make(1).run_id, 1, Ending(state, Outcome.BUG, error="it broke", stalls=3))
    assert work_queue.enqueue([make(1, evaluations=(evaluation("e2"),))]) == 1
    row = work_queue.status()[0]
    assert (row.state, row.error, row.attempt) == (State.WAITING, "", 1)
    assert [e.eval_id for e in work_queue.job(row.run_id).job.evaluations] == ["e2"]
    assert work_queue.job(row.run_id).stalls == 0


def test_cancel_ends_what_waits_and_asks_what_runs(work_queue):
    work_queue.enqueue([make(1), make(2), make(3)])
    work_queue.claim(make(2).run_id, 1, "cpu:0", "cpu")
    work_queue.end_waiting([make(3).run_id], State.FINISHED)
    assert work_queue.cancel(make(i).run_id for i in (1, 2, 3, 4)) == 2
    assert [row.state for row in work_queue.status()] == [State.CANCELLED, State.RUNNING, State.FINISHED]
    assert work_queue.in_state(State.RUNNING, request="cancel") == [make(2).run_id]
    assert not work_queue.claim(make(1).run_id, 1, "cpu:0", "cpu")


def test_retry_is_for_the_failed_and_cancelled(work_queue):
    work_queue.enqueue([make(1), make(2), make(3)])
    work_queue.end_waiting([make(1).run_id], State.FAILED, "it broke", "bug")
    work_queue.end_waiting([make(2).run_id], State.FINISHED)
    assert work_queue.retry(make(i).run_id for i in (1, 2, 3)) == 1
    rows = {int(row.run_id, 16): row for row in work_queue.status()}
    assert [rows[i].state for i in (1, 2, 3)] == [State.WAITING, State.FINISHED, State.WAITING]
    assert rows[1].error == rows[1].error_class == ""


def test_a_late_ending_of_an_old_attempt_changes_nothing(work_queue):
    work_queue.enqueue([make(1)])
    work_queue.claim(make(1).run_id, 1, "cpu:0", "cpu")
    work_queue.end(make(1).run_id, 1, Ending(State.WAITING, Outcome.KILLED))
    work_queue.claim(make(1).run_id, 2, "cpu:0", "cpu")
    work_queue.end(make(1).run_id, 1, Ending(State.FAILED, Outcome.BUG))
    assert work_queue.status()[0].state is State.RUNNING


def test_history_and_progress(work_queue):
    run_id = make(1).run_id
    work_queue.enqueue([make(1)])
    work_queue.claim(run_id, 1, "cpu:1", "cpu")
    work_queue.started(run_id, 1, {"pid": 7}, {"threads": 2}, 0)
    work_queue.progress([(run_id, 4, "training", 9.5)])
    assert (work_queue.status()[0].step, work_queue.status()[0].doing) == (4, "training")
    assert work_queue.job(run_id).ref == {"pid": 7} and work_queue.job(run_id).pinned == {"threads": 2}
    work_queue.end(run_id, 1, Ending(State.WAITING, Outcome.KILLED, detail="goes on", best=4, stalls=1), (0, 5))
    attempt = work_queue.history(run_id)[0]
    assert (attempt["slot"], attempt["outcome"], attempt["first_step"], attempt["last_step"]) == (
        "cpu:1",
        "killed",
        0,
        5,
    )
    assert work_queue.status()[0].doing == "goes on"
    assert work_queue.counts()[State.WAITING] == 1


def test_others_see_a_change_by_the_data_version(work_queue):
    before = work_queue.data_version()
    assert work_queue.data_version() == before
    Queue(work_queue.path).enqueue([make(1)])
    assert work_queue.data_version() != before


@pytest.mark.slow
def test_a_thousand_operations_a_second_and_status_of_ten_thousand_in_a_second(work_queue):
    began = time.process_time()
    work_queue.enqueue(make(i, members=(Member("s", "demo", "builtin", str(i)),)) for i in range(10_000))
    assert time.process_time() - began < 5
    began = time.process_time()
    for i in range(500):
        work_queue.claim(f"{i:016x}", 1, "cpu:0", "cpu")
        work_queue.end(f"{i:016x}", 1, Ending(State.FINISHED, Outcome.FINISHED))
    assert time.process_time() - began < 1
    began = time.process_time()
    assert len(work_queue.status()) == 10_000
    assert time.process_time() - began < 1


def as_of_0_1_0(queue):
    """Write the entries of a queue as version 0.1.0 did, signed; its version was 9."""
    for run_id, text in queue._db.execute("SELECT run_id, spec FROM jobs").fetchall():
        job = job_from(text, run_id)
        spec, values = job.spec.to_json(), job.to_json()
        evaluations = [{**item, **({"renew": job.renew[item["eval_id"]]} if item["eval_id"] in job.renew else {})}
                       for item in values["evaluations"]]  # fmt: skip
        read_by = [{name: item[name] for name in ("set", "settings", "inputs")} for item in values["read_by"]]
        alike = {name: spec[name] for name in ("inputs", "steps", "num_params", "cost", "folder", "python")}
        old = {
            "run_id": run_id, "task": job.spec.task, "config": spec["config"], "seed": job.spec.seed, **alike,
            **{name: value for name, value in values.items() if name not in ("spec", "renew")},
            "evaluations": evaluations, "read_by": read_by, "after": job.spec.reads,
        }  # fmt: skip
        written = to_text(old)
        queue._db.execute("UPDATE jobs SET spec=?, signature=? WHERE run_id=?", (written, trust.sign(written), run_id))
    queue._db.execute("PRAGMA user_version=9")


@pytest.mark.parametrize("create", [True, False])
def test_a_queue_of_version_0_1_0_keeps_its_entries(tmp_path, create):
    member = Member("table3", "demo", "builtin", "A-h16", "A")
    asked = (evaluation("e1"), evaluation("e2"))
    jobs = [
        make(1, evaluations=asked, renew={"e2": 3}, members=(member,), steps=7, cost=2.0, folder="/srv", rerun_after=1),
        make(2, inputs=with_members({"corpus": "c"}, [make(1).run_id]), keeps=(Keep(SPACED, 10, 2),), seed=4),
        make(3, read_by=(EvaluationSpec("dev", {}, {}),), read_at=(5,), continues=("c",)),
    ]
    with Queue(tmp_path / "queue.db") as queue:
        queue.enqueue(jobs)
        expected = queue.status()
        as_of_0_1_0(queue)
    before = (tmp_path / "queue.db").read_bytes()
    with Queue(tmp_path / "queue.db", create=create) as queue:
        assert queue.status() == expected
        for job in jobs:
            claimed = queue.job(job.run_id)
            assert claimed.job == job and claimed.signed
    assert ((tmp_path / "queue.db").read_bytes() == before) == (not create), "readers write nothing"


def test_a_waiting_job_of_a_command_of_version_0_1_0_has_the_name_that_its_child_expects(tmp_path):
    """It was named by all its settings, also by the facts of its trainer among them, and did not say so."""
    patterns, command = [["test", "acc", "acc=(.*)", "last"]], "python train.py {lr}"
    named = {"command": command, "lr": 0.1, "output_patterns": patterns, "code_tree": "a" * 40}
    beside = {"output_progress": "step (.*)", "folder_links": ["data"], "code_lines": 3}
    run_id = identity_of("command", 2, named, {"text": "t"})
    with Queue(tmp_path / "queue.db") as queue:
        queue.enqueue(
            [made_job(run_id, "command", {**named, **beside}, seed=2, inputs={"text": "t"}, folder=str(tmp_path))]
        )
        as_of_0_1_0(queue)
    with Queue(tmp_path / "queue.db") as queue:
        spec = queue.job(run_id).job.spec
    facts = TrainerSpec(command, (tuple(patterns[0]),), "step (.*)", ("data",), tree="a" * 40, lines=3)
    assert (spec.config, spec.trainer) == ({"task": "command", "seed": 2, "lr": 0.1}, facts)
    config = validated(task_of(spec), spec)
    _check_identities(AttemptSpec(spec, str(tmp_path), 1, DeviceSpec()), config)
    with pytest.raises(Damaged, match="not the settings of this name"):
        other = replace(spec, config={**spec.config, "lr": 0.2})
        _check_identities(AttemptSpec(other, str(tmp_path), 1, DeviceSpec()), config)


def test_a_queue_of_version_0_1_0_stays_as_it_is_while_another_coordinator_works(tmp_path):
    with Queue(tmp_path / "queue.db") as queue:
        queue.enqueue([make(1)])
        as_of_0_1_0(queue)
    before = (tmp_path / "queue.db").read_bytes()
    lock = tmp_path / locks.FILE
    with locks.hold([tmp_path]):
        mine = lock.read_text()
        lock.write_text(f"process 1 on node7\n{json.dumps({'pid': 1, 'host': 'node7'})}\n")
        with pytest.raises(UserError, match=r"of version 0\.1\.0, and process 1 on node7 works on it"):
            Queue(tmp_path / "queue.db")
        assert (tmp_path / "queue.db").read_bytes() == before
        assert len(Queue(tmp_path / "queue.db", create=False).status()) == 1
        lock.write_text(mine)
        assert Queue(tmp_path / "queue.db").job(make(1).run_id).job == make(1)


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

    @pytest.mark.parametrize("other", [-2, 1])
    def test_another_schema(self, tmp_path, other):
        queue = Queue(tmp_path / "queue.db")
        queue._db.execute(f"PRAGMA user_version={queue_file.VERSION + other}")
        queue.close()
        before = (tmp_path / "queue.db").read_bytes()
        for create in (False, True):
            with pytest.raises(UserError, match="another version of this program"):
                Queue(tmp_path / "queue.db", create=create)
        assert (tmp_path / "queue.db").read_bytes() == before

    def test_no_folder(self, tmp_path):
        with pytest.raises(UserError, match="cannot be opened"):
            Queue(tmp_path / "missing" / "queue.db")

    def test_a_full_disk_is_said_and_the_queue_survives(self, work_queue):
        work_queue.enqueue([make(1)])
        pages = work_queue._db.execute("PRAGMA page_count").fetchone()[0]
        work_queue._db.execute(f"PRAGMA max_page_count={pages}")  # SQLite's own way to run out of space
        with pytest.raises(UserError, match="no space left"):
            work_queue.enqueue(make(i) for i in range(1000))
        work_queue._db.execute("PRAGMA max_page_count=1000000")
        assert [row.run_id for row in work_queue.status()] == [make(1).run_id]

    def test_a_read_only_file_can_be_looked_at_but_not_changed(self, work_queue):
        work_queue.enqueue([make(1)])
        work_queue._db.execute("PRAGMA query_only=1")
        assert len(work_queue.status()) == 1
        with pytest.raises(UserError, match="cannot be written"):
            work_queue.enqueue([make(2)])

    def test_a_read_only_folder_can_be_looked_at(self, tmp_path, monkeypatch):
        Queue(tmp_path / "queue.db").enqueue([make(1)])
        monkeypatch.setattr(os, "access", lambda *_: False)
        assert len(Queue(tmp_path / "queue.db", create=False).status()) == 1


def test_a_queue_that_another_process_makes_at_the_same_moment_is_used(tmp_path, monkeypatch):
    """The database is created under another name, so no process sees it incomplete.

    An existing one keeps its journal mode.
    """
    path, make_it = tmp_path / "queue.db", queue_file._make

    def later(path):
        Queue(path).enqueue([make(7)])
        assert path.stat().st_size > 0
        make_it(path)

    monkeypatch.setattr(queue_file, "_make", lambda path: (monkeypatch.undo(), later(path)))
    queue = Queue(path)
    assert [row.run_id for row in queue.status()] == [make(7).run_id]
    queue.close()
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def spoil(work_queue, number, **values):
    """Write values into a job's entry as a damaged file would have them."""
    for name, value in values.items():
        work_queue._db.execute(f"UPDATE jobs SET {name}=? WHERE run_id=?", (value, make(number).run_id))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", "one"),
        ("cost", "x"),
        ("step", "x"),
        ("started", b"x"),
        ("state", "asleep"),
        ("error", b"\xff"),
    ],
)
def test_an_entry_of_wrong_types_is_damaged_and_names_the_field(work_queue, name, value):
    work_queue.enqueue([make(1)])
    assert len(work_queue.status()) == 1
    spoil(work_queue, 1, **{name: value})
    with pytest.raises(Damaged, match=rf"\({name} of an entry\)"):
        work_queue.status()


@pytest.mark.parametrize("name", ["best", "stalls", "alone", "hangs"])
def test_numbers_of_attempts_that_are_none_are_damage(work_queue, name):
    work_queue.enqueue([make(1)])
    spoil(work_queue, 1, **{name: "many"})
    with pytest.raises(Damaged, match="is not a number"):
        work_queue.job(make(1).run_id)


def test_a_job_that_is_not_there_and_one_whose_last_attempt_is_missing(work_queue):
    with pytest.raises(KeyError):
        work_queue.job(make(1).run_id)
    work_queue.enqueue([make(1)])
    assert (work_queue.job(make(1).run_id).attempt, work_queue.job(make(1).run_id).ref) == (0, None)
    work_queue.claim(make(1).run_id, 1, "cpu:0", "cpu")
    work_queue._db.execute("DELETE FROM attempts")
    with pytest.raises(Damaged, match="its last attempt is missing"):
        work_queue.job(make(1).run_id)


def test_a_damaged_entry_is_written_again_unless_it_runs(work_queue):
    work_queue.enqueue([make(1, seed=1)])
    for name, value in (("spec", "{"), ("pinned", "["), ("state", "asleep")):
        spoil(work_queue, 1, **{name: value})
        assert work_queue.enqueue([make(1, seed=2)]) == 1
        assert work_queue.job(make(1).run_id).job.spec.seed == 2 and work_queue.status()[0].state is State.WAITING
    work_queue.claim(make(1).run_id, 1, "cpu:0", "cpu")
    spoil(work_queue, 1, spec="{")
    with pytest.raises(Damaged):
        work_queue.enqueue([make(1)])


def test_speed_is_cost_by_second_of_runs_that_finished_at_once(work_queue):
    assert work_queue.speed() is None
    spans = [(1, 6.0, 1, State.FINISHED, 2.0), (2, 4.0, 1, State.FINISHED, 3.0), (3, 9.0, 2, State.FINISHED, 1.0),
             (4, 9.0, 1, State.FAILED, 1.0), (5, 0.0, 1, State.FINISHED, 50.0)]  # fmt: skip
    for number, cost, attempt, state, seconds in spans:
        work_queue.enqueue([make(number, cost=cost)])
        work_queue.claim(make(number).run_id, attempt, "cpu:0", "cpu")
        work_queue.end(make(number).run_id, attempt, Ending(state, Outcome.FINISHED))
        work_queue._db.execute(
            "UPDATE attempts SET started=100, ended=? WHERE run_id=?", (100 + seconds, make(number).run_id)
        )
    assert work_queue.speed() == pytest.approx((6.0 + 4.0) / (2.0 + 3.0))
    work_queue._db.execute("UPDATE attempts SET ended=90")  # a clock that went back
    assert work_queue.speed() is None


def test_the_time_left_is_that_of_the_longest_first_on_as_many_slots_as_run(work_queue):
    assert left_s(work_queue) is None and left_s(work_queue, 2.0) is None  # nothing to do
    work_queue.enqueue([make(number, cost=cost) for number, cost in ((1, 1.0), (2, 8.0), (3, 6.0), (4, 4.0))])
    assert left_s(work_queue) is None  # the speed is not known
    assert left_s(work_queue, 2.0) == pytest.approx(19.0 / 2)
    work_queue.hold(make(1).run_id, "why")
    assert left_s(work_queue, 2.0) == pytest.approx(9.0)
    for number in (2, 3):
        work_queue.claim(make(number).run_id, 1, f"cpu:{number}", "cpu")
    # Nothing is known of the two that run: 4.0 of cost on a free slot.
    assert left_s(work_queue, 2.0) == pytest.approx(2.0)
    spoil(work_queue, 2, left_s=10.0)
    spoil(work_queue, 3, left_s=1.0)
    assert sorted(work_queue.running_left()) == [1.0, 10.0] and work_queue.waiting_costs() == [4.0]
    assert left_s(work_queue, 2.0) == pytest.approx(10.0) and left_s(work_queue, 0.25) == pytest.approx(1.0 + 16.0)
    work_queue.end_waiting([make(4).run_id], State.FINISHED)
    assert left_s(work_queue) == pytest.approx(10.0)  # running ones need no speed


def test_runs_without_a_predicted_cost_take_the_usual_time_of_the_finished_ones(work_queue):
    work_queue.enqueue([make(number, cost=0.0) for number in range(1, 6)])
    assert left_s(work_queue) is None and left_s(work_queue, 2.0) is None
    for number, seconds in ((1, 4.0), (2, 6.0)):
        work_queue.claim(make(number).run_id, 1, "cpu:0", "cpu")
        work_queue.end(make(number).run_id, 1, Ending(State.FINISHED, Outcome.FINISHED))
        work_queue._db.execute(
            "UPDATE attempts SET started=100, ended=? WHERE run_id=?", (100 + seconds, make(number).run_id)
        )
    assert work_queue.usual_s() == 5.0 and left_s(work_queue) == pytest.approx(15.0)
    placement = SimpleNamespace(queue=work_queue)  # a budget counts the same prediction
    assert Placement._predicted_s(placement, work_queue.job(make(3).run_id)) == 5.0
    work_queue.claim(make(3).run_id, 1, "cpu:1", "cpu")
    assert left_s(work_queue) == pytest.approx(15.0, abs=1.0)  # the running one, then the two that wait
    spoil(work_queue, 3, left_s=60.0)  # it prints its steps
    assert left_s(work_queue) == pytest.approx(70.0)
    work_queue.enqueue([make(6, cost=3.0)])
    assert left_s(work_queue) is None and left_s(work_queue, 1.0) == pytest.approx(73.0)


def test_what_is_wanted_of_devices_and_which_tasks(work_queue):
    assert work_queue.devices_wanted() == 0 and work_queue.tasks_wanted() == []
    work_queue.enqueue([make(1, devices=3), make(2), make(3, devices=2), make(4)])
    work_queue.claim(make(1).run_id, 1, "cpu:0", "cpu")
    work_queue.end_waiting([make(4).run_id], State.FINISHED)
    assert work_queue.devices_wanted() == 3 + 1 + 2
    spoil(work_queue, 2, spec="{")
    assert sorted(work_queue.tasks_wanted()) == ["", "stub"]


def test_what_failed_asked_for_is_known_but_for_damaged_entries(work_queue):
    work_queue.enqueue([make(1, evaluations=(evaluation("e1"), evaluation("e2"))), make(2), make(3)])
    work_queue.end_waiting([make(1).run_id, make(2).run_id], State.FAILED)
    spoil(work_queue, 2, spec="{")
    assert work_queue.asked_of_failed() == {make(1).run_id: {"e1", "e2"}}


def test_a_forgotten_run_leaves_nothing_unless_it_runs(work_queue):
    here = Member("one", "demo", "builtin", "base")
    work_queue.enqueue([make(1, members=(here,)), make(2, members=(here,))])
    for number in (1, 2):
        work_queue.claim(make(number).run_id, 1, "cpu:0", "cpu")
    work_queue.end(make(1).run_id, 1, Ending(State.FAILED, Outcome.BUG))
    work_queue.forget([make(1).run_id, make(2).run_id, make(3).run_id])
    assert [row.run_id for row in work_queue.status()] == [make(2).run_id]
    assert work_queue.members() == {make(2).run_id: (here,)}
    assert work_queue.history(make(1).run_id) == [] and len(work_queue.history(make(2).run_id)) == 1


def test_of_damaged_lines_those_notes_are_read_that_are_whole(work_queue):
    work_queue.enqueue([make(1)])
    work_queue.claim(make(1).run_id, 1, "cpu:0", "cpu")
    assert work_queue.damaged_lines() == {}
    work_queue.events_read(make(1).run_id, 1, "120-77", 3)
    assert work_queue.damaged_lines() == {(make(1).run_id, 1): ("120-77", 3)}
    work_queue._db.execute("UPDATE attempts SET events='120-77'")
    assert work_queue.damaged_lines() == {}


class TestMemoryOnAGpu:
    """The resources that one run used are the prediction for the study's other runs if the task predicts none."""

    def memory(self, work_queue):
        return {int(job.run_id, 16): job.gpu_memory_gb for job in work_queue.waiting(9)}

    def member(self, study):
        return (Member(study, "p", "c", "row"),)

    def test_of_a_study_the_largest_counts(self, work_queue):
        mine, theirs = self.member("mine"), self.member("theirs")
        predicted = make(3, members=mine, gpu_memory_gb=2.0)
        jobs = [make(1, members=mine), make(2, members=mine), predicted, make(4, members=theirs)]
        work_queue.enqueue(jobs)
        work_queue.claim(jobs[0].run_id, 1, "cuda:0", "cuda")
        work_queue.end(jobs[0].run_id, 1, Ending(State.FINISHED, Outcome.FINISHED))
        work_queue.learn_gpu_memory(jobs[0], 7.0)
        work_queue.learn_gpu_memory(jobs[0], 5.0)
        assert self.memory(work_queue) == {2: 7.0, 3: 2.0, 4: 0.0}
        work_queue.enqueue([make(2, members=mine), make(5, members=mine), make(6, members=theirs)])
        assert self.memory(work_queue) == {2: 7.0, 3: 2.0, 4: 0.0, 5: 7.0, 6: 0.0}
        assert work_queue.measured_gpu_gb("another task", "mine") == 0.0

    def test_a_run_that_only_evaluates_has_the_steps_of_its_training(self, work_queue):
        work_queue.enqueue([make(1, train=False, steps=10), make(2, steps=20), make(3)])
        assert {int(job.run_id, 16): job.steps for job in work_queue.waiting(9)} == {1: 10, 2: 20, 3: None}


def test_a_job_with_a_setting_of_another_version_is_refused_with_what_to_do():
    """Version 0.1.0 queued evaluations in int8."""
    job = made_job(f"{1:016x}", "translation", {"evaluation": {"precision": "int8"}})
    with pytest.raises(UserError, match=rf"run {job.run_id} .*evaluation\.precision: .*ablations cancel {job.run_id}"):
        validated(load_task("translation"), job.spec)


def test_two_requests_for_one_run_are_one_job_with_the_needs_of_both():
    dev, test, again = evaluation("d" * 16), evaluation("e" * 16, "test"), replace(evaluation("d" * 16), set="again")
    members = [Member("study", "demo", "builtin", row) for row in ("base", "wide")]
    old = made_job(
        "a" * 16, train=True, evaluations=(dev,), renew={"x": 1}, read_by=(dev,), read_at=(5, 9), priority=3, turn=4,
        rerun_after=2, members=(members[0],),
    )  # fmt: skip
    new = made_job(
        "a" * 16, train=False, evaluations=(again, test), renew={"y": 2}, read_by=(dev, test), read_at=(3, 9),
        priority=1, turn=7, rerun_after=1, members=(members[1], members[0]),
    )  # fmt: skip
    both = merge(old, new)
    assert both.train and both.evaluations == (dev, test) and both.renew == {"x": 1, "y": 2}
    assert both.read_by == (dev, test) and both.read_at == (3, 5, 9)
    assert (both.priority, both.turn, both.rerun_after) == (3, 4, 2) == (
        merge(new, old).priority, merge(new, old).turn, merge(new, old).rerun_after,
    )  # fmt: skip
    assert both.members == (members[0], members[1])
    assert merge(old, replace(new, renew={"d" * 16: 3})).evaluations == (again, test), "a renewed evaluation replaces"
    assert not merge(replace(old, train=False), new).train
