"""The coordinator's side of the fork server: start children, learn of their exits."""

import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from experiments.jobs.engines.base import Launch, import_path
from experiments.processes.allocator import allocator

READY_S = 120.0  # the first import of torch from a network disk may be slow


class ForkServer:
    """A server process that imports `preload` and then forks children. Ready some seconds after construction."""

    def __init__(self, preload: Sequence[str]) -> None:
        self._codes: dict[int, int] = {}
        self._replies: list[dict[str, Any]] = []
        self._buffer = b""
        self._socket, theirs = socket.socketpair()
        # one thread until a child sets its own number: a thread pool of the server would not survive the fork
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

    def start(self, launch: Launch) -> int | None:
        """The child's process id, or None if the server is gone.

        Raises OSError if the machine cannot start a process, or if the server died while forking: then a child may
        exist, and a second one in the same folder must not be started.
        """
        if not self._answer("ready"):
            return None
        request = {"argv": list(launch.argv)[1:], "environment": dict(launch.environment), "log": str(launch.log)}
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
        except OSError:
            self._lost()
            return None
        reply = self._answer("pid", "error")
        if "pid" in reply:
            return int(reply["pid"])
        raise OSError(reply.get("error", "the fork server died while starting a child"))

    def _answer(self, *kinds: str) -> dict[str, Any]:
        """The server's next message of these kinds; {} if it is gone. "ready" is sent once and kept."""
        while self.alive:
            for message in self._replies:
                if set(kinds) & set(message):
                    if kinds != ("ready",):
                        self._replies.remove(message)
                    return message
            if not self._read(READY_S):
                self._lost()
        return {}

    def has_ended(self, pid: int) -> bool:
        """Whether the server has reported a child's end. While it lives, it reports every end."""
        if pid not in self._codes and self.alive:
            self._read(0)
        return pid in self._codes

    def exit_code(self, pid: int) -> int | None:
        """A child's exit code; None if the server did not report it. Removed on reading, as process ids are reused."""
        return self._codes.pop(pid, None)

    def wait(self, timeout_s: float) -> None:
        """Return after at most `timeout_s`, earlier at a message of the server, such as a child's end."""
        self._read(timeout_s)

    def close(self) -> None:
        """End the server; its children continue."""
        self._lost()

    def _read(self, timeout_s: float) -> bool:
        """Read the server's messages; False if there were none."""
        readable, _, _ = select.select([self._socket], [], [], timeout_s)
        if not readable:
            return False
        try:
            data = self._socket.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._lost()
            return False
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "code" in message:
                self._codes[message["pid"]] = message["code"]
            else:
                self._replies.append(message)
        return True

    def _lost(self) -> None:
        """Close the connection; the server ends and its children continue."""
        if self._process is None:
            return
        self._process.kill()  # it has no state to lose, and must not serve a request any more
        self._process.wait()
        self._socket.close()
        self._process = None
