"""The errors that cross rooms."""


class UserError(Exception):
    """A mistake of the user's: what is wrong, where, and what to do, in one paragraph. Exit code 2."""


class Damaged(UserError):  # noqa: N818 - the file's state
    """A file is torn, changed or missing: it is not what was written."""


class NeedsCorpus(UserError):  # noqa: N818 - what the settings need
    """The settings are for a larger corpus than the built-in one, and none was named: a plan is worth showing still."""


class DiskFull(UserError):  # noqa: N818 - what the disk is
    """There is no space left, or the quota is used up: trying again helps only once there is room."""


class Preempted(Exception):  # noqa: N818 - an outcome, not an error
    """The task saved its state and stopped because it was asked to."""

    def __init__(self, step: int | None = None) -> None:
        super().__init__(f"stopped at step {step}" if step is not None else "stopped")
        self.step = step


class Diverged(Exception):  # noqa: N818
    """The loss is NaN or infinite: training again would only repeat it."""


class OutOfMemory(Exception):  # noqa: N818
    """The device's memory did not suffice; a smaller micro-batch may."""
