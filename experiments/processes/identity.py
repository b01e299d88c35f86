"""Which process is meant: known by its id and by when it started, in clock ticks since the machine's boot.

The system gives an id to another process sooner or later. The time of day at which a process was created tells the two
apart only as long as nobody sets the clock: psutil adds the ticks to the boot's time of day, and that moves with every
step. Ticks do not. This file alone reads them. Imports no torch, and psutil only where there is no /proc.
"""

import functools
from pathlib import Path
from typing import Any, NamedTuple

PROC = Path("/proc/self/stat")
STAT = "/proc/{}/stat"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_CLOCK_S = 2.0  # two readings of one creation's time of day may differ by a small step of the clock
_STATE, _PARENT, _START_TICKS = 0, 1, 19  # fields 3, 4 and 22 of /proc/PID/stat, counted behind the name


class _Stat(NamedTuple):
    state: str
    parent: int
    start_ticks: int


def identify(pid: int) -> dict[str, Any]:
    """A process as plain JSON, for `is_alive`: by ticks, or by time of day on a system without /proc.

    One that has ended already never reads as alive.
    """
    if not PROC.exists():
        return {"pid": pid, "create_time": _create_time(pid) or 0.0}
    stat = _read_stat(pid)
    return {"pid": pid, "start_ticks": stat.start_ticks if stat else 0, "boot_id": _boot_id()}


def is_alive(identity: Any) -> bool:
    """Whether the process that `identify` named lives: no zombie, and its id not another's by now.

    An identity that a former version wrote has a time of day only. Raises OSError where it cannot be read just now.
    """
    pid = int(identity["pid"])
    if "start_ticks" not in identity:
        created = _create_time(pid)
        return created is not None and abs(created - float(identity.get("create_time", 0.0))) < _CLOCK_S
    if identity["boot_id"] != _boot_id():
        return False
    stat = _read_stat(pid)
    return stat is not None and stat.start_ticks == identity["start_ticks"] and stat.state not in "ZX"


def descendants(pid: int) -> list[int]:
    """What a process has started and what that has, parents first; without zombies. Empty where there is no /proc."""
    found = {int(path.name): _read_stat(int(path.name)) for path in Path("/proc").glob("[0-9]*")}
    children: dict[int, list[int]] = {}
    for child, stat in found.items():
        if stat is not None:
            children.setdefault(stat.parent, []).append(child)
    below = list(children.get(pid, ()))
    for child in below:
        below += children.get(child, ())
    return [child for child in below if (stat := found[child]) is not None and stat.state not in "ZX"]


def _read_stat(pid: int) -> _Stat | None:
    """None if there is no such process. The name, in parentheses, may itself hold spaces and parentheses."""
    try:
        text = Path(STAT.format(pid)).read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(b")") + 1 :].split()
    return _Stat(fields[_STATE].decode(), int(fields[_PARENT]), int(fields[_START_TICKS]))


@functools.cache
def _boot_id() -> str:
    return BOOT_ID.read_text(encoding="ascii").strip() if BOOT_ID.exists() else ""


def _create_time(pid: int) -> float | None:
    """Seconds since the epoch; None for a process that has ended."""
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return None
