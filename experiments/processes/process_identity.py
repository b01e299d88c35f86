"""Identify a process by its id and its start time in clock ticks since the machine's boot.

The system reuses process ids, so the id alone is not enough. The start time is read in ticks and not as time of day (as
in psutil), because the time of day changes when somebody sets the clock. Only this file reads the ticks and other
fields of /proc/PID/stat. This module does not import torch.
"""

import contextlib
import functools
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

STAT, TASKS = "/proc/{}/stat", "/proc/{}/task"
CHILDREN = f"{TASKS}/{{}}/children"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_STATE, _PARENT, _START_TICKS = 0, 1, 19  # fields 3, 4 and 22 of /proc/PID/stat, as indices after the name
_CPU_TICKS = slice(11, 15)  # fields 14 to 17: user and system time of the process, and of its ended children


class _Stat(NamedTuple):
    state: str
    parent: int
    start_ticks: int
    cpu_ticks: int


def identify(pid: int) -> dict[str, Any]:
    """Return the identity of a process as plain JSON, for `is_alive`.

    If the process has ended already, `is_alive` returns False for this identity.
    """
    stat = _read_stat(pid)
    return {"pid": pid, "start_ticks": stat.start_ticks if stat else 0, "boot_id": _boot_id()}


def is_alive(identity: Any) -> bool:
    """Return whether the process of `identify` is alive. A zombie, or another process with the same id, does not count.

    Raises OSError if /proc cannot be read at the moment.
    """
    if identity.get("boot_id") != _boot_id():
        return False
    stat = _read_stat(int(identity["pid"]))
    return stat is not None and stat.start_ticks == identity.get("start_ticks") and stat.state not in "ZX"


def descendants() -> list[int]:
    """Return the ids of all living descendants of this process, parents first, without zombies."""
    below = _children(os.getpid())
    for child in below:
        below += _children(child)
    return [child for child in below if (stat := _read_stat(child)) is not None and stat.state not in "ZX"]


def _children(pid: int) -> list[int]:
    """Return the ids of a process's children.

    The function reads the kernel's list, or /proc if the kernel has no such list (CONFIG_PROC_CHILDREN).
    """
    if Path(CHILDREN.format(os.getpid(), os.getpid())).exists():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            texts = [(thread / "children").read_bytes() for thread in Path(TASKS.format(pid)).iterdir()]
            return [int(child) for text in texts for child in text.split()]
        return []
    stats = {int(path.name): _read_stat(int(path.name)) for path in Path("/proc").glob("[0-9]*")}
    return [child for child, stat in stats.items() if stat is not None and stat.parent == pid]


def age_s() -> float:
    """Return the seconds since this process was started or forked."""
    stat = _read_stat(os.getpid())
    assert stat is not None
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - stat.start_ticks / os.sysconf("SC_CLK_TCK"))


def cpu_below_s() -> float:
    """Return the CPU seconds of the living descendants of this process, including those of their ended children."""
    stats = map(_read_stat, descendants())
    return sum(stat.cpu_ticks for stat in stats if stat is not None) / os.sysconf("SC_CLK_TCK")


def _read_stat(pid: int) -> _Stat | None:
    """Return fields of /proc/PID/stat; None if there is no such process.

    The process name, in parentheses, may itself contain blanks and parentheses.
    """
    try:
        text = Path(STAT.format(pid)).read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(b")") + 1 :].split()
    cpu_ticks = sum(map(int, fields[_CPU_TICKS]))
    return _Stat(fields[_STATE].decode(), int(fields[_PARENT]), int(fields[_START_TICKS]), cpu_ticks)


@functools.cache
def _boot_id() -> str:
    return BOOT_ID.read_text(encoding="ascii").strip() if BOOT_ID.exists() else ""
