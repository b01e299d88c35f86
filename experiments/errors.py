"""The program's errors, and the operating system's errors as messages.

Those that a user's trainer may raise are defined in experiments/client/ablations_task/errors.py, which imports nothing:
the client's code raises them in a trainer's process and in this one, where it changes the program's own networks.
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


class Damaged(UserError):  # noqa: N818 - the file's state
    """A file is incomplete, changed or missing."""


class NeedsCorpus(UserError):  # noqa: N818 - what the settings need
    """The settings need a larger corpus than the built-in one, but none was named. The plan can still be shown."""


class TrainerFailed(Exception):  # noqa: N818
    """A user's program failed, for its own reason.

    traceback: that program's, "" if none is known. reason: the message of a refused value, else "". signal: what killed
    it, 0 if nothing did.
    """

    def __init__(self, message: str, traceback: str, reason: str = "", signal: int = 0) -> None:
        super().__init__(message)
        self.traceback, self.reason, self.signal = traceback, reason, signal

    @property
    def is_value(self) -> bool:
        """Return whether the program refused a value."""
        return bool(self.reason)

    def frames(self, most: int) -> str:
        """The last lines of the traceback, without its head and its last line, which the message has."""
        return "\n".join([line for line in self.traceback.splitlines() if line.startswith(" ")][-most:])


@contextlib.contextmanager
def explain_os_errors(doing: str) -> Iterator[None]:
    """Turn errors that a user can fix, such as a full disk or missing permission, into UserError; others pass."""
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
