"""Fixtures that run the command line as a user does: in a real process, with a new store for each test."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import warm_torch
from tests.stores import made_once

from .warm_command import WarmCommands

PATIENCE_S = 240
WITH_TORCH = ("generate", "attention", "export")  # commands that import torch in their own process
TINY = """
name = "tiny"
title = "A table of width 8"

[base]
model = {num_layers = 1, d_model = 8, d_ff = 16, num_heads = 2, d_k = 4, d_v = 4}
data = {vocab_size = 200, builtin_pairs = 300}
training = {train_steps = 6, warmup_steps = 10, tokens_per_batch = 400, checkpoint_steps = 2, precision = "fp32"}
evaluation = {beam_size = 2, max_extra_length = 3}

[[variation]]
key = "base"
paper = {perplexity = 4.92, bleu = 25.8, params = 65}

[[variation]]
key = "h1"
group = "A"
set = {model.num_heads = 1, model.d_k = 8, model.d_v = 8}

[[variation]]
key = "untrained"
fixed = {training.train_steps = 0}
"""


def environment() -> dict[str, str]:
    """Return an environment in which processes import this checkout's code, from any working directory."""
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    ours = {"PYTHONPATH": path, "MLFLOW_DISABLE_TELEMETRY": "true"}
    return {**os.environ, **ours, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "tests.system.shared_command", *map(str, arguments)]


Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session", autouse=True)
def shared_torch(_state_of_its_own: None) -> Iterator[None]:
    """Let trainings of this process and of `cli` get their fork servers from one process of the session."""
    warm_torch.share()
    torch = warm_torch.WarmTorch()
    yield
    torch.close()


@pytest.fixture(scope="session")
def cli(shared_torch: None) -> Iterator[Cli]:
    """Return a function that runs a command in a process with its modules already imported (warm_command.py)."""
    servers = {torch: WarmCommands(environment(), ["torch"] * torch) for torch in (False, True)}

    def call(*arguments: str | Path, code: int = 0, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        given, warm = environment(), servers[arguments[0] in WITH_TORCH]
        if warm.can_run(given):
            done = warm.run([str(word) for word in arguments], given, cwd or Path.cwd(), PATIENCE_S)
        else:
            done = subprocess.run(
                command(*arguments), capture_output=True, text=True, timeout=PATIENCE_S, env=given, cwd=cwd
            )
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    yield call
    for server in servers.values():
        server.close()


@pytest.fixture(scope="session")
def tiny() -> Path:
    return made_once("tiny", lambda folder: (folder / "tiny.toml").write_text(TINY, encoding="utf-8")) / "tiny.toml"


@pytest.fixture(scope="session")
def finished(cli: Cli, tiny: Path) -> Path:
    """Return a store with the finished tiny table of two seeds. Tests must not change the store."""

    def run(folder: Path) -> None:
        cli("run", tiny, "--seeds", "2", "--store", folder / "store", "--devices", "cpu:2", "--json")

    return made_once("finished tiny", run) / "store"


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def serving(words: list[str], port: int, log: Path) -> Iterator[str]:
    """Start MLflow's server with these arguments and yield its address once it answers.

    At the end, the server's process group is killed.
    """
    with log.open("w") as out:
        server = subprocess.Popen(words, stdout=out, stderr=out, env=environment(), start_new_session=True)
    try:
        until = time.monotonic() + 600  # on a machine with a load of 35, the server's imports take minutes
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except OSError:
                assert time.monotonic() < until and server.poll() is None, log.read_text()
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def as_json(done: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(done.stdout)
