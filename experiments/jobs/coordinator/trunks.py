"""Whether a branch can start: its trunk must have left the checkpoint with which it begins."""

from experiments.identity import trunk_in
from experiments.jobs.queue.job import Job
from experiments.jobs.queue.ledger import Ledger
from experiments.jobs.queue.states import State
from experiments.store.layout import Store
from experiments.training.checkpoints import retention
from experiments.training.checkpoints.trunk import checkpoint_of


def no_trunk(store: Store, ledger: Ledger, job: Job, code: str) -> str:
    """Why a branch waits although its trunk has ended; "" for one that can begin or go on, and for other runs.

    A trunk that failed after that step is no reason: its checkpoint is what an undisturbed one would have left.
    """
    trunk = trunk_in(job.inputs)
    if trunk is None or checkpoint_of(store, trunk, code) is not None or _begun(store, job.run_id):
        return ""
    name, state = trunk.run_id, "is not queued"
    for found in ledger.status():
        if found.run_id == trunk.run_id:
            rows = ", ".join(dict.fromkeys(member.row for member in found.members))
            name = f"{rows} (seed {found.seed}, run {trunk.run_id})" if rows else name
            state = {State.FAILED: "has failed", State.CANCELLED: "was cancelled"}.get(found.state, "has ended")
    return (
        f"held: it begins with {name} after step {trunk.step:,}, which {state} without a checkpoint of that step by "
        "the present code. `ablations run` trains that run again, and then this one"
    )


def _begun(store: Store, run_id: str) -> bool:
    """Whether an attempt of the branch has left a checkpoint of its own."""
    return any(retention.all_of(store.attempt_folder(run_id, number)) for number in store.attempts(run_id))
