"""Start the local engine's fork servers with torch already imported, which saves three seconds of CPU time per server.

Every command that trains, and every table that a test trains, starts a fork server that first imports torch
(experiments/jobs/engines/fork_server.py). In tests, one process per test session imports torch and forks these servers.
Each server is still a separate process with its own session, environment and socket. Only the import is shared.

    python -P -m tests.warm_torch LISTENING LIFELINE MODULE…
"""

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import types
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.child import forkserver

ADDRESS = "ABLATIONS_TESTS_TORCH"  # environment variable with the path of this session's socket
SERVER = ["-P", "-m", "experiments.child.forkserver"]
# A training in this process leaves these variables set.
SET_BY_ITSELF = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "TORCHINDUCTOR_CACHE_DIR")
READ_AT_IMPORT = ("PYTHON", "LD_", "OMP_", "MKL_", "MALLOC_", "GLIBC_", "OPENBLAS_", "ATEN_", "ONEDNN_", "TORCH")


class WarmTorch:
    """The process that forks fork servers. The environment variable ADDRESS has its socket until `close`."""

    def __init__(self) -> None:
        from experiments.jobs.engines import fork_server, local

        self._folder = tempfile.TemporaryDirectory(prefix="w-")
        address = str(Path(self._folder.name) / "s")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        environment |= {"PYTHONPATH": os.pathsep.join(fork_server.import_path()), "PYTHONUNBUFFERED": "1"}
        environment |= fork_server.allocator()
        self._lifeline, theirs = socket.socketpair()
        with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(address)
            listening.listen(8)
            fds = [listening.fileno(), theirs.fileno()]
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tests.warm_torch", *map(str, fds), *local.PRELOAD],
                env=environment, pass_fds=fds, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        os.environ[ADDRESS] = address

    def close(self) -> None:
        """End the process. Fork servers that it started continue."""
        os.environ.pop(ADDRESS, None)
        self._lifeline.close()
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


class _Forked:
    """The methods of `Popen` that the engine's client uses, for a forked server."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._end = os.pidfd_open(pid)  # the server is not a child of this process

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._end, signal.SIGKILL)

    def wait(self) -> None:
        select.select([self._end], [], [])
        os.close(self._end)


def share() -> None:
    """Make local engines of this process and of its forks request fork servers from the session's process."""
    from experiments.jobs.engines import fork_server

    def start(argv: Sequence[str], **options: Any) -> Any:
        if list(argv[1:4]) == SERVER and "torch" in argv[5:] and ADDRESS in os.environ:
            with contextlib.suppress(OSError):  # the session's process has ended
                pid = _ask(os.environ[ADDRESS], argv[5:], options["env"], options["pass_fds"][0])
                if pid:
                    return _Forked(pid)
        return subprocess.Popen(argv, **options)

    fork_server.subprocess = types.SimpleNamespace(**{**vars(subprocess), "Popen": start})  # type: ignore[assignment]


def _ask(address: str, modules: Sequence[str], environment: Mapping[str, str], fd: int) -> int:
    """Return the process id of a new fork server, or 0 if its environment would change the interpreter or torch."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(address)
        request = {"modules": list(modules), "environment": dict(environment), "cwd": str(Path.cwd())}
        socket.send_fds(connection, [json.dumps(request).encode()], [fd])
        return int(connection.recv(64) or b"0")


def main(listening: int, lifeline: int, modules: Sequence[str]) -> None:
    """Serve requests until the session ends. A forked process becomes a fork server and exits here."""
    read = _read_at_import(os.environ)  # before the import, because torch adds variables
    for name in modules:
        with contextlib.suppress(ImportError), warnings.catch_warnings(action="ignore"):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps servers that have ended
    door, session = socket.socket(fileno=listening), socket.socket(fileno=lifeline)
    while True:
        if session in select.select([door, session], [], [])[0]:
            return
        connection, _ = door.accept()
        with connection:
            message, descriptors, *_ = socket.recv_fds(connection, 1 << 20, 1)
            request = json.loads(message)
            same = _read_at_import(request["environment"]) == read
            pid = os.fork() if same else 0
            if same and pid == 0:
                break
            for descriptor in descriptors:
                os.close(descriptor)
            connection.send(str(pid).encode())
    door.close()
    session.close()
    _become(request)
    forkserver.main([str(descriptors[0]), *request["modules"]])
    os._exit(0)  # a normal exit would take a second to free torch's modules


def _become(request: dict[str, Any]) -> None:
    """Give the process the state of one that the engine starts."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 2)
    os.close(null)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    tempfile.tempdir = None


def _read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(READ_AT_IMPORT) and name not in SET_BY_ITSELF
    }


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
