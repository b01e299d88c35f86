"""State of a run in a store."""

from typing import NamedTuple


class RunState(NamedTuple):
    """State of a run and its requested evaluations in a store.

    state: missing, waiting, running, finished, failed, stale or damaged. stale: what other code has made of a trained
    run: TRAINING, and parts of evaluations ("decode", "score"). to_make: the part with which the missing evaluations of
    a trained run begin, "decode" or "score". made: the eval_ids that it has. to_read: those of them that are made again
    from what the run kept, without training, because the study reads other numbers now (Task.outdated). changed: what
    of the training code has changed, such as names of files (Task.changed_code).
    """

    state: str = "missing"
    stale: tuple[str, ...] = ()
    to_make: str = ""
    made: tuple[str, ...] = ()
    to_read: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
