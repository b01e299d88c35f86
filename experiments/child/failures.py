"""The class of an error, by which the coordinator decides."""

import errno
import sys

from experiments.errors import DiskFull, Diverged, OutOfMemory, UserError


def failure_class(error: Exception) -> str:
    """The failure class of an error: out_of_memory, disk_full, diverged, user_error or bug."""
    if isinstance(error, OutOfMemory | MemoryError) or _torch_ran_out(error):
        return "out_of_memory"
    if isinstance(error, DiskFull) or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)):
        return "disk_full"
    if isinstance(error, Diverged):
        return "diverged"
    return "user_error" if isinstance(error, UserError) else "bug"


def _torch_ran_out(error: Exception) -> bool:
    """Whether an allocation of torch failed, if the task has imported torch."""
    device = sys.modules.get("experiments.device")
    return device is not None and device.is_out_of_memory(error)
