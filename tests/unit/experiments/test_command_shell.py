"""A command as a process: it does not outlive the one that ran it, and is asked to end like it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from experiments.errors import Preempted
from experiments.tasks.shell import run_command

RUNNER = """
import sys
from pathlib import Path
from types import SimpleNamespace
from experiments.tasks.shell import run_command
run_command(sys.argv[1], {"seed": 1}, Path.cwd(), SimpleNamespace(should_stop=lambda: False))
"""


def wait_for(path: Path) -> list[int]:
    until = time.monotonic() + 60
    while not (path.exists() and path.read_text().endswith("\n")):
        assert time.monotonic() < until
        time.sleep(0.02)
    return [int(word) for word in path.read_text().split()]


def test_killed_with_the_process_that_ran_it(tmp_path: Path) -> None:
    """Also what the shell has started: a trainer that prints nothing would never notice."""
    command = f"sleep 300 & echo $$ $! > {tmp_path / 'pids'}; wait"
    runner = subprocess.Popen([sys.executable, "-c", RUNNER, command])
    pids = wait_for(tmp_path / "pids")
    os.kill(runner.pid, signal.SIGKILL)
    runner.wait()
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=60)
    assert not alive


class Asked:
    """A context that asks the command to end once it has begun."""

    def __init__(self, begun: Path) -> None:
        self._begun = begun

    def should_stop(self) -> bool:
        return self._begun.exists()


def test_the_whole_command_is_asked_to_end(tmp_path: Path) -> None:
    """SIGTERM reaches the trainer, and not only the shell around it."""
    trainer = f"import time; open({str(tmp_path / 'begun')!r}, 'w').close(); time.sleep(300)"
    command = f'"{sys.executable}" -c "{trainer}"; exit 3'
    with pytest.raises(Preempted):
        run_command(command, {"seed": 1}, tmp_path, Asked(tmp_path / "begun"))  # type: ignore[arg-type]


def test_what_the_command_leaves_behind_when_it_ends_well_is_its_own_business(tmp_path: Path) -> None:
    command = f"sleep 300 > /dev/null & echo $! > {tmp_path / 'pid'}; echo done"
    ended = run_command(command, {"seed": 1}, tmp_path, Asked(tmp_path / "never"))  # type: ignore[arg-type]
    assert ended.lines == ("done",)
    left = psutil.Process(wait_for(tmp_path / "pid")[0])
    assert left.is_running()
    left.kill()
