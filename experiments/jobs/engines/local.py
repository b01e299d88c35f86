"""Children on this machine: forked from a server that has imported torch, or plain subprocesses.

Importing torch takes seconds, forking a process that has it milliseconds (experiments/child/forkserver.py). If the
server dies, its children continue and are watched by process id; new ones start as plain subprocesses. A process is
identified by its id and start time (experiments/processes/identity.py), so a reused id is never signalled.
"""

import contextlib
import functools
import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.jobs.engines.base import Engine, Exit, Handle, Launch
from experiments.jobs.engines.forks import ForkServer
from experiments.processes.allocator import allocator
from experiments.processes.identity import identify, is_alive

# an optimizer's first use imports torch._dynamo, which takes as long as torch itself
PRELOAD = ("torch", "torch._dynamo", "numpy", "pydantic", "psutil", "sentencepiece", "sacrebleu", "safetensors.torch")
LIGHT = ("numpy", "pydantic", "psutil")  # for runs whose trainers have processes of their own
log = logging.getLogger(__name__)


class LocalEngine(Engine):
    """Starts children on this machine. `preload`: modules of the fork server; `fork=False`: only subprocesses."""

    name = "local"

    def __init__(self, preload: Sequence[str] = PRELOAD, *, fork: bool = True) -> None:
        self._server = ForkServer(preload) if fork and hasattr(os, "fork") else None
        self._spawned: dict[int, subprocess.Popen[bytes]] = {}
        self._forked: set[int] = set()
        self._ended: dict[tuple[int, float], Exit] = {}

    def start(self, launch: Launch) -> Handle:
        pid = self._fork(launch) or self._spawn(launch)
        return Handle({**identify(pid), "host": socket.gethostname()})

    def adopt(self, ref: Mapping[str, Any]) -> Handle | None:
        if ref.get("host") != socket.gethostname() or not is_alive(ref):
            return None
        return Handle(dict(ref))

    def poll(self, handle: Handle) -> Exit | None:
        key = _key(handle)
        if key in self._ended:
            return self._ended[key]
        if self._alive(key[0], handle):
            return None
        code = self._exit_code(key[0])
        self._spawned.pop(key[0], None)
        self._forked.discard(key[0])
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
            os.killpg(pid, signal.SIGKILL)  # it leads its own session
        except ProcessLookupError:  # not yet: it was forked just now
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
        pid = self._server.start(launch)
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
        """Determined once: without tcmalloc the search takes 10 ms."""
        return allocator()

    def _alive(self, pid: int, handle: Handle) -> bool:
        if pid in self._spawned:
            return self._spawned[pid].poll() is None
        if pid in self._forked and self._server is not None and self._server.alive:
            return not self._server.has_ended(pid)
        return is_alive(handle.ref)

    def _exit_code(self, pid: int) -> int | None:
        if pid in self._spawned:
            return self._spawned[pid].returncode
        return self._server.exit_code(pid) if pid in self._forked and self._server is not None else None


def _key(handle: Handle) -> tuple[int, float]:
    return int(handle.ref["pid"]), float(handle.ref.get("start_ticks") or handle.ref.get("create_time", 0.0))
