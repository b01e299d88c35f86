"""The coordinator's side of the fork server: start children, receive their exit codes.

The program of the server is experiments/child/forkserver.py.
"""

import json
import logging
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.jobs.engines.engine import import_path
from experiments.processes.processor import allocator

log = logging.getLogger(__name__)

READY_S = 120.0  # seconds; the first import of torch from a network disk may be slow


class ForkServer:
    """A connection to a server process, which imports the modules `preload` and then forks children.

    The server is ready some seconds after construction.
    """

    def __init__(self, preload: Sequence[str]) -> None:
        self._codes: dict[int, int] = {}
        self._replies: list[dict[str, Any]] = []
        self._buffer = b""
        self._socket, theirs = socket.socketpair()
        # The server uses one thread, because a thread pool would not survive a fork. Each child then sets its number of
        # threads.
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
        """Fork a child and return its process id; None if the server has ended.

        Raises OSError if the machine cannot start a process, or if the server died while forking. In the second case, a
        child may exist. So after an OSError, the caller must not start another child in the same folder.

        out: file for stdout; None means the log.
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

        The message "ready" is sent once. This message stays available for later calls.
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
        """Return whether the server has reported the end of a child."""
        if pid not in self._codes and self.alive:
            self._read(0)
        return pid in self._codes

    def exit_code(self, pid: int) -> int | None:
        """Return a child's exit code; None if the server did not report it.

        The code is removed when it is read, because process ids are reused.
        """
        return self._codes.pop(pid, None)

    def wait(self, timeout_s: float) -> None:
        """Return after at most `timeout_s`, and earlier if the server sends a message, such as the end of a child."""
        self._read(timeout_s)

    def _read(self, timeout_s: float) -> bool:
        """Read the server's messages. Return False if none arrive within `timeout_s`, or if the server has ended."""
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
