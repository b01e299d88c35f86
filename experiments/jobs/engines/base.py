"""The Engine contract: where children run. One conformance class tests every engine (tests/conformance).

An engine starts the child program of one attempt on one slot and says when it has ended. It knows nothing of runs,
results or retries: the child reports by events in its attempt's folder, on every engine alike, and the coordinator
decides from those. Hence the contract is small:

 - `start` returns once the child exists (or is submitted) and gives a Handle. Its `ref` is plain JSON: with it
   another coordinator, after this one has died, finds the child again by `adopt`.
 - The child runs in the coordinator's working directory with `launch.environment` over the inherited environment,
   with stdout and stderr appended to `launch.log`, and outside the coordinator's process group: Ctrl-C in the
   terminal reaches the coordinator alone, which then asks its children to stop.
 - `poll` never blocks: None while the child lives, then an Exit, the same one however often it is asked. The code is
   negative for a signal, None where it cannot be known (an adopted child is nobody's child here).
 - `terminate` asks the child to save a checkpoint and end (SIGTERM, or what the cluster has for it); `kill` ends it
   and what it has started, at once, or as soon as a cluster does that. Both do nothing to a child that has ended: a
   process id that the system has given to another process since is never signalled.
 - `wait` returns after `timeout_s` at the latest, earlier if a child may have ended.
 - `close` frees what the engine holds for itself. Children go on.
"""

import functools
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import experiments
from experiments.jobs.devices.slots import Slot

CHILD = (sys.executable, "-m", "experiments.child.run")
_SCRUBBED = ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True)
class Launch:
    """One attempt to be started."""

    argv: Sequence[str]  # the whole command
    environment: Mapping[str, str]  # in full, not on top of anything
    log: Path
    slot: Slot  # what a cluster is asked for; elsewhere `environment` says it all


@dataclass(frozen=True)
class Handle:
    """A child that was started. `ref` can be kept as JSON and adopted by a later coordinator."""

    ref: Mapping[str, Any]


@dataclass(frozen=True)
class Exit:
    """How a child ended: 0–255, negative for a signal, None if nobody knows."""

    code: int | None


class Engine(ABC):
    name: ClassVar[str]
    outlives: ClassVar[bool] = False  # whether children go on when their coordinator is gone

    @abstractmethod
    def start(self, launch: Launch) -> Handle:
        """Start a child. Raises OSError if the machine refuses one more."""

    def start_all(self, launches: Sequence[Launch]) -> list[Handle | OSError]:
        """Start several; a cluster takes them in one request."""
        return [self._try_to_start(launch) for launch in launches]

    def _try_to_start(self, launch: Launch) -> Handle | OSError:
        try:
            return self.start(launch)
        except OSError as error:
            return error

    def waiting_for(self, handle: Handle) -> str:
        """Why a child that was submitted has not begun: "" here, where it begins at once."""
        return ""

    @abstractmethod
    def adopt(self, ref: Mapping[str, Any]) -> Handle | None:
        """The child that a dead coordinator's `ref` names, or None if it has ended or is out of sight."""

    @abstractmethod
    def poll(self, handle: Handle) -> Exit | None: ...

    @abstractmethod
    def terminate(self, handle: Handle) -> None: ...

    @abstractmethod
    def kill(self, handle: Handle) -> None: ...

    @abstractmethod
    def wait(self, timeout_s: float) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


def child_environment(slot: Slot, threads: int, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a child on `slot`: its devices and threads, and what this process can import."""
    environment = dict(os.environ if environ is None else environ)
    for name in _SCRUBBED:
        environment.pop(name, None)
    environment |= dict.fromkeys(_THREADS, str(threads))
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    if slot.device is not None:
        environment["CUDA_VISIBLE_DEVICES"] = slot.device
    environment["PYTHONUNBUFFERED"] = "1"
    environment["PYTHONPATH"] = os.pathsep.join(import_path())
    return environment


def import_path() -> list[str]:
    """Folders that this process imports from, its installation's own left out: a child must find the same code."""
    return list(_import_path(tuple(sys.path), Path.cwd()))


@functools.lru_cache(maxsize=1)
def _import_path(path: tuple[str, ...], folder: Path) -> dict[str, None]:
    home = str(Path(experiments.__file__).parent.parent)
    installed = (sys.prefix, sys.base_prefix, sys.exec_prefix)
    mine = [str(folder / entry) for entry in path if not (entry and entry.startswith(installed))]
    return dict.fromkeys([*mine, home])
