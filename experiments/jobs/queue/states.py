"""The states of a job and the ways an attempt ends: one enum each."""

from enum import StrEnum


class State(StrEnum):
    """Where a job stands. waiting → running → finished | failed | cancelled; running → waiting after a kill."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self in (State.FINISHED, State.FAILED, State.CANCELLED)


class Outcome(StrEnum):
    """How one attempt ended; kept in the queue's history."""

    FINISHED = "finished"  # all it was asked for is there
    PREEMPTED = "preempted"  # stopped on request, after a checkpoint
    KILLED = "killed"  # gone without a word: SIGKILL, a crash, the kernel's out-of-memory killer
    HUNG = "hung"  # no sign of life for too long: stopped
    OUT_OF_MEMORY = "out_of_memory"
    DISK_FULL = "disk_full"
    DIVERGED = "diverged"
    USER_ERROR = "user_error"
    BUG = "bug"
    CANCELLED = "cancelled"
