"""Kill the processes that an attempt left behind. Their environment variables contain the attempt's mark.

The keeper (keeper.py) ends all processes below a command. A process that killed its keeper, or escaped it in another
way, still has the environment with which it was started. A process that cleared its environment is not found.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

MARK = "ABLATIONS_ATTEMPT"  # environment variable of a child with the folder of its attempt
LIMIT_S = 5.0  # seconds; the search is repeated for at most this time, to find processes that were started meanwhile


def end_marked(attempt: Path) -> list[int]:
    """Kill the processes of an attempt that outlived its child, and return their ids. This process is not killed."""
    mark = f"{MARK}={attempt}".encode(errors="surrogateescape")
    ended: dict[int, None] = {}
    until = time.monotonic() + LIMIT_S
    while (found := _with(mark)) and time.monotonic() < until:
        for pid in found:
            if _kill(pid, mark):
                ended[pid] = None
        time.sleep(0.02)
    return list(ended)


def _with(mark: bytes) -> list[int]:
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - thousands of names
    return [pid for pid in pids if pid != os.getpid() and _has(pid, mark)]


def _has(pid: int, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            return mark in file.read().split(b"\0")
    except OSError:  # the process has ended, or belongs to another user
        return False


def _kill(pid: int, mark: bytes) -> bool:
    """Kill a process if it still has the mark. Another process may have its id by now."""
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            if _has(pid, mark):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                return True
        finally:
            os.close(handle)
    return False
