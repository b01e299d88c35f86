"""Tests of commands that read the queue or request changes, without a coordinator."""

import contextlib
import json
import os
import socket
import sqlite3
import threading
import time

import pytest
import typer
from typer.testing import CliRunner

from ablations.cli.main import app
from ablations.cli.run import _exit_if_bad
from experiments.errors import UserError
from experiments.events.event_log import EventWriter
from experiments.jobs.coordinator.reporter import Summary
from experiments.jobs.queue.job import Ending, Member, Outcome, State
from experiments.jobs.queue.queue_connection import SHARING
from experiments.jobs.queue.work_queue import WorkQueue
from experiments.processes.process_identity import identify
from experiments.store import durable
from experiments.store.checksummed import write_json
from experiments.store.layout import Store
from experiments.store.retention import size
from tests.made_jobs import made_job


def make(number, row, **more):
    member = Member("table3", "demo", "builtin", row, row[:1])
    config = {"training": {"train_steps": 10}}
    return made_job(f"{number:04x}" * 4, "translation", config, members=(member,), cost=float(number), steps=10, **more)


@pytest.fixture
def store(tmp_path):
    """Make four runs: one waiting, one running, one failed and one finished."""
    store = Store.open(tmp_path / "store")
    work_queue = WorkQueue(store.queue_db)
    work_queue.enqueue([make(0xA1, "A-h16"), make(0xB2, "B-dk16", seed=2), make(0xC3, "C-n2"), make(0xD4, "base")])
    for number, state, error in ((0xC3, State.FAILED, "the loss of step 3 is nan"), (0xD4, State.FINISHED, "")):
        run_id = make(number, "").run_id
        attempt, folder = store.new_attempt(run_id)
        work_queue.claim(run_id, attempt, "cpu:0", "cpu")
        (folder / "log.txt").write_text("first line\nlast line\n")
        EventWriter(folder).emit("checkpoint_skipped", path="attempts/0001/checkpoints/step-4", reason="has 3 bytes")
        outcome = Outcome.DIVERGED if error else Outcome.FINISHED
        work_queue.end(run_id, attempt, Ending(state, outcome, error), (0, 3))
    work_queue.claim(make(0xB2, "").run_id, 1, "cpu:1", "cpu")
    living = {**identify(os.getpid()), "host": socket.gethostname()}
    work_queue.started(make(0xB2, "").run_id, 1, living, {}, 0)
    work_queue.progress([(make(0xB2, "").run_id, 4, "training", 12.0)])
    work_queue.close()
    return store


def call(store, *arguments, code=0, **more):
    done = CliRunner().invoke(app, [*arguments, "--store", str(store.root)], **more)
    if isinstance(done.exception, UserError):
        raise done.exception
    assert done.exit_code == code, done.output
    return done.output


def states(store):
    return {row["members"][0]["row"]: row["state"] for row in json.loads(call(store, "status", "--json"))}


def requests(store):
    work_queue = WorkQueue(store.queue_db)
    found = work_queue.in_state(State.RUNNING, request="cancel")
    work_queue.close()
    return found


