"""Stop a child early: after a signal, or when its coordinator has ended."""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Mapping
from typing import Any

from experiments.processes.process_identity import is_alive

WATCH_EVERY_S = 0.5
TWICE_S = 1.0  # seconds; a second signal within this time is the same request, because a cluster may send two signals
log = logging.getLogger(__name__)


class StopRequest:
    """A request to stop. The child calls this object to find out whether it must stop.

    SIGTERM, SIGINT or the end of the coordinator sets the request. A second signal ends the process immediately.

    coordinator: the identity of the coordinator's process; None if the child continues without its coordinator. A
        child on a cluster continues, because its coordinator may be on another machine.
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
        while True:
            with contextlib.suppress(OSError):  # for example, too many open files; the next iteration checks again
                if not is_alive(coordinator):
                    break
            time.sleep(WATCH_EVERY_S)
        log.warning("the coordinator is gone: ending after a checkpoint")
        self._event.set()
