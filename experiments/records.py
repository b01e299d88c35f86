"""Types and constants shared by several packages. This module imports nothing of this project."""

import time
from enum import IntEnum, StrEnum

RUNNING = "RUNNING"
TRAINING = "training"  # name of the training among the parts of a run; the other parts are those of its evaluations
CONTEXT_GB = 0.6  # GPU memory of CUDA's context and kernels, which a process uses before its first tensor
Member = tuple[str, str, str, str, str]  # study, profile, corpus, row, group


class ChildExit(IntEnum):
    """Exit codes of an attempt's process."""

    FINISHED = 0
    FAILED = 1
    PREEMPTED = 3
    DISK_FULL = 4


class FailureClass(StrEnum):
    """Class of an attempt's failure. The coordinator uses it to decide whether to try again (attempts/outcomes.py)."""

    OUT_OF_MEMORY = "out_of_memory"
    DISK_FULL = "disk_full"
    DIVERGED = "diverged"  # the loss or a weight is not finite
    DEVICE = "device"  # the GPU, its driver or its link to another GPU failed
    USER_ERROR = "user_error"  # a mistake of the user; the message says what to change
    BUG = "bug"

    @classmethod
    def _missing_(cls, value: object) -> "FailureClass":
        return cls.BUG  # another version of the program wrote an unknown class


# A recorded time is the start time of the process plus the time that has elapsed since then. The system clock may be
# set while a run trains. Setting it does not change the differences between recorded times or the order of the events.


# CLOCK_BOOTTIME also advances while the machine is suspended, as the time of day does.
_BEGAN = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def record_time() -> float:
    """Return the present time in seconds since the epoch. The time never decreases within a process."""
    return _BEGAN + time.clock_gettime(time.CLOCK_BOOTTIME)
