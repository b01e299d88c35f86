"""The errors of this program, and messages for errors of the operating system.

The errors that a user's trainer may raise are defined in experiments/client/ablations_task/errors.py, because the
process of a trainer cannot import this module.
"""

import contextlib
import errno
from collections.abc import Iterator

from experiments.client.ablations_task.errors import DeviceFailed as DeviceFailed
from experiments.client.ablations_task.errors import DiskFull as DiskFull
from experiments.client.ablations_task.errors import Diverged as Diverged
from experiments.client.ablations_task.errors import OutOfMemory as OutOfMemory
from experiments.client.ablations_task.errors import Preempted as Preempted
from experiments.client.ablations_task.errors import UserError as UserError
from experiments.client.ablations_task.errors import failure_class as failure_class


class Damaged(UserError):  # noqa: N818 - the state of the file
    """A file is incomplete, changed or missing."""


class NeedsCorpus(UserError):  # noqa: N818 - the need of the settings
    """The study needs a larger corpus than the built-in one, but names none. The plan can still be shown."""


class TrainerFailed(Exception):  # noqa: N818
    """A user's trainer failed because of an error in its code or its settings.

    traceback: the traceback of the trainer; "" if it is unknown.
    reason: the message of the trainer if it refused a value; otherwise "".
    signal: the number of the signal that killed the trainer; otherwise 0.
    """

    def __init__(self, message: str, traceback: str, reason: str = "", signal: int = 0) -> None:
        super().__init__(message)
        self.traceback, self.reason, self.signal = traceback, reason, signal

    @property
    def is_value(self) -> bool:
        """Whether the trainer refused a value."""
        return bool(self.reason)

    def frames(self, most: int) -> str:
        """Return the last `most` lines of the traceback's frames, without its first line and without the message."""
        return "\n".join([line for line in self.traceback.splitlines() if line.startswith(" ")][-most:])


@contextlib.contextmanager
def explain_os_errors(doing: str) -> Iterator[None]:
    """Turn errors that a user can fix, such as a full disk, into UserError. Other errors are raised unchanged.

    doing: what failed, as in "Could not {doing}".
    """
    remedies = {
        errno.ENOSPC: "there is no space left on the disk, or no inode (`df -i`): free some space, or name another "
        "folder with --store",
        errno.EDQUOT: "your disk quota is used up: free some space, or name another folder with --store",
        errno.EROFS: "the disk is read-only: name another folder with --store",
        errno.EACCES: "permission is denied: check the folder's owner and mode, or name another folder with --store",
        errno.EPERM: "the operation is not permitted: check the folder's owner and mode, or name another folder",
        errno.ENOTDIR: "a part of the path is a file, not a folder: name another folder with --store",
        errno.ENAMETOOLONG: "the name is too long: use a shorter one",
        errno.EEXIST: "there is a file instead of a folder: move it away, or name another folder with --store",
        errno.EISDIR: "there is a folder instead of a file: move it away, or name another folder with --store",
    }
    try:
        yield
    except OSError as error:
        if error.errno not in remedies:
            raise
        kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else UserError
        where = f" ({error.filename})" if error.filename else ""
        raise kind(f"Could not {doing}: {remedies[error.errno]}{where}. Finished results are not lost.") from error
