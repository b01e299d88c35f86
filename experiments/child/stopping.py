"""How a child ends early: requests by a signal or by its coordinator's end, and the class of an error."""

import contextlib
import errno
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from experiments.errors import DiskFull, Diverged, OutOfMemory, UserError
from experiments.processes.identity import is_alive
from experiments.records import FailureClass

WATCH_EVERY_S = 0.5
TWICE_S = 1.0  # a cluster may deliver one request twice within this time
log = logging.getLogger(__name__)


class StopRequest:
    """Set by SIGTERM or SIGINT, or when the coordinator is gone; a second signal ends the process at once.

    A cluster's coordinator may be on another machine and may end; then the spec names none.
    """

    def __init__(self, coordinator: Mapping[str, Any] | None) -> None:
        self._event = threading.Event()
        self._signalled_at = 0.0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)
        if coordinator:
            threading.Thread(target=self._watch, args=(coordinator,), daemon=True).start()

    def __call__(self) -> bool:
        return self._event.is_set()

    def _signalled(self, number: int, _frame: object) -> None:
        if self._signalled_at and time.monotonic() - self._signalled_at > TWICE_S:
            os._exit(128 + number)
        self._signalled_at = self._signalled_at or time.monotonic()
        self._event.set()

    def _watch(self, coordinator: dict[str, Any]) -> None:
        while not _has_ended(coordinator):
            time.sleep(WATCH_EVERY_S)
        log.warning("the coordinator is gone: ending after a checkpoint")
        self._event.set()


def _has_ended(process: dict[str, Any]) -> bool:
    with contextlib.suppress(OSError):  # for example too many open files: checked again soon
        return not is_alive(process)
    return False


# --- The class of an error, from which the coordinator decides about another attempt


def failure_class(error: Exception) -> FailureClass:
    """The failure class of an error."""
    if isinstance(error, OutOfMemory | MemoryError) or _torch_ran_out(error) or _system_ran_out(error):
        return FailureClass.OUT_OF_MEMORY
    if isinstance(error, DiskFull) or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)):
        return FailureClass.DISK_FULL
    if isinstance(error, Diverged):
        return FailureClass.DIVERGED
    return FailureClass.USER_ERROR if isinstance(error, UserError) else FailureClass.BUG


def _system_ran_out(error: Exception) -> bool:
    """Whether the system had no memory for a file, a process, or a library that was imported late."""
    if isinstance(error, ImportError):
        return "failed to map segment from shared object" in str(error)  # glibc's loader gives no number
    return isinstance(error, OSError) and error.errno == errno.ENOMEM


def _torch_ran_out(error: Exception) -> bool:
    """Whether an allocation of torch failed, if the task has imported torch."""
    device = sys.modules.get("experiments.device")
    return device is not None and device.is_out_of_memory(error)
