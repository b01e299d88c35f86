"""What a trainer may raise: sorted by the harness, which decides what is tried again."""

from __future__ import annotations


class UserError(Exception):
    """A user's mistake: printed without a traceback."""


class Preempted(Exception):  # noqa: N818 - an outcome, not an error
    """The state is saved and the run ends on request."""

    def __init__(self, step: int | None = None) -> None:
        super().__init__("stopped" if step is None else f"stopped at step {step}")
        self.step = step


class Diverged(Exception):  # noqa: N818
    """The loss is NaN or infinite: training again would only repeat it."""


class OutOfMemory(Exception):  # noqa: N818
    """The device's memory was not enough."""
