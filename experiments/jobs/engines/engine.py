"""The interface `Engine`, which decides where children run. tests/conformance/test_engines.py checks every engine."""

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import experiments
from experiments.jobs.devices.slots import Slot

# -P: a file in the working directory, such as queue.py, never replaces a module of Python or of this program
CHILD = (sys.executable, "-P", "-m", "experiments.child.run")
_SCRUBBED = ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True)
class Launch:
    """The command, environment, log file and slot of an attempt that is about to start."""

    argv: Sequence[str]  # the whole command
    environment: Mapping[str, str]  # the whole environment
    log: Path
    slot: Slot  # resources requested from a cluster; other engines use `environment`


@dataclass(frozen=True)
class Handle:
    """A started child. `ref` is stored as JSON. With `ref`, a later coordinator can adopt the child."""

    ref: Mapping[str, Any]


@dataclass(frozen=True)
class Exit:
    """The end of a child."""

    code: int | None  # exit status: 0 to 255, negative for a signal, None if unknown
    withdrawn: str = ""  # reason why the attempt was withdrawn before it started; "" if it was not


class Engine(ABC):
    """Starts and watches children.

    An engine starts the child program of one attempt on one slot, and reports when this program has ended. An engine
    knows nothing about runs, results or retries. With every engine, the child writes events to its attempt's folder,
    and the coordinator bases its decisions on these events. The interface:

     - `start` returns a Handle once the child exists (or is submitted to a cluster). The `ref` of the handle is plain
       JSON. After the death of this coordinator, another coordinator finds the child with `adopt(ref)`.
     - The child runs in the coordinator's working directory. The child's environment is the coordinator's environment,
       updated with `launch.environment`. The child's stdout and stderr are appended to `launch.log`. The child is
       outside of the coordinator's process group, so Ctrl-C in the terminal reaches only the coordinator, which then
       asks its children to stop.
     - `poll` never blocks. It returns None while the child lives, and after that always the same Exit. The exit code is
       negative for a signal. The code is None if it is unknown, for example because an adopted process is not a child
       process of this process.
     - `terminate` asks the child to save a checkpoint and end (SIGTERM, or the equivalent of a cluster). `kill` ends
       the child and all processes that it started, at once or as soon as the cluster does so. `terminate` and `kill` do
       nothing if the child has ended, so the engine never sends a signal to another process with the same process id.
     - `wait` returns after at most `timeout_s`, and earlier if a child may have ended.
     - `close` frees the resources of the engine. Children continue.
    """

    name: str
    outlives: ClassVar[bool] = False  # whether children continue without their coordinator

    @classmethod
    def configured(cls, settings: Mapping[str, str], folder: Path, at_once: int) -> Self:
        """Return the engine with the settings of --engine-set. Raise UserError if it cannot be used here.

        folder: a folder on a disk that all machines share, for files of the engine.
        at_once: largest number of children at a time.
        """
        return cls()

    @abstractmethod
    def start(self, launch: Launch) -> Handle:
        """Start a child. Raise OSError if the machine cannot start another one."""

    def start_all(self, launches: Sequence[Launch]) -> list[Handle | OSError]:
        """Start several children, and return a Handle for each of them, or an OSError if the child could not start.

        A cluster takes all children in one request.
        """
        return [self._try_to_start(launch) for launch in launches]

    def _try_to_start(self, launch: Launch) -> Handle | OSError:
        try:
            return self.start(launch)
        except OSError as error:
            return error

    def waiting_for(self, handle: Handle) -> str:
        """Return the reason why a submitted child has not begun; "" if it has begun or the reason is unknown."""
        return ""

    @abstractmethod
    def adopt(self, ref: Mapping[str, Any]) -> Handle | None:
        """Return the child that an earlier coordinator started; None if it has ended or cannot be found.

        ref: the `Handle.ref` that the earlier coordinator recorded.
        """

    @abstractmethod
    def poll(self, handle: Handle) -> Exit | None:
        """Return the exit status of the child; None while it runs. Never block."""

    @abstractmethod
    def terminate(self, handle: Handle) -> None:
        """Ask the child to save a checkpoint and end. Do nothing if the child has ended."""

    @abstractmethod
    def kill(self, handle: Handle) -> None:
        """End the child and all processes that it started. Do nothing if the child has ended."""

    @abstractmethod
    def wait(self, timeout_s: float) -> None:
        """Return after at most `timeout_s`, and earlier if a child may have ended."""

    @abstractmethod
    def close(self) -> None:
        """Free the resources of the engine. Children continue."""


def child_environment(slot: Slot, threads: int) -> dict[str, str]:
    """Return the complete environment of a child on `slot`: devices, threads, import path."""
    environment = dict(os.environ)
    for name in _SCRUBBED:
        environment.pop(name, None)
    environment |= dict.fromkeys(_THREADS, str(threads))
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    if slot.device is not None:
        environment["CUDA_VISIBLE_DEVICES"] = slot.device
    environment.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # GPUs are numbered as in nvidia-smi
    environment["PYTHONUNBUFFERED"] = "1"
    environment["PYTHONPATH"] = os.pathsep.join(import_path())
    return environment


def import_path() -> list[str]:
    """Return the folders in which a child finds the code that this process uses.

    The folders are the entries of the user's PYTHONPATH, and this program's folder unless it is an installed package.
    """
    home = Path(experiments.__file__).parent.parent
    named = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    checkout = [] if home.name in ("site-packages", "dist-packages") else [str(home)]
    return list(dict.fromkeys([*(str(Path(entry).absolute()) for entry in named), *checkout]))
