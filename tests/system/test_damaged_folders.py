"""Errors in one run's folder affect only that run: the coordinator continues, and every command works."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest
from typer.testing import CliRunner

from ablations.cli.main import app
from experiments.jobs.devices.slots import Slot
from experiments.jobs.queue.job import State
from experiments.store.checksummed import read_json
from experiments.store.layout import Store

from .stub_store import EVALUATION, ROOT, assert_whole, go, make, row, wait_for

DEEP = b'{"a":' * 5000 + b"1" + b"}" * 5000
NO_RECORDS = {
    "a list": b"[]", "torn": b'{"attempt": 1, "ste', "text": b'{"attempt": "x"}', "null": b'{"attempt": null}',
    "huge": b'{"attempt": 1' + b"0" * 400 + b"}", "deep": DEEP, "no text": b"\xff\xfe\x00", "empty": b"",
    "nothing": b"{}", "endless": b'{"attempt": 1' + b"0" * 5000 + b"}",
}  # fmt: skip


def spoil(path, what, aside):
    """Replace a file or folder. A folder is moved to `aside`, because a child may still write into it."""
    if path.is_dir():
        path.rename(aside)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.mkdir() if what is None else path.write_bytes(what)


FILES = ["result.json", "attempts/0001/result.json", "attempts/0001/spec.json", f"evaluations/{EVALUATION}/result.json"]
FAULTS = {f"{name} {how}": (name, what) for name in FILES for how, what in NO_RECORDS.items()}
FAULTS |= {f"{name} a folder": (name, None) for name in [*FILES, "attempts/0001/events.jsonl", "attempts/0001/log.txt"]}
FAULTS |= {
    "attempts a file": ("attempts", b""),
    "evaluations a file": ("evaluations", b""),
    "the attempt's evaluations a file": ("attempts/0001/evaluations", b""),
    "an evaluation a file": (f"evaluations/{EVALUATION}", b""),
    "an evaluation of another name": ("evaluations/../x/result.json", b"{}"),
    "an evaluation that is no identity": ("attempts/0001/evaluations/zzz/result.json", b"{}"),
    "events of rubbish": ("attempts/0001/events.jsonl", b"rubbish\n" * 1000),
    "events without an end": ("attempts/0001/events.jsonl", b"x" * (9 << 20)),
    "an attempt beyond all": ("attempts/99999999999999999999999999/result.json", b"{}"),
    "an attempt of other digits": ("attempts/1²/result.json", b"{}"),
}
GOOD = 1000
MANY = [Slot(f"cpu:{number}", "cpu", 1) for number in range(len(FAULTS))]


def home(store, number):
    return store.run_folder(f"{number:016x}")


def damage_all(store):
    for number, (name, what) in enumerate(FAULTS.values()):
        spoil(home(store, number) / name, what, aside=store.root.parent / f"aside-{number}")


def check(store):
    """Check that the good run is complete, and that each other run is complete or failed with a reason."""
    assert_whole(store, GOOD)
    for number, fault in enumerate(FAULTS):
        ended = row(store, number)
        assert ended.state in (State.FINISHED, State.FAILED), fault
        if ended.state is State.FAILED:
            assert ended.error and "Traceback" not in ended.error, fault
    failed = sum(row(store, number).state is State.FAILED for number in range(len(FAULTS)))
    assert 0 < failed < len(FAULTS)
    for command in (
        ["status"],
        ["status", "--json"],
        ["ui", "--rebuild", "mlflow"],
        ["forget", "--checkpoints", "--yes"],
    ):
        done = CliRunner().invoke(app, [*command, "--store", str(store.root)])
        assert done.exit_code == 0, (command, done.output, done.exception)
    for number, fault in enumerate(FAULTS):
        done = CliRunner().invoke(app, ["log", f"{number:016x}", "--store", str(store.root)])
        assert done.exit_code == 0, (fault, done.output, done.exception)


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store")


@pytest.mark.nightly
def test_damaged_before_more_is_asked_of_them(store):
    go(store, *(make(number, evaluate=False) for number in range(len(FAULTS))))
    damage_all(store)
    go(store, make(GOOD), *(make(number) for number in range(len(FAULTS))))
    check(store)


@pytest.mark.nightly
def test_damaged_while_their_coordinator_is_gone(store):
    """The next coordinator adopts the attempts whose folders were damaged."""
    code = textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(ROOT)!r})
        from experiments.store.layout import Store
        from tests.system.stub_store import go, make
        from tests.system.test_damaged_folders import FAULTS, MANY
        go(Store.open(sys.argv[1]), *(make(n, steps=400, step_s=0.03) for n in range(len(FAULTS))), slots=MANY)
    """)
    process = subprocess.Popen([sys.executable, "-c", code, str(store.root)], start_new_session=True)
    wait_for(lambda: len(list(store.runs.glob("*/attempts/0001/checkpoint.json"))) == len(FAULTS))
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    damage_all(store)
    for number in range(len(FAULTS)):  # so that the runs end soon
        path = home(store, number) / "attempts/0001/checkpoint.json"
        if path.is_file() and read_json(path):
            path.unlink()
    go(store, make(GOOD), slots=MANY)
    check(store)
