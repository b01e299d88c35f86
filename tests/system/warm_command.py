"""Run the command in processes that start with its modules and MLflow already imported, which saves three seconds each.

A server imports the modules once and forks for every call. Each call is still a separate process with its own
arguments, environment, working directory and exit code. Only the imports are shared.

    python -m tests.system.warm_command FD [MODULE…]
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
import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from experiments.child import forkserver
from tests import warm_torch

COMMAND = "ablations.cli.main"  # each process runs this module, so it is not among the modules below
MODULES = (
    *(f"ablations.cli.{name}" for name in ("inspect", "options", "progress", "show_plan")),
    *(f"ablations.cli.{name}" for name in ("report", "run", "status", "store", "terminal")),
    "ablations.service.tables", "mlflow", "mlflow.store.tracking.sqlalchemy_store",
)  # fmt: skip
READ_AT_IMPORT = ("PYTHON", "LD_", "OMP_", "MKL_", "MLFLOW_", "MALLOC_", "GLIBC_")  # prefixes of environment variables


class WarmCommands:
    """The server's client. The first call starts the server. `more`: further modules that the server imports."""

    def __init__(self, environment: dict[str, str], more: Sequence[str] = ()) -> None:
        self._environment, self._more = environment, more
        self._server: subprocess.Popen[bytes] | None = None
        self._starting = threading.Lock()

    def can_run(self, environment: dict[str, str]) -> bool:
        """Return whether imports in the server's environment have the same result as in this one."""
        return _read_at_import(environment) == _read_at_import(self._environment)

    def run(
        self, words: Sequence[str], environment: dict[str, str], cwd: Path, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Run the command like `subprocess.run` with captured text."""
        self._start()
        reader, writer = os.pipe()
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err, open(reader) as answer:  # noqa: PTH123
            request = {"words": list(words), "environment": environment, "cwd": str(cwd)}
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], [out.fileno(), err.fileno(), writer])
            finally:
                os.close(writer)
            if not select.select([answer], [], [], timeout_s)[0]:
                raise subprocess.TimeoutExpired(list(words), timeout_s)  # `close` ends the process
            code = answer.read()
            assert code, "the server has ended, or the process that waits for the command"
            for stream in (out, err):
                stream.seek(0)
            return subprocess.CompletedProcess(list(words), int(code), out.read(), err.read())

    def close(self) -> None:
        if self._server is not None:
            self._socket.close()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._server.pid, signal.SIGKILL)
            self._server.wait()

    def _start(self) -> None:
        with self._starting:
            if self._server is not None:
                return
            # SEQPACKET keeps messages whole, so that calls of several threads do not mix
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._server = subprocess.Popen(
                    [sys.executable, "-m", "tests.system.warm_command", str(theirs.fileno()), *self._more],
                    pass_fds=[theirs.fileno()], env=self._environment, stdin=subprocess.DEVNULL, start_new_session=True,
                )  # fmt: skip
            self._socket.recv(1)  # the server sends a byte when it is ready


def _read_at_import(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(READ_AT_IMPORT)}


def main(fd: int, more: Sequence[str]) -> None:
    """Serve requests until the client closes its end. A forked process runs its command and exits here."""
    with warnings.catch_warnings(action="ignore"):
        for name in (*MODULES, *more):
            importlib.import_module(name)
    warm_torch.share()
    assert COMMAND not in sys.modules and ("torch" in sys.modules) is ("torch" in more)
    threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    # Arrow's allocator restarts its own thread after a fork.
    threads = [name for name in threads if name != "jemalloc_bg_thd"]
    assert len(threads) == 1, f"a fork copies no threads: {threads}"
    gc.collect()
    gc.freeze()
    connection = socket.socket(fileno=fd)
    connection.send(b"r")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps the processes that wait for a command
    while True:
        message, descriptors, *_ = socket.recv_fds(connection, 1 << 20, 3)
        if not message:
            return
        if os.fork() == 0:
            break
        for descriptor in descriptors:
            os.close(descriptor)
    connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    out, err, answer = descriptors
    child = os.fork()
    if child:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.write(answer, str(code).encode())
        os._exit(0)
    os.close(answer)
    _become(json.loads(message), out, err)
    forkserver.finish(forkserver.run(sys.argv))


def _become(request: dict[str, object], out: int, err: int) -> None:
    """Give the process the state of one started by `python -m`, before its module runs."""
    for descriptor, standard in ((out, 1), (err, 2)):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])  # type: ignore[call-overload]
    os.chdir(str(request["cwd"]))
    sys.path[0] = str(Path.cwd())
    time.tzset()
    tempfile.tempdir = None
    sys.argv = ["-P", "-m", COMMAND, *request["words"]]  # type: ignore[misc]


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
