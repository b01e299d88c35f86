"""Enums for the states of a job and the outcomes of an attempt."""

from enum import StrEnum

from experiments.records import FailureClass


class State(StrEnum):
    """State of a job: waiting → running → finished | failed | cancelled; running → waiting to be resumed."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether the job has ended: finished, failed or cancelled."""
        return self in (State.FINISHED, State.FAILED, State.CANCELLED)


class Outcome(StrEnum):
    """How one attempt ended; kept in the queue's history."""

    FINISHED = "finished"  # everything requested is done
    PREEMPTED = "preempted"  # stopped on request, after a checkpoint
    KILLED = "killed"  # ended without a message: SIGKILL, a crash, the kernel's out-of-memory killer
    HUNG = "hung"  # stopped after no events for too long
    OUT_OF_MEMORY = FailureClass.OUT_OF_MEMORY
    DISK_FULL = FailureClass.DISK_FULL
    DIVERGED = FailureClass.DIVERGED
    USER_ERROR = FailureClass.USER_ERROR
    BUG = FailureClass.BUG
    CANCELLED = "cancelled"
