"""Commands in a queue run only for the user who queued them. Tests keys, signatures and held commands."""

import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.jobs.coordinator.work import work
from experiments.jobs.devices.slots import Slot
from experiments.jobs.engines.local import LocalEngine
from experiments.jobs.queue import trust
from experiments.jobs.queue.job import Member, State
from experiments.jobs.queue.job_json import from_text, to_text
from experiments.jobs.queue.queue import Queue
from experiments.run_spec import TrainerSpec
from experiments.store.layout import Store
from tests.made_jobs import evaluation, made_job

STUB = Path(__file__).parents[2] / "stub_child.py"
TASKS = ("command", "mine:TASK", "translation")


def make(number, task, **more):
    config = {"training": {"train_steps": 2, "tokens_per_batch": 10}, "stub": {}}
    members = (Member(f"study-{task}", "p", "c", str(number)),)
    if task == "command":
        more["trainer"] = TrainerSpec("train --lr {lr}")
    return made_job(f"{number:016x}", task, config, folder="/home/them", members=members, steps=2, **more)


@pytest.fixture
def as_user(tmp_path, monkeypatch):
    """Return a function that becomes another user with another key."""

    def become(name):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / name))

    return become


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store")


def queue_all(store, tasks=TASKS):
    queue = Queue(store.queue_db)
    queue.enqueue([make(number, task) for number, task in enumerate(tasks)])
    queue.close()


def go(store):
    return work(store, [Slot("cpu:0", "cpu", 1)], engine=LocalEngine(()), child=(sys.executable, str(STUB)))


def states(store):
    queue = Queue(store.queue_db)
    found = {row.run_id: (row.state, row.held) for row in queue.status()}
    queue.close()
    return [found[f"{number:016x}"] for number in range(len(found))]


@pytest.mark.process
def test_what_this_user_has_queued_runs_also_after_the_store_was_moved(store, as_user, tmp_path):
    as_user("me")
    queue_all(store)
    store.root.rename(tmp_path / "elsewhere")
    moved = Store.open(tmp_path / "elsewhere")
    assert go(moved).finished == 3
    assert states(moved) == [(State.FINISHED, "")] * 3


@pytest.mark.process
def test_what_another_has_queued_waits_with_the_reason_and_does_not_block(store, as_user):
    as_user("they")
    queue_all(store)
    as_user("me")
    summary = go(store)
    assert (summary.finished, summary.failed) == (1, 0)
    (command, why_command), (own, why_own), built_in = states(store)
    assert (command, own, built_in) == (State.WAITING, State.WAITING, (State.FINISHED, ""))
    assert "'train --lr {lr}' in /home/them" in why_command and "work --trust study-command" in why_command
    assert "mine:TASK from /home/them" in why_own
    assert not any(store.attempts(f"{number:016x}") for number in (0, 1))  # not even a folder
    queue = Queue(store.queue_db)
    assert [job.spec.task for job in queue.trust("study-mine:TASK")] == ["mine:TASK"]
    assert queue.trust("study-mine:TASK") == queue.trust("study-translation") == []
    queue.close()
    assert go(store).finished == 1
    assert [state for state, _ in states(store)] == [State.WAITING, State.FINISHED, State.FINISHED]
    as_user("they")
    assert go(store).finished == 1  # held for me, not for them


@pytest.mark.process
def test_asked_for_by_this_user_too_it_runs_as_this_user_asked(store, as_user):
    as_user("they")
    queue = Queue(store.queue_db)
    theirs = make(0, "command", evaluations=(evaluation("e" * 16, "theirs"),))
    queue.enqueue([theirs])
    as_user("me")
    queue.enqueue([make(0, "command")])
    claimed = queue.job("0" * 16)
    queue.close()
    assert claimed.signed and claimed.job.evaluations == ()  # nothing of theirs came to be signed
    assert go(store).finished == 1


@pytest.mark.parametrize("change", ["command", "config", "folder", "task"])
@pytest.mark.process
def test_a_job_that_was_altered_is_held(store, as_user, change):
    as_user("me")
    queue_all(store, ["command"])
    connection = sqlite3.connect(store.queue_db)
    run_id, text = connection.execute("SELECT run_id, spec FROM jobs").fetchone()
    spec = from_text(text, run_id)
    if change == "command":
        spec["spec"]["trainer"]["command"] = "touch /tmp/owned"
    elif change == "config":
        spec["spec"]["config"]["lr"] = "touch /tmp/owned"
    elif change == "task":
        spec["spec"]["config"]["task"] = "evil:TASK"
    else:
        spec["spec"]["folder"] = "/tmp/evil"
    connection.execute("UPDATE jobs SET spec=?", (to_text(spec),))
    connection.commit()
    connection.close()
    assert go(store).finished == 0
    assert states(store)[0][0] is State.WAITING and "held" in states(store)[0][1]


@pytest.mark.process
def test_retry_does_not_make_it_ones_own(store, as_user):
    as_user("they")
    queue_all(store, ["command"])
    queue = Queue(store.queue_db)
    queue.cancel(["0" * 16])
    as_user("me")
    assert queue.retry(["0" * 16]) == 1
    queue.close()
    go(store)
    assert "held" in states(store)[0][1]


@pytest.mark.process
def test_the_key_is_private_and_one_for_processes_that_start_at_once(as_user, tmp_path):
    as_user("me")
    code = "from experiments.jobs.queue import trust; print(trust.sign('x'))"
    starts = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = {start.communicate(timeout=60)[0] for start in starts}
    assert said == {trust.sign("x") + "\n"}
    key = tmp_path / "me" / "ablations" / "queue.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600 and stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    assert [path.name for path in key.parent.iterdir()] == ["queue.key"]


def test_who_comes_second_takes_the_first_ones_key(as_user, tmp_path):
    """This also holds for a process that looked for the key before it existed."""
    path = tmp_path / "queue.key"
    first = trust._make(path)
    assert trust._make(path) == first and len(first) == 32
    path.write_bytes(b"torn")
    second = trust._make(path)
    assert len(second) == 32 and second != first and path.read_bytes() == second


@pytest.mark.process
def test_without_a_place_for_a_key_one_process_still_runs_its_own(store, as_user, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    as_user("file")
    queue_all(store, ["command"])
    assert "cannot be written" in caplog.text
    assert go(store).finished == 1
    code = "from experiments.jobs.queue import trust; print(trust.sign('x'))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert other.stdout.strip() != trust.sign("x")


def test_the_interpreter_of_a_task_is_shown_and_signed(as_user):
    as_user("me")
    job = make(0, "trainer:TASK", python="../env/bin/python")
    assert trust.executes(job) == "the task trainer:TASK from /home/them with ../env/bin/python"
    text = to_text(job.to_json())
    assert trust.signed(text, trust.sign(text))
    assert not trust.signed(text.replace("../env/bin/python", "../other/python"), trust.sign(text))
