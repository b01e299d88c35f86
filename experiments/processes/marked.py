"""End what an attempt left behind: processes that carry its mark in their environment.

The keeper (keeper.py) ends all processes below a command. One that killed its keeper, or left it in another way, still
has the environment with which it was started. What cleared its environment is not found.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

MARK = "ABLATIONS_ATTEMPT"  # in the environment of a child: the folder of its attempt
LIMIT_S = 5.0  # while ended processes disappear, and those that they have just started are found


def end_marked(attempt: Path) -> list[int]:
    """Kill the processes of an attempt that outlived its child; returns their ids. This process is none of them."""
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
    except OSError:  # it has ended, or is another user's
        return False


def _kill(pid: int, mark: bytes) -> bool:
    """Kill a process if it is still the one with the mark: its id may have been given to another."""
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            if _has(pid, mark):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                return True
        finally:
            os.close(handle)
    return False
