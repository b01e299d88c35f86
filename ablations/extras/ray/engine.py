"""Run child processes on a Ray cluster. Needs the extra [ray].

A detached actor reserves processors and GPUs and runs one child. Ray never restarts an actor, because the coordinator
decides from the events whether and where a run is resumed.
"""

import contextlib
import logging
import os
import socket
import threading
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from experiments.errors import UserError
from experiments.jobs.engines.cluster import ClusterEngine
from experiments.jobs.engines.engine import Handle, Launch, import_path
from experiments.jobs.engines.keeper import Keeper

NAMESPACE = "ablations"
ANSWER_S = 5.0


class Actor:
    """An actor that runs one child on a node. It ends when the child has ended, which frees its resources.

    The constructor starts the child, because a separate call would be lost if the coordinator died before the actor
    exists.
    """

    def __init__(self, folder: str) -> None:
        self._began, self._ended = threading.Event(), threading.Event()
        # This thread lives as long as the child, because a child ends with the thread that started it.
        threading.Thread(target=self._keep, args=(Path(folder),), daemon=True).start()
        self._began.wait()

    def _keep(self, folder: Path) -> None:
        import ray

        try:
            self._keeper = Keeper(folder)
            self._began.set()
            self._keeper.wait()
        finally:
            self._began.set()
            self._ended.set()
            ray.kill(ray.get_runtime_context().current_actor)

    def wait(self) -> None:
        self._ended.wait()

    def terminate(self) -> None:
        self._keeper.terminate()

    def kill(self) -> None:
        self._keeper.kill()


class RayEngine(ClusterEngine):
    """The engine `ray`.

    settings: `address` of the cluster ("auto" for the local one), and an amount of each further resource for every
    child, by Ray's names.
    """

    name = "ray"

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        super().__init__()
        try:
            import ray
        except ImportError:
            raise UserError("--engine ray needs Ray. Install it: pip install 'transformer-ablations[ray]'.") from None
        self._ray: Any = ray
        self._resources = {name: float(value) for name, value in (settings or {}).items() if name != "address"}
        self._actors: dict[str, Any] = {}
        self._ends: dict[str, Any] = {}  # futures that resolve when a child or its node has ended
        address = (settings or {}).get("address", "auto")
        try:
            if not ray.is_initialized():
                _reach(address)
                ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError) as error:
            why = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UserError(
                f"No Ray cluster answers at {address} ({why}). Start one with `ray start --head` and name it with "
                "--address HOST:PORT."
            ) from error

    @classmethod
    def configured(cls, settings: Mapping[str, str], folder: Path, at_once: int) -> Self:
        return cls(settings)

    def _submit(self, folders: Sequence[Path], launches: Sequence[Launch]) -> list[str]:
        return [self._start_actor(folder, launch) for folder, launch in zip(folders, launches, strict=True)]

    def _start_actor(self, folder: Path, launch: Launch) -> str:
        name = f"{folder.parent.parent.name}-{folder.name}-{uuid.uuid4().hex[:8]}"
        slot = launch.slot
        actor = self._ray.remote(Actor).options(
            name=name,
            namespace=NAMESPACE,
            lifetime="detached",
            max_restarts=0,
            max_concurrency=4,
            num_cpus=slot.cores,
            num_gpus=slot.count if slot.kind == "cuda" else 0,
            resources=self._resources or None,
            runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(import_path())}},
        )
        self._actors[name] = actor.remote(str(folder))
        self._ends[name] = self._actors[name].wait.remote()
        return name

    def _holds(self, name: str) -> bool:
        if not self._ray.is_initialized():  # the engine is closed, so only the files of the child show its end
            return True
        if name not in self._actors:
            try:
                self._actors[name] = self._ray.get_actor(name, namespace=NAMESPACE)
            except ValueError:
                return False
            self._ends[name] = self._actors[name].wait.remote()
        ended, _ = self._ray.wait([self._ends[name]], timeout=0)
        return not ended

    def waiting_for(self, handle: Handle) -> str:
        return "waits in Ray for processors and GPUs"

    def terminate(self, handle: Handle) -> None:
        self._call(handle, "terminate")

    def kill(self, handle: Handle) -> None:
        self._call(handle, "kill")
        actor = self._actors.get(str(handle.ref["id"]))
        if actor is not None:
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.kill(actor)

    def _call(self, handle: Handle, method: str) -> None:
        """Call a method of the actor of a child. An actor that does not answer in time is killed."""
        name = str(handle.ref["id"])
        if not self._holds(name):
            return
        asked = getattr(self._actors[name], method).remote()
        ready, _ = self._ray.wait([asked], timeout=ANSWER_S)
        if not ready:
            self._ray.kill(self._actors[name])

    def close(self) -> None:
        self._ray.shutdown()


def _reach(address: str) -> None:
    """Raise OSError if no process listens at the address, because Ray itself would try for many minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), ANSWER_S).close()
