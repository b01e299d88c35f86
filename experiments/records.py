"""Types and constants shared by several packages. Imports nothing of this project."""

import time
from enum import IntEnum, StrEnum

RUNNING = "RUNNING"
TRAINING = "training"  # the first part of a run; the parts of its evaluations have their own names
CONTEXT_GB = 0.6  # GPU memory of a process before it has any tensor: CUDA's context and loaded kernels
Member = tuple[str, str, str, str, str]  # study, profile, corpus, row, group


class ChildExit(IntEnum):
    """Exit codes of an attempt's process."""

    FINISHED = 0
    FAILED = 1
    PREEMPTED = 3
    DISK_FULL = 4


class FailureClass(StrEnum):
    """Class of an attempt's failure, from its "failed" event; it decides what follows (attempts/outcomes.py)."""

    OUT_OF_MEMORY = "out_of_memory"
    DISK_FULL = "disk_full"
    DIVERGED = "diverged"  # the loss or a weight is not finite
    DEVICE = "device"  # the GPU, its driver or its link to another GPU
    USER_ERROR = "user_error"  # the message says what to change
    BUG = "bug"

    @classmethod
    def _missing_(cls, value: object) -> "FailureClass":
        return cls.BUG  # a word of another version


# --- The time of day in records: the process's start time plus the time elapsed since then
# A machine's clock may be set while a run trains. With this clock, differences are still durations, and the events of
# an attempt are in order.


# a clock that also counts while the machine sleeps, like the time of day
_BEGAN = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def record_time() -> float:
    """Seconds since the epoch."""
    return _BEGAN + time.clock_gettime(time.CLOCK_BOOTTIME)
