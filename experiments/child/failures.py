"""The class of an error, by which the coordinator decides."""

import errno
import sys

from experiments.errors import DiskFull, Diverged, OutOfMemory, UserError
from experiments.records import FailureClass


def failure_class(error: Exception) -> FailureClass:
    """The failure class of an error."""
    if isinstance(error, OutOfMemory | MemoryError) or _torch_ran_out(error) or _system_ran_out(error):
        return FailureClass.OUT_OF_MEMORY
    if isinstance(error, DiskFull) or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)):
        return FailureClass.DISK_FULL
    if isinstance(error, Diverged):
        return FailureClass.DIVERGED
    return FailureClass.USER_ERROR if isinstance(error, UserError) else FailureClass.BUG


def _system_ran_out(error: Exception) -> bool:
    """Whether the system had no memory for a file, a process, or a library that was imported late."""
    if isinstance(error, ImportError):
        return "failed to map segment from shared object" in str(error)  # glibc's loader gives no number
    return isinstance(error, OSError) and error.errno == errno.ENOMEM


def _torch_ran_out(error: Exception) -> bool:
    """Whether an allocation of torch failed, if the task has imported torch."""
    device = sys.modules.get("experiments.device")
    return device is not None and device.is_out_of_memory(error)
