"""The state of a run in a store."""

from typing import NamedTuple


class RunState(NamedTuple):
    """The state of a run and of its requested evaluations in a store.

    state: "missing", "waiting", "running", "interrupted", "finished", "failed", "stale" or "damaged".
    stale: the parts that were made by other code than the present code: TRAINING, or parts of evaluations such as
        "decode" and "score". It also contains TRAINING if the weights of ensemble members or of the parent run have
        changed.
    to_make: the first part, "decode" or "score", of the missing evaluations of a trained run; "" if none is missing.
    made: if some evaluations are missing, the eval_ids of the others.
    to_read: the eval_ids of evaluations that must be made again from the stored output of the trainer, because the
        study now reads other numbers from it (Task.outdated). They need no training.
    changed: changes of the training code since the run, such as names of changed files (Task.changed_code).
    """

    state: str = "missing"
    stale: tuple[str, ...] = ()
    to_make: str = ""
    made: tuple[str, ...] = ()
    to_read: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