def test_a_study_is_named_by_its_file_too_and_stands_before_a_row(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text('name = "table3"\ntitle = "T"\n[[variation]]\nkey = "base"\n')
    (tmp_path / "other.toml").write_text('name = "other"\ntitle = "T"\n[[variation]]\nkey = "base"\n')
    assert call(store, "log", "mine.toml", "C-n2") == call(store, "log", "table3", "C-n2") == call(store, "log", "C-n2")
    with pytest.raises(UserError, match=r"no run of the study other, but runs of table3"):
        call(store, "log", "other.toml", "C-n2")
    with pytest.raises(UserError, match="STUDY RUN"):
        call(store, "log", "table3", "C-n2", "base")
    with pytest.raises(UserError, match=r"'other\.toml' selects no run"):
        call(store, "retry", "other.toml")
    assert "C-n2" in call(store, "retry", "mine.toml") and "A-h16" in call(store, "cancel", "mine.toml")


def test_status_says_what_waits_and_why_what_runs_and_what_failed(store):
    text = call(store, "status")
    assert "1 waiting, 1 running, 1 finished, 1 failed" in text
    assert "A-h16 (seed 1): nothing is training" in text
    assert "B-dk16 seed 2" in text and "step 4/10 training" in text and "about 12 s of training left" in text
    assert "the loss of step 3 is nan" in text
    assert "base" not in text


def test_status_and_log_name_events_that_cannot_be_read(store):
    run_id = make(0xC3, "").run_id
    path = store.attempt_folder(run_id, 1) / "events.jsonl"
    assert "skipped in" not in call(store, "status") + call(store, "log", "C-n2")
    with path.open("ab") as file:
        file.write(b'{"kind": "metrics", "step": 1}\nrubbish\n')
    line = f"2 damaged lines were skipped in runs/{run_id}/attempts/0001/events.jsonl"
    assert f"table3 C-n2 seed 1 ({run_id}) attempt 1: {line}" in call(store, "status")
    assert line in call(store, "log", "C-n2")
    damaged = {row["run_id"]: row["damaged"] for row in json.loads(call(store, "status", "--json"))}
    assert damaged.pop(run_id) == [line] and not any(damaged.values())


def test_status_as_json_has_the_reason_the_time_left_and_the_log(store):
    rows = {row["members"][0]["row"]: row for row in json.loads(call(store, "status", "--json"))}
    assert "ablations work" in rows["A-h16"]["why"]
    assert rows["B-dk16"]["left_s"] == 12.0
    assert (store.root / rows["C-n2"]["log"]).read_text().endswith("last line\n")


def test_waiting_rows_are_listed_by_key_with_one_line_per_cause(store):
    work_queue = WorkQueue(store.queue_db)
    work_queue.enqueue([make(0x100 + i, f"E-{i}") for i in range(30)])
    work_queue.close()
    lines = [line for line in call(store, "status").splitlines() if line.startswith("  waiting")]
    assert len(lines) == 1 and "E-29 (seed 1), E-28 (seed 1), E-27 (seed 1)" in lines[0]
    assert "E-10 (seed 1) and 11 more rows: nothing is training; continue with `ablations work --store" in lines[0]
    with store.coordinator_lock():
        text = call(store, "status")
        assert "waits for a free slot" in text and "training in process" in text
        found = json.loads(call(store, "status", "--json"))
        assert [job["why"] for job in found if job["state"] == "waiting"][:2] == [
            "next; waits for a free slot",
            "waits for a free slot, after 1 run",
        ]


@pytest.mark.parametrize("name", ["B-dk16", "B-dk", "B-dk16:2", "00b200", make(0xB2, "").run_id])
def test_cancel_asks_for_the_run_that_is_meant(store, name):
    call(store, "cancel", name)
    assert requests(store) == [make(0xB2, "").run_id]
    assert states(store)["A-h16"] == "waiting"


def test_cancel_a_study_or_all_leaves_the_ended_alone(store):
    assert "A-h16" in call(store, "cancel", "table3")
    assert states(store) == {"A-h16": "cancelled", "B-dk16": "running", "C-n2": "failed", "base": "finished"}
    assert "nothing to cancel" in call(store, "cancel", "base")


@pytest.mark.parametrize("name", ["A-h61", "B-dk16:1", "00", "table2"])
def test_a_name_that_means_nothing_lists_what_there_is(store, name):
    with pytest.raises(UserError, match="A-h16"):
        call(store, "cancel", name)


def test_retry_takes_failed_and_cancelled_ones(store):
    call(store, "cancel", "A-h16")
    assert "A-h16" in call(store, "retry", "--rows", "A-h16") and states(store)["C-n2"] == "failed"
    call(store, "cancel", "A-h16")
    said = call(store, "retry")
    assert "all failed and cancelled runs of the store" in said and "`ablations cancel " in said
    assert "C-n2" in said and "A-h16" in said
    assert states(store)["C-n2"] == states(store)["A-h16"] == "waiting"
    assert "nothing to retry" in call(store, "retry", "base")


def test_drain_without_a_coordinator_says_so_and_leaves_no_wish(store):
    assert "nothing to drain" in call(store, "work", "--drain")
    with store.coordinator_lock():
        assert "starts no new runs" in call(store, "work", "--drain")
        assert "starts no other runs" in call(store, "status")


def test_status_says_how_many_runs_share_a_gpu_while_a_coordinator_works(store):
    with WorkQueue(store.queue_db) as queue:
        queue.note(SHARING, "cuda:0: 4 runs, at most 8 at once: 4 at once gave 1.78 × the throughput of 2")
    for words in (("status",), ("status", "table3")):
        assert "cuda:0:" not in call(store, *words), "of a coordinator that was killed"
        with store.coordinator_lock():
            assert "cuda:0: 4 runs, at most 8 at once" in call(store, *words)


@pytest.mark.parametrize("option", [["--detach"], ["--trust", "walk"], ["--devices", "cpu:1"], ["--hang-after", "5"]])
def test_drain_takes_no_option_of_a_coordinator(store, option):
    with store.coordinator_lock():
        done = CliRunner().invoke(app, ["work", "--drain", *option, "--store", str(store.root)])
        assert isinstance(done.exception, UserError) and "--drain" in str(done.exception)
        assert "starts no other runs" not in call(store, "status")


def test_drain_says_nothing_before_its_request_is_made(store):
    with store.coordinator_lock(), contextlib.closing(sqlite3.connect(store.queue_db)) as other:
        other.execute("CREATE TRIGGER full BEFORE INSERT ON notes BEGIN SELECT raise(ABORT, 'disk is full'); END")
        done = CliRunner().invoke(app, ["work", "--drain", "--store", str(store.root)])
        assert "There is no space left" in str(done.exception) and not done.output


def test_log_shows_attempts_what_explains_them_and_the_last_log(store):
    text = call(store, "log", "C-n2")
    assert "attempt 1 on cpu:0" in text and "diverged" in text
    assert "skipped the checkpoint" in text and "has 3 bytes" in text
    assert text.endswith("first line\nlast line\n")
    with pytest.raises(UserError, match="no attempt 7"):
        call(store, "log", "C-n2", "--attempt", "7")
    with pytest.raises(UserError, match="selects 4 runs"):
        call(store, "log", "table3")


def test_log_follow_ends_when_the_run_does(store, monkeypatch):
    """This also holds for a log whose middle is left out in the meantime."""
    monkeypatch.setattr("ablations.cli.status.FOLLOW_S", 0.02)
    (store.attempt_folder(make(0xB2, "").run_id, 1)).mkdir(parents=True)
    log = store.attempt_folder(make(0xB2, "").run_id, 1) / "log.txt"
    log.write_text("begun\n" * 9)

    def end():
        os.truncate(log, 6)
        time.sleep(0.2)
        log.open("a").write("done\n")
        work_queue = WorkQueue(store.queue_db)
        work_queue.end(make(0xB2, "").run_id, 1, Ending(State.FINISHED, Outcome.FINISHED))
        work_queue.close()

    threading.Timer(0.2, end).start()
    assert call(store, "log", "B-dk16", "--follow").endswith(
        "begun\n… lines in the middle of the log were removed …\ndone\n"
    )


@pytest.fixture
def checkpoints(store):
    """Make a finished run with checkpoints in two attempts, and a waiting run."""
    run_id = make(0xD4, "").run_id
    attempt, folder = store.new_attempt(run_id)
    for number in (1, attempt):
        where = store.attempt_folder(run_id, number)
        for name in ("checkpoints/step-00000004", "final"):
            (where / name).mkdir(parents=True)
            (where / name / "model.safetensors").write_bytes(b"x" * 8192)
    write_json(store.run_folder(run_id) / "result.json", {"attempt": attempt})
    waiting = store.attempt_folder(make(0xA1, "").run_id, 1) / "checkpoints" / "step-00000002"
    waiting.mkdir(parents=True)
    return folder, waiting


def test_prune_asks_first_and_keeps_what_counts(store, checkpoints):
    folder, waiting = checkpoints
    assert "nothing was removed" in call(store, "forget", "--checkpoints", input="n\n")
    assert (folder / "checkpoints").exists()
    text = call(store, "forget", "--checkpoints", "--yes")
    assert "2 folders of checkpoints" in text and "1 folder of weights" in text and "of 1 run." in text
    assert not (folder / "checkpoints").exists() and waiting.exists()
    assert (folder / "final" / "model.safetensors").exists()
    assert "nothing to remove" in call(store, "forget", "--checkpoints")


def test_a_killed_prune_is_completed_by_the_same_command(store, checkpoints, monkeypatch):
    class Killed(BaseException):
        pass

    def die(_):
        raise Killed

    folder, _ = checkpoints
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(durable, "remove_folder", die)
        call(store, "forget", "--checkpoints", "--yes")
    assert list(folder.parent.rglob(".*.partial"))
    call(store, "forget", "--checkpoints", "--yes")
    assert not list(folder.parent.rglob(".*.partial")) and (folder / "final" / "model.safetensors").exists()
    assert "nothing to remove" in call(store, "forget", "--checkpoints")


def test_prune_counts_what_is_linked_elsewhere_as_no_gain(store, checkpoints, tmp_path):
    folder, _ = checkpoints
    (tmp_path / "kept").hardlink_to(folder / "checkpoints" / "step-00000004" / "model.safetensors")
    assert size([folder / "checkpoints"]) == 0
    assert size([store.attempt_folder(make(0xD4, "").run_id, 1)]) >= 16384


def test_prune_and_rebuild_refuse_while_somebody_works(store):
    with store.coordinator_lock():
        for words in (["forget", "--checkpoints"], ["ui", "--rebuild", "mlflow"]):
            with pytest.raises(UserError, match="already worked on"):
                call(store, *words)


def test_no_store_is_said(tmp_path):
    nowhere = Store(tmp_path / "nowhere")
    reading = (
        ["status"],
        ["report", "table3"],
        ["ui"],
        ["explain", "table3", "base"],
        ["report", "table3", "--examples", "test"],
        ["retry"],
    )
    for verb in (
        *reading,
        ["evaluate", "table3"],
        ["cancel", "all"],
        ["log", "base"],
        ["forget", "--checkpoints"],
        ["ui", "--rebuild", "mlflow"],
    ):
        with pytest.raises(UserError, match=r"does not exist\. Name the store with --store"):
            call(nowhere, *verb)
    assert not nowhere.root.exists()
    (tmp_path / "other").mkdir()
    with pytest.raises(UserError, match="is not a store"):
        call(Store(tmp_path / "other"), "report", "table3")
    assert not list((tmp_path / "other").iterdir())


def test_runs_that_are_held_say_why_and_are_allowed_by_their_studys_name(store):
    work_queue = WorkQueue(store.queue_db)
    work_queue.hold(make(0xA1, "").run_id, "held: it executes the command 'x'")
    work_queue.close()
    assert "A-h16 (seed 1): held: it executes the command 'x'" in call(store, "status")
    with pytest.raises(UserError, match="this study is not queued"):
        call(store, "work", "--trust", "table9", "--devices", "cpu:1")


def test_the_first_seed_of_every_row_is_queued_before_the_second_ones(tmp_path):
    """Whatever they cost: C-N8 costs more than twice as much as C-N2, whose published change is larger."""
    store = Store.open(tmp_path / "store")
    call(store, "queue", "table3", "--rows", "C-N2,C-N8", "--seeds", "3")
    with WorkQueue(store.queue_db) as work_queue:
        order = [(job.members[0].row, job.seed) for job in work_queue.rows(State.WAITING, 10)]
    assert order == [(row, seed) for seed in (1, 2, 3) for row in ("C-N2", "C-N8")]


def test_requests_are_told_as_json(store):
    [cancelled] = json.loads(call(store, "cancel", "A-h16", "--json"))
    assert cancelled["state"] == "waiting" and states(store)["A-h16"] == "cancelled"
    assert {row["state"] for row in json.loads(call(store, "retry", "--json"))} == {"failed", "cancelled"}
    log = json.loads(call(store, "log", "C-n2", "--json"))
    assert log["state"] == "waiting" and log["attempts"][0]["outcome"] and len(log["logs"]) == len(log["attempts"])


@pytest.mark.parametrize(("left", "words"), [(1, "1 run still queued"), (2, "2 runs still queued")])
def test_what_is_left_is_counted(left, words, capsys):
    with pytest.raises(typer.Exit):
        _exit_if_bad(Summary(left=left))
    assert words in capsys.readouterr().err
