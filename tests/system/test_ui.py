"""`ablations ui` handles a used port, and leaves no process however it ends."""

import functools
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from experiments.store.layout import Store
from experiments.tracking.mlflow import Tracker

from .conftest import Cli, command, environment, free_port, serving

SERVER = """
import subprocess, sys, time
worker = [sys.executable, "-c", "import time; time.sleep(300)"]
with open(sys.argv[1], "w") as file:
    for leaves in (False, True):
        print(subprocess.Popen(worker, start_new_session=leaves).pid, file=file)
time.sleep(300)
"""
UI = "import sys; from ablations.cli.ui import _serve; sys.exit(_serve(sys.argv[1:], 'http://here'))"


def test_a_used_port_is_refused_at_once(cli: Cli, tmp_path: Path) -> None:
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        port = used.getsockname()[1]
        done = cli("ui", "--store", tmp_path, "--port", str(port), code=2)
        assert f"Port {port} is used by another process" in done.stderr and "--port" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_what_a_server_has_started_ends_with_the_command(tmp_path: Path, number: signal.Signals) -> None:
    words = [sys.executable, "-c", UI, sys.executable, "-c", SERVER, str(tmp_path / "pids")]
    heard = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # background jobs of a shell ignore SIGINT
    ui = subprocess.Popen(words, env=environment(), start_new_session=True, preexec_fn=heard)
    pids = _pids(tmp_path / "pids")
    processes = [psutil.Process(pid) for pid in pids]
    ui.send_signal(number)
    assert ui.wait(60) == (0 if number == signal.SIGINT else -number)
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert not alive


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_of_mlflow_is_left(tmp_path: Path, number: signal.Signals) -> None:
    store, port = Store.open(tmp_path / "store"), free_port()
    Tracker(store)
    words = command("ui", "--store", store.root, "--port", str(port))
    with serving(words, port, tmp_path / "log.txt"):
        [ui] = [p for p in psutil.Process().children() if "ui" in p.cmdline()]
        below = ui.children(recursive=True)
        assert len(below) > 2
        ui.send_signal(number)
        _, alive = psutil.wait_procs(below, timeout=30)
        assert not alive


def _pids(file: Path) -> list[int]:
    until = time.monotonic() + 60
    while not (file.exists() and len(file.read_text().split()) == 2):
        assert time.monotonic() < until
        time.sleep(0.05)
    return [int(pid) for pid in file.read_text().split()]
