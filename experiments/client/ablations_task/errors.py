"""What a trainer may raise, sorted by the harness, which decides what is tried again; and any error as JSON."""

from __future__ import annotations

import errno
import traceback
from pathlib import Path
from typing import Any


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


# --- An error as JSON


HERE = Path(__file__).resolve().parent
LONGEST_MESSAGE, LONGEST_TRACEBACK = 10_000, 100_000  # characters


def failure(error: BaseException) -> dict[str, Any]:
    """An error as JSON: its class, its message, the user's line, and the traceback without our frames."""
    if isinstance(error, Preempted):
        return {"class": "preempted", "step": error.step}
    shown = traceback.TracebackException(type(error), error, error.__traceback__)
    _without_ours(shown)
    place = [(frame.filename, frame.lineno) for frame in shown.stack][-1:]
    if isinstance(error, SyntaxError):
        place = [(str(error.filename), error.lineno)]
    return {
        "class": _class(error, str(shown)),
        "type": type(error).__name__,
        "is_value": isinstance(error, (ValueError, AssertionError)),
        "message": _cut(str(shown), LONGEST_MESSAGE),  # not that of the error, whose own function may fail
        "place": place[0] if place else None,
        "traceback": _cut("".join(shown.format()), LONGEST_TRACEBACK),
    }


def _cut(text: str, longest: int) -> str:
    """The begin and the end of a text that is too long for a message."""
    left, half = len(text) - longest, longest // 2
    return text if left <= 0 else f"{text[:half]}\n… {left:,} characters left out …\n{text[-half:]}"


def _without_ours(shown: traceback.TracebackException | None, depth: int = 0) -> None:
    if shown is None or depth > 20:
        return
    frames = [f for f in shown.stack if Path(f.filename).parent != HERE]
    frames = [f for f in frames if not f.filename.startswith("<frozen importlib") and "importlib/" not in f.filename]
    shown.stack = traceback.StackSummary.from_list(frames)
    _without_ours(shown.__cause__, depth + 1)
    _without_ours(shown.__context__, depth + 1)


def _class(error: BaseException, message: str) -> str:
    if isinstance(error, UserError):
        return "user_error"
    if isinstance(error, Diverged):
        return "diverged"
    words = ("can't allocate memory", "not enough memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
    ran_out = type(error).__name__ == "OutOfMemoryError" or isinstance(error, (MemoryError, OutOfMemory))
    if ran_out or (isinstance(error, RuntimeError) and any(word in message for word in words)):
        return "out_of_memory"
    full = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
    return "disk_full" if isinstance(error, OSError) and error.errno in full else "bug"
