"""The errors that a trainer may raise, their failure classes, and their form as JSON.

The failure class decides whether the coordinator starts another attempt.
"""

from __future__ import annotations

import errno
import traceback
from pathlib import Path
from typing import Any

from .changes import folders


class UserError(Exception):
    """A mistake of the user. The message says what is wrong, where, and what to do. No traceback is printed."""

    def _render_traceback_(self) -> list[str]:
        """Return the paragraph that IPython and notebooks show in place of a traceback."""
        return [f"{type(self).__name__}: {self}"]


class DiskFull(UserError):  # noqa: N818 - the state of the disk
    """The disk is full or the quota is used up. Another attempt can succeed only after space has been freed."""


class Preempted(Exception):  # noqa: N818 - an outcome, not an error
    """The run ends because a stop was requested. step: the step of the checkpoint that was saved, None if unknown."""

    def __init__(self, step: int | None = None) -> None:
        super().__init__("stopped" if step is None else f"stopped at step {step}")
        self.step = step


class Diverged(Exception):  # noqa: N818
    """The loss is NaN or infinite. The run is not trained again, because the result would be the same."""


class OutOfMemory(Exception):  # noqa: N818
    """The memory of the device was not sufficient. A smaller micro-batch may fit."""


class DeviceFailed(Exception):  # noqa: N818
    """The GPU, its driver or its link to another GPU failed. An attempt on another GPU may succeed."""


# Parts of error messages of torch, CUDA and its libraries if there is not enough memory.
_NO_MEMORY = (
    "can't allocate memory", "not enough memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED", "CUDNN_STATUS_ALLOC_FAILED", "DEVICE_ALLOCATION_FAILED",
)  # fmt: skip
# Parts of error messages if the GPU, its driver or its link to another GPU failed.
_DEVICE_FAILED = (
    "uncorrectable", "illegal memory access", "busy or unavailable", "NCCL error", "fallen off the bus",
    "GPU is lost", "unspecified launch failure", "MPS server",
)  # fmt: skip


HERE = Path(__file__).resolve().parent
LONGEST_MESSAGE, LONGEST_TRACEBACK = 10_000, 100_000  # maximum lengths in characters


def failure(error: BaseException) -> dict[str, Any]:
    """Return an error as JSON: its class, message, line in the user's code, and traceback.

    The traceback has no frames of this program.
    """
    if isinstance(error, Preempted):
        return {"class": "preempted", "step": error.step}
    shown = traceback.TracebackException(type(error), error, error.__traceback__)
    _without_ours(shown)
    place = [(frame.filename, frame.lineno) for frame in shown.stack][-1:]
    if isinstance(error, SyntaxError):
        place = [(str(error.filename), error.lineno)]
    return {
        "class": failure_class(error, str(shown)),
        "type": type(error).__name__,
        "is_value": isinstance(error, (ValueError, AssertionError)),
        "message": _cut(str(shown), LONGEST_MESSAGE),  # str(error) may raise an error
        "place": place[0] if place else None,
        "traceback": _cut("".join(shown.format()), LONGEST_TRACEBACK),
    }


def _cut(text: str, longest: int) -> str:
    """Return the text. If it has more than `longest` characters, replace its middle by a note."""
    left, half = len(text) - longest, longest // 2
    return text if left <= 0 else f"{text[:half]}\n… {left:,} characters left out …\n{text[-half:]}"


def _without_ours(shown: traceback.TracebackException | None, depth: int = 0) -> None:
    if shown is None or depth > 20:
        return
    ours = {HERE, *map(Path, folders())}
    frames = [f for f in shown.stack if ours.isdisjoint(Path(f.filename).parents)]
    frames = [f for f in frames if not f.filename.startswith("<frozen importlib") and "importlib/" not in f.filename]
    shown.stack = traceback.StackSummary.from_list(frames)
    _without_ours(shown.__cause__, depth + 1)
    _without_ours(shown.__context__, depth + 1)


def failure_class(error: BaseException, message: str = "") -> str:
    """Return the failure class for the coordinator. message: the error's text; str(error) is used if it is empty."""
    message = message or str(error)
    number = error.errno if isinstance(error, OSError) else None
    if (
        isinstance(error, (MemoryError, OutOfMemory))
        or type(error).__name__ == "OutOfMemoryError"  # the class is defined by torch
        or (isinstance(error, RuntimeError) and any(word in message for word in _NO_MEMORY))
        # There was no memory to load a library. The ImportError of glibc's loader has no errno.
        or (isinstance(error, ImportError) and "failed to map segment from shared object" in message)
        or number == errno.ENOMEM
    ):
        return "out_of_memory"
    if isinstance(error, DiskFull) or number in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)):
        return "disk_full"
    if isinstance(error, Diverged):
        return "diverged"
    if isinstance(error, DeviceFailed) or (
        isinstance(error, RuntimeError) and any(word in message for word in _DEVICE_FAILED)
    ):
        return "device"
    return "user_error" if isinstance(error, UserError) else "bug"
