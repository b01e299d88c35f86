"""Confine errors in one run's folder to that run."""

import errno
import logging

from experiments.errors import DiskFull, UserError
from experiments.jobs.queue.job import Ending
from experiments.jobs.queue.states import Outcome, State

WHOLE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
log = logging.getLogger(__name__)


def ending(error: Exception, run_id: str) -> Ending:
    """The ending of a run with unusable files. Raises the error again if it concerns the whole disk."""
    if isinstance(error, DiskFull) or (isinstance(error, OSError) and error.errno in WHOLE_DISK):
        raise error
    if isinstance(error, UserError):
        return Ending(State.FAILED, Outcome.USER_ERROR, error=str(error))
    log.info("the files of %s", run_id, exc_info=error)
    return Ending(
        State.FAILED,
        Outcome.BUG,
        error=f"The files in runs/{run_id} of the store cannot be used ({type(error).__name__}: {error}). Restore the "
        "folder from a backup or move it away, then `ablations retry`.",
    )
