"""Children on this machine: forked from a server that has imported torch, or started as plain subprocesses.

Importing torch takes seconds. Forking a process that has imported torch takes milliseconds
(experiments/child/forkserver.py). If the server dies, its children continue, and the engine watches them by their
process ids. New children then start as plain subprocesses. A process is identified by its id and its start time
(experiments/processes/process_identity.py). So the engine never sends a signal to another process with a reused id.
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

from experiments.jobs.engines.engine import Engine, Exit, Handle, Launch
from experiments.jobs.engines.fork_server import ForkServer
from experiments.processes.process_identity import identify, is_alive
from experiments.processes.processor import allocator

# The first use of an optimizer imports torch._dynamo, which takes as long as importing torch.
PRELOAD = ("torch", "torch._dynamo", "numpy", "pydantic", "psutil", "sentencepiece", "sacrebleu", "safetensors.torch")
LIGHT = ("experiments.child.ready",)  # modules to preload if all trainers run in separate processes
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
        except ProcessLookupError:  # a child that was just forked does not lead a session yet
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
