"""Children on this machine: forked from a server that has imported torch, or started as plain subprocesses.

Importing torch takes seconds. Forking a process that has imported it takes milliseconds
(experiments/child/forkserver.py). If the server dies, its children continue and are watched by process id, and new
children start as plain subprocesses. A process is identified by its id and start time
(experiments/processes/process_identity.py). So another process with a reused id is never signalled.
"""

import contextlib
import functools
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.jobs.engines.engine import Engine, Exit, Handle, Launch, import_path
from experiments.processes.process_identity import identify, is_alive
from experiments.processes.processor import allocator

# The first use of an optimizer imports torch._dynamo, which takes as long as importing torch.
PRELOAD = ("torch", "torch._dynamo", "numpy", "pydantic", "psutil", "sentencepiece", "sacrebleu", "safetensors.torch")
LIGHT = ("experiments.child.ready",)  # preload for runs whose trainers run in separate processes
log = logging.getLogger(__name__)


class LocalEngine(Engine):
    """Starts children on this machine.

    preload: modules that the fork server imports. With `fork=False`, all children are plain subprocesses.
    """

    name = "local"

    def __init__(self, preload: Sequence[str] = PRELOAD, *, fork: bool = True) -> None:
        self._server = ForkServer(preload) if fork else None
        self._spawned: dict[int, subprocess.Popen[bytes]] = {}
        self._forked: set[int] = set()
        self._ended: dict[tuple[int, int], Exit] = {}

    def start(self, launch: Launch) -> Handle:
        pid = self._fork(launch) or self._spawn(launch)
        return Handle({**identify(pid), "host": socket.gethostname()})

    def adopt(self, ref: Mapping[str, Any]) -> Handle | None:
        if ref.get("host") != socket.gethostname() or not is_alive(ref):
            return None
        return Handle(dict(ref))

    def poll(self, handle: Handle) -> Exit | None:
        pid, key = int(handle.ref["pid"]), (int(handle.ref["pid"]), int(handle.ref["start_ticks"]))
        if key in self._ended:
            return self._ended[key]
        server, spawned = self._server if pid in self._forked else None, self._spawned.get(pid)
        if spawned is not None:
            alive = spawned.poll() is None
        else:
            alive = not server.has_ended(pid) if server is not None and server.alive else is_alive(handle.ref)
        if alive:
            return None
        code = spawned.returncode if spawned is not None else server.exit_code(pid) if server is not None else None
        self._spawned.pop(pid, None)
        self._forked.discard(pid)
        self._ended[key] = Exit(code)
        return self._ended[key]

    def terminate(self, handle: Handle) -> None:
        if is_alive(handle.ref):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(handle.ref["pid"]), signal.SIGTERM)

    def kill(self, handle: Handle) -> None:
        pid = int(handle.ref["pid"])
        if not is_alive(handle.ref):
            return
        try:
            os.killpg(pid, signal.SIGKILL)  # the child leads a session
        except ProcessLookupError:  # a child that was just forked does not lead it yet
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def wait(self, timeout_s: float) -> None:
        if self._server is not None and self._server.alive:
            self._server.wait(timeout_s)
        else:
            time.sleep(timeout_s)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def _fork(self, launch: Launch) -> int | None:
        if self._server is None or not self._server.alive:
            return None
        pid = self._server.fork(launch.argv[1:], launch.environment, launch.log)
        if pid is None:
            log.warning("the fork server has ended; children start as plain processes, a few seconds slower")
        else:
            self._forked.add(pid)
        return pid

    def _spawn(self, launch: Launch) -> int:
        with launch.log.open("ab") as output:
            child = subprocess.Popen(
                list(launch.argv),
                env={**self._allocator, **launch.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._spawned[child.pid] = child
        return child.pid

    @functools.cached_property
    def _allocator(self) -> dict[str, str]:
        """The variables of `allocator`, cached because the search for tcmalloc takes 10 ms."""
        return allocator()


# --- The coordinator's side of the fork server: start children, receive their exit codes


READY_S = 120.0  # the first import of torch from a network disk may be slow


class ForkServer:
    """A server process that imports `preload` and then forks children. It is ready some seconds after construction."""

    def __init__(self, preload: Sequence[str]) -> None:
        self._codes: dict[int, int] = {}
        self._replies: list[dict[str, Any]] = []
        self._buffer = b""
        self._socket, theirs = socket.socketpair()
        # One thread, because a thread pool of the server would not survive a fork. Each child sets its own number.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        environment |= {"PYTHONPATH": os.pathsep.join(import_path()), "PYTHONUNBUFFERED": "1", **allocator()}
        with theirs:
            self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
                [sys.executable, "-P", "-m", "experiments.child.forkserver", str(theirs.fileno()), *preload],
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        """Whether the server can start children."""
        return self._process is not None

    def fork(
        self, argv: Sequence[str], environment: Mapping[str, str], log: Path, out: Path | None = None
    ) -> int | None:
        """Fork a child and return its process id; None if the server has ended. out: file for stdout; None: the log.

        Raises OSError if the machine cannot start a process, or if the server died while forking. After an OSError, a
        child may exist, so no second one may be started in the same folder.
        """
        if not self._answer("ready"):
            return None
        request = {"argv": [*argv], "environment": {**environment}, "log": str(log), "out": str(out or log)}
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
        except OSError:
            self.close()
            return None
        reply = self._answer("pid", "error")
        if "pid" in reply:
            return int(reply["pid"])
        raise OSError(reply.get("error", "the fork server died while starting a child"))

    def _answer(self, *kinds: str) -> dict[str, Any]:
        """Return the server's next message of one of these kinds; {} if the server has ended.

        The message "ready" is sent once. It stays available for later calls.
        """
        while self.alive:
            for message in self._replies:
                if set(kinds) & set(message):
                    if kinds != ("ready",):
                        self._replies.remove(message)
                    return message
            if not self._read(READY_S):
                self.close()
        return {}

    def has_ended(self, pid: int) -> bool:
        """Return whether the server has reported the end of a child. It reports every end while it lives."""
        if pid not in self._codes and self.alive:
            self._read(0)
        return pid in self._codes

    def exit_code(self, pid: int) -> int | None:
        """Return a child's exit code; None if the server did not report it.

        The code is removed when it is read, because process ids are reused.
        """
        return self._codes.pop(pid, None)

    def wait(self, timeout_s: float) -> None:
        """Return after at most `timeout_s`, and earlier at a message of the server, such as the end of a child."""
        self._read(timeout_s)

    def _read(self, timeout_s: float) -> bool:
        """Read the server's messages. Return False if there are none."""
        readable, _, _ = select.select([self._socket], [], [], timeout_s)
        if not readable:
            return False
        try:
            data = self._socket.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self.close()
            return False
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "code" in message:
                self._codes[message["pid"]] = message["code"]
            else:
                self._replies.append(message)
        return True

    def close(self) -> None:
        """Close the connection and end the server. Its children continue."""
        if self._process is None:
            return
        self._process.kill()  # the server has no state to lose, and must not serve another request
        self._process.wait()
        self._socket.close()
        self._process = None
