"""The fixture `cli` and shared fork servers: their processes do what those do that start from nothing."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from experiments.jobs.engines import local
from tests import warm_torch

from .conftest import TINY, as_json, environment
from .warm_command import WarmCommands

CHILD = """
import json, os, sys
own = {name: value for name, value in os.environ.items() if name != "WHERE"}
found = {"torch": "torch" in sys.modules, "cwd": os.getcwd(), "path": sys.path, "environment": own,
         "session": os.getsid(0) == os.getpid(), "argv": sys.argv, "standard": [os.path.realpath("/proc/self/fd/1")]}
open(os.environ["WHERE"], "w").write(json.dumps(found))
sys.exit(7)
"""


@pytest.fixture(scope="module")
def warm():
    found = WarmCommands(environment())
    yield found
    found.close()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["plan", "here.toml", "--json"], 0),  # a path from the working directory
        (["report", "here.toml"], 2),  # no store: its place is in a variable
        (["plan", "there.toml"], 2),
        (["--version"], 0),
    ],
)
def test_output_and_exit_code_are_those_of_a_start_from_nothing(warm, tmp_path: Path, words: list[str], code: int):
    (tmp_path / "here.toml").write_text(TINY)
    variables = environment() | {"ABLATIONS_STORE": str(tmp_path / "of the environment")}
    ours = warm.run(words, variables, tmp_path, 240)
    cold = [sys.executable, "-m", "ablations.cli.main", *words]
    theirs = subprocess.run(cold, capture_output=True, text=True, env=variables, cwd=tmp_path, check=False)
    assert (ours.returncode, ours.stdout, ours.stderr) == (theirs.returncode, theirs.stdout, theirs.stderr)
    assert ours.returncode == code and ours.stdout + ours.stderr


def test_two_calls_share_nothing(warm, tmp_path: Path):
    """What a call has read, its directory and its environment end with it."""
    planned = []
    for steps in (6, 8):
        folder = tmp_path / str(steps)
        folder.mkdir()
        (folder / "here.toml").write_text(TINY.replace("train_steps = 6", f"train_steps = {steps}"))
        planned.append(as_json(warm.run(["plan", "here.toml", "--json"], environment(), folder, 240))[0]["run_id"])
    assert planned[0] != planned[1]


def test_variables_that_are_read_at_import_need_a_start_from_nothing(warm):
    assert warm.can_run(environment() | {"TMPDIR": "/", "WANDB_MODE": "offline"})
    assert not warm.can_run(environment() | {"PYTHONPATH": "/elsewhere"})
    assert not warm.can_run(environment() | {"LD_PRELOAD": ""})


def test_a_fork_server_of_the_sessions_is_one_with_torch_its_own_environment_and_its_own_end(tmp_path, monkeypatch):
    """A child finds what it finds below a server that was started from nothing."""
    script, found = tmp_path / "child.py", {}
    script.write_text(CHILD)
    monkeypatch.chdir(tmp_path)
    for name in ("forked", "started"):
        if name == "started":
            monkeypatch.delenv(warm_torch.ADDRESS)
        server = local.ForkServer(local.PRELOAD)
        assert isinstance(server._process, warm_torch._Forked) == (name == "forked")
        variables = {**os.environ, "OF_THIS_TEST": "1", "WHERE": str(tmp_path / name)}
        variables.pop(warm_torch.ADDRESS, None)
        pid = server.fork([str(script)], variables, tmp_path / "log.txt")
        assert pid
        until = time.monotonic() + 60
        while not server.has_ended(pid):
            assert time.monotonic() < until
            server.wait(1.0)
        assert server.exit_code(pid) == 7, (tmp_path / "log.txt").read_text()
        found[name] = json.loads((tmp_path / name).read_text())
        process = psutil.Process(server._process.pid)
        server.close()
        assert not process.is_running() or process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    assert found["forked"] == found["started"] and found["forked"]["torch"]


def test_a_fork_server_that_needs_another_interpreter_is_started_from_nothing(monkeypatch):
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    with contextlib.closing(local.ForkServer(local.PRELOAD)) as server:
        assert isinstance(server._process, subprocess.Popen)
