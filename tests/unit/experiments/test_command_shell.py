"""A command's process does not outlive its parent and receives requests to end."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from experiments.errors import Preempted, TrainerFailed
from experiments.tasks.own.patterns import Readings
from experiments.tasks.own.shell import run_command

NOTHING = Readings([], "", print)
RUNNER = """
import ablations  # puts the folder of model, experiments and reports on the import path
import sys
from pathlib import Path
from types import SimpleNamespace
from experiments.tasks.own.patterns import Readings
from experiments.tasks.own.shell import run_command
context = SimpleNamespace(folder=Path.cwd(), should_stop=lambda: False)
run_command(sys.argv[1], {"seed": 1}, Path.cwd(), context, Readings([], "", print))
"""


def wait_for(path: Path) -> list[int]:
    until = time.monotonic() + 60
    while not (path.exists() and path.read_text().endswith("\n")):
        assert time.monotonic() < until
        time.sleep(0.02)
    return [int(word) for word in path.read_text().split()]


def alive_after_a_while(pids: list[int]) -> list[psutil.Process]:
    """A killed process may remain in the system's list for a moment."""
    processes = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            processes.append(psutil.Process(pid))
    return psutil.wait_procs(processes, timeout=60)[1]


@pytest.mark.process
def test_killed_with_the_process_that_ran_it(tmp_path: Path) -> None:
    """Processes started by the shell end too, even a trainer that prints nothing."""
    command = f"sleep 300 & echo $$ $! > {tmp_path / 'pids'}; wait"
    runner = subprocess.Popen([sys.executable, "-c", RUNNER, command])
    pids = wait_for(tmp_path / "pids")
    os.kill(runner.pid, signal.SIGKILL)
    runner.wait()
    assert not alive_after_a_while(pids)


class Asked:
    """A context that requests the command's end once the command has started."""

    def __init__(self, begun: Path) -> None:
        self._begun, self.folder = begun, begun.parent

    def should_stop(self) -> bool:
        return self._begun.exists()


@pytest.mark.process
def test_the_whole_command_is_asked_to_end(tmp_path: Path) -> None:
    """SIGTERM reaches the trainer, not only its shell."""
    trainer = f"import time; open({str(tmp_path / 'begun')!r}, 'w').close(); time.sleep(300)"
    command = f'"{sys.executable}" -c "{trainer}"; exit 3'
    with pytest.raises(Preempted):
        run_command(command, {"seed": 1}, tmp_path, Asked(tmp_path / "begun"), NOTHING)  # type: ignore[arg-type]


LEAVING = {  # $! is what is left
    "holds its output": "sleep 300 &",
    "holds nothing": "sleep 300 > /dev/null 2>&1 &",
    "has left its session": "setsid sleep 300 &",
    "has left its session and holds nothing": "setsid sleep 300 > /dev/null 2>&1 &",
    "does not hear": "setsid sh -c 'trap \"\" TERM; sleep 300' &",
    "is an orphan": "(setsid sleep 300 & echo $! > pids) &",
}


@pytest.mark.parametrize("command", LEAVING.values(), ids=LEAVING.keys())
@pytest.mark.process
def test_what_a_command_has_started_ends_with_it(tmp_path: Path, command: str) -> None:
    command += f" echo $! > pid; while [ ! -s {'pids' if 'pids' in command else 'pid'} ]; do :; done; echo done"
    ended = run_command(command, {"seed": 1}, tmp_path, Asked(tmp_path / "never"), NOTHING)  # type: ignore[arg-type]
    assert ended.metrics is None
    left = [int(file.read_text()) for file in tmp_path.glob("pid*")]
    assert not alive_after_a_while(left)


@pytest.mark.parametrize("command", LEAVING.values(), ids=LEAVING.keys())
@pytest.mark.process
def test_what_a_command_has_started_ends_with_the_process_that_ran_it(tmp_path: Path, command: str) -> None:
    command += f" sleep 0.2; cat pids >> pid; echo $! $$ >> {tmp_path / 'pid'}; wait"
    runner = subprocess.Popen([sys.executable, "-c", RUNNER, command], cwd=tmp_path)
    pids = wait_for(tmp_path / "pid")
    os.kill(runner.pid, signal.SIGKILL)
    runner.wait()
    assert not alive_after_a_while(pids)


@pytest.mark.process
def test_what_a_command_has_started_is_asked_to_end_with_it(tmp_path: Path) -> None:
    """A process that has left the session and holds the output does not delay the end of a stopped run."""
    command = f"setsid sleep 900 & echo $! > {tmp_path / 'begun'}; sleep 900"
    began = time.monotonic()
    with pytest.raises(Preempted):
        run_command(command, {"seed": 1}, tmp_path, Asked(tmp_path / "begun"), NOTHING)  # type: ignore[arg-type]
    assert time.monotonic() - began < 600
    assert not alive_after_a_while([int((tmp_path / "begun").read_text())])


@pytest.mark.parametrize(
    ("command", "how"), [("exit 7", "exit code 7"), ("kill -9 $$", "signal 9"), ("kill $$", "signal 15")]
)
@pytest.mark.process
def test_a_command_that_fails_is_told_as_it_ended(tmp_path: Path, command: str, how: str) -> None:
    with pytest.raises(TrainerFailed, match=f"ended with {how}"):
        run_command(command, {"seed": 1}, tmp_path, Asked(tmp_path / "never"), NOTHING)  # type: ignore[arg-type]


@pytest.mark.process
def test_a_failure_names_the_command_as_it_was_run_and_has_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv[1:])\n{}['rate']\n")
    command = f"{sys.executable} train.py --name {{name}} {{bn:--no-bn}} --seed {{seed}}"
    values = {"seed": 1, "name": "two words", "bn": False}
    with pytest.raises(TrainerFailed) as failed:
        run_command(command, values, tmp_path, Asked(tmp_path / "never"), NOTHING)  # type: ignore[arg-type]
    assert "exit code 1" in str(failed.value) and "train.py --name 'two words' --no-bn --seed 1" in str(failed.value)
    assert failed.value.traceback.startswith("Traceback") and "KeyError: 'rate'" in failed.value.traceback
