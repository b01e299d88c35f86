"""When a child is asked to end: by a signal, or by its coordinator's end."""

import logging
import os
import signal
import threading
import time
from typing import Any

import psutil

TWICE_S = 1.0  # a cluster may deliver one request to stop twice within that time
log = logging.getLogger(__name__)


class StopRequest:
    """Set by SIGTERM or SIGINT, or when the coordinator is gone; a second signal ends the process at once.

    A cluster's coordinator may be on another machine, and may leave: there the spec names none.
    """

    def __init__(self, coordinator: dict[str, Any] | None) -> None:
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
        try:
            process = psutil.Process(coordinator["pid"])
            same = abs(process.create_time() - coordinator["create_time"]) < 1
        except psutil.Error:
            same = False
        while same:
            time.sleep(0.5)
            same = process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        log.warning("the coordinator is gone: ending after a checkpoint")
        self._event.set()
