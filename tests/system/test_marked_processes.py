"""At the end of a run, none of its processes is left, including one that killed its keeper and left its session."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.processes.marked import MARK, end_marked
from experiments.processes.process_identity import identify, is_alive

from .conftest import Cli

pytestmark = pytest.mark.process

IGNORED = "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]"
SLEEP = f"{IGNORED}; print('up', flush=True); time.sleep(600)"


def start(mark: str | None) -> subprocess.Popen[bytes]:
    given = {**os.environ, **({MARK: mark} if mark else {})}
    process = subprocess.Popen([sys.executable, "-c", SLEEP], env=given, start_new_session=True, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    return process


def test_processes_with_the_mark_of_an_attempt_are_ended_and_no_others(tmp_path: Path) -> None:
    mine, other, none = start(str(tmp_path / "1")), start(str(tmp_path / "10")), start(None)
    try:
        assert end_marked(tmp_path / "1") == [mine.pid]
        assert mine.wait() == -signal.SIGKILL and other.poll() is None and none.poll() is None
        assert end_marked(tmp_path / "1") == []
    finally:
        for process in (mine, other, none):
            process.kill()
            process.wait()


ESCAPES = f"""
import os, signal, subprocess, sys, time
keeper = int(open(f"/proc/{{os.getpgrp()}}/stat").read().rpartition(")")[2].split()[1])
left = subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session=True, stdout=subprocess.PIPE)
left.stdout.readline()
open("left.txt", "w").write(str(left.pid))
print('{{"acc": 1}}', flush=True)
if sys.argv[1] == "kill":
    os.kill(keeper, signal.SIGKILL)
    time.sleep(600)
"""


@pytest.mark.parametrize("how", ["end", pytest.param("kill", marks=pytest.mark.slow)])
def test_a_process_that_killed_its_keeper_ends_with_its_run(cli: Cli, tmp_path: Path, how: str) -> None:
    (tmp_path / "train.py").write_text(ESCAPES)
    (tmp_path / "study.toml").write_text(
        f'name = "e"\ntitle = "E"\ncommand = "{sys.executable} train.py {how}"\nmetric = [{{name = "acc"}}]\n'
        'variation = [{key = "base"}]\n'
    )
    done = cli("run", "study.toml", "--devices", "cpu:1", "--seeds", "1", cwd=tmp_path, code=1 if how == "kill" else 0)
    left = identify(int((tmp_path / "left.txt").read_text()))
    until = time.monotonic() + 20
    while is_alive(left) and time.monotonic() < until:
        time.sleep(0.1)
    assert not is_alive(left), done.stderr
