"""The Engine contract: where children run. tests/conformance/test_engines.py holds every engine to it."""

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import experiments
from experiments.jobs.devices.slots import Slot

# -P: what lies in the working directory (queue.py, model/) is never imported in place of Python's modules or ours
CHILD = (sys.executable, "-P", "-m", "experiments.child.run")
_SCRUBBED = ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True)
class Launch:
    """The start of one attempt."""

    argv: Sequence[str]  # the whole command
    environment: Mapping[str, str]  # complete, not an addition
    log: Path
    slot: Slot  # resources requested from a cluster; other engines use `environment`


@dataclass(frozen=True)
class Handle:
    """A started child. `ref` can be stored as JSON and adopted by a later coordinator."""

    ref: Mapping[str, Any]


@dataclass(frozen=True)
class Exit:
    """Exit status of a child: 0–255, negative for a signal, None if unknown."""

    code: int | None
    withdrawn: str = ""  # why it was withdrawn before anything had started it


class Engine(ABC):
    """Starts and watches children.

    An engine starts the child program of one attempt on one slot and reports when it has ended. It knows nothing of
    runs, results or retries: with every engine the child reports by events in its attempt's folder, and the coordinator
    decides from these. So the contract is small:

     - `start` returns once the child exists (or is submitted), with a Handle. Its `ref` is plain JSON: after this
       coordinator's death another one finds the child again with `adopt(ref)`.
     - The child runs in the coordinator's working directory with `launch.environment` over the inherited environment,
       with stdout and stderr appended to `launch.log`, and outside of the coordinator's process group: Ctrl-C in the
       terminal reaches only the coordinator, which then asks its children to stop.
     - `poll` never blocks: None while the child lives, then an Exit, always the same one. The code is negative for a
       signal, and None if it cannot be known (the process of an adopted child is not our child).
     - `terminate` asks the child to save a checkpoint and end (SIGTERM, or the cluster's equivalent); `kill` ends it
       and everything it started, at once, or as soon as a cluster does so. Both do nothing to an ended child: a process
       id that the system has given to another process since is never signalled.
     - `wait` returns after at most `timeout_s`, earlier if a child may have ended.
     - `close` frees the engine's own resources. Children continue.
    """

    name: str
    outlives: ClassVar[bool] = False  # whether children continue without their coordinator

    @classmethod
    def configured(cls, settings: Mapping[str, str], folder: Path, at_once: int) -> Self:
        """The engine as --engine and --engine-set name it. Raises UserError if it cannot be used here.

        folder: on a disk that all machines share, for the engine's own files. at_once: most children at a time.
        """
        return cls()

    @abstractmethod
    def start(self, launch: Launch) -> Handle:
        """Start a child. Raises OSError if the machine cannot start one more."""

    def start_all(self, launches: Sequence[Launch]) -> list[Handle | OSError]:
        """Start several children; a cluster takes them in one request. An OSError stands for one that failed."""
        return [self._try_to_start(launch) for launch in launches]

    def _try_to_start(self, launch: Launch) -> Handle | OSError:
        try:
            return self.start(launch)
        except OSError as error:
            return error

    def waiting_for(self, handle: Handle) -> str:
        """Return the reason why a submitted child has not begun; "" for engines where children begin at once."""
        return ""

    @abstractmethod
    def adopt(self, ref: Mapping[str, Any]) -> Handle | None:
        """The child of a dead coordinator's `ref`; None if it has ended or cannot be found."""

    @abstractmethod
    def poll(self, handle: Handle) -> Exit | None:
        """Return the exit status of the child; None while it runs. Never blocks."""

    @abstractmethod
    def terminate(self, handle: Handle) -> None:
        """Ask the child to save a checkpoint and end. Does nothing to an ended child."""

    @abstractmethod
    def kill(self, handle: Handle) -> None:
        """End the child and everything it started. Does nothing to an ended child."""

    @abstractmethod
    def wait(self, timeout_s: float) -> None:
        """Return after at most `timeout_s`, earlier if a child may have ended."""

    @abstractmethod
    def close(self) -> None:
        """Free the engine's own resources; children continue."""


def child_environment(slot: Slot, threads: int) -> dict[str, str]:
    """The complete environment of a child on `slot`: devices, threads, import path."""
    environment = dict(os.environ)
    for name in _SCRUBBED:
        environment.pop(name, None)
    environment |= dict.fromkeys(_THREADS, str(threads))
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    if slot.device is not None:
        environment["CUDA_VISIBLE_DEVICES"] = slot.device
    environment.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # GPUs are numbered as by nvidia-smi
    environment["PYTHONUNBUFFERED"] = "1"
    environment["PYTHONPATH"] = os.pathsep.join(import_path())
    return environment


def import_path() -> list[str]:
    """The user's PYTHONPATH, and this program's folder if that is a checkout: a child must find the same code."""
    home = Path(experiments.__file__).parent.parent
    named = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    checkout = [] if home.name in ("site-packages", "dist-packages") else [str(home)]
    return list(dict.fromkeys([*(str(Path(entry).absolute()) for entry in named), *checkout]))
