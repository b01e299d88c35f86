"""Fork servers of the local engine that begin with torch imported, which takes three seconds of a processor each.

Every command that trains, and every table that a test trains, starts a fork server, whose first work is that import
(experiments/jobs/engines/fork_server.py). Here one process a test session imports it and forks such servers. A server
is still a process of its own, in its own session, with its environment and its end of the socket; only the import is
shared.

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

ADDRESS = "ABLATIONS_TESTS_TORCH"  # the socket of this session's process; commands find it in their environment
SERVER = ["-P", "-m", "experiments.child.forkserver"]
SET_BY_ITSELF = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "TORCHINDUCTOR_CACHE_DIR")  # a test that trains here leaves them
READ_AT_IMPORT = ("PYTHON", "LD_", "OMP_", "MKL_", "MALLOC_", "GLIBC_", "OPENBLAS_", "ATEN_", "ONEDNN_", "TORCH")


class WarmTorch:
    """Starts the process. Its address is in this process's environment until `close`."""

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
        """End it; fork servers that it started continue."""
        os.environ.pop(ADDRESS, None)
        self._lifeline.close()
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


class _Forked:
    """What the engine's client needs of `Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._end = os.pidfd_open(pid)  # it is no child of this process

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._end, signal.SIGKILL)

    def wait(self) -> None:
        select.select([self._end], [], [])
        os.close(self._end)


def share() -> None:
    """From now on local engines of this process, and of its forks, ask the session's process for fork servers."""
    from experiments.jobs.engines import fork_server

    def start(argv: Sequence[str], **options: Any) -> Any:
        if list(argv[1:4]) == SERVER and "torch" in argv[5:] and ADDRESS in os.environ:
            with contextlib.suppress(OSError):  # of a session that has ended
                pid = _ask(os.environ[ADDRESS], argv[5:], options["env"], options["pass_fds"][0])
                if pid:
                    return _Forked(pid)
        return subprocess.Popen(argv, **options)

    fork_server.subprocess = types.SimpleNamespace(**{**vars(subprocess), "Popen": start})  # type: ignore[assignment]


def _ask(address: str, modules: Sequence[str], environment: Mapping[str, str], fd: int) -> int:
    """The process id of a new fork server; 0 if it needs an interpreter that was started otherwise."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(address)
        request = {"modules": list(modules), "environment": dict(environment), "cwd": str(Path.cwd())}
        socket.send_fds(connection, [json.dumps(request).encode()], [fd])
        return int(connection.recv(64) or b"0")


def main(listening: int, lifeline: int, modules: Sequence[str]) -> None:
    """Serve until the session ends. A forked process also ends here, after its own service."""
    read = _read_at_import(os.environ)  # torch adds variables
    for name in modules:
        with contextlib.suppress(ImportError), warnings.catch_warnings(action="ignore"):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system forgets servers that have ended
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
    os._exit(0)  # its socket has closed; the interpreter's own end frees torch's modules, which takes a second


def _become(request: dict[str, Any]) -> None:
    """Make the process equal to one that the engine starts."""
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
