"""Rows that share a run fail or finish according to their own evaluations."""

from pathlib import Path

import pytest

from ablations.service.run_states import run_states
from experiments.jobs.queue.job import State
from experiments.jobs.queue.work_queue import WorkQueue
from experiments.run_spec import NO_TRAINER
from experiments.store.checksummed import write_json
from experiments.store.layout import Store
from tests.made_jobs import evaluation, made_job
from tests.unit.ablations.conftest import FakeTask

RUN, ASKED, OTHER = "a" * 16, "1" * 16, "2" * 16


@pytest.mark.parametrize("trained", [True, False])
def test_a_row_that_was_never_asked_for_has_not_failed(tmp_path: Path, task: FakeTask, trained: bool) -> None:
    """A failed evaluation fails the rows that print it; a failed training fails all rows that share it."""
    store = Store.open(tmp_path / "store")
    work_queue = WorkQueue(store.queue_db)
    work_queue.enqueue([made_job(RUN, "translation", evaluations=(evaluation(ASKED),))])
    work_queue.end_waiting([RUN], State.FAILED, "why", "user_error")
    work_queue.close()
    if trained:
        store.run_folder(RUN).mkdir(parents=True)
        write_json(store.run_folder(RUN) / "result.json", {"run_id": RUN, "attempt": 1})
    state_of = run_states(store, task)
    left = "score" if trained else ""  # the fake task has no part that decodes
    asked, both, other = (state_of(RUN, ids, NO_TRAINER) for ids in ([ASKED], [OTHER, ASKED], [OTHER]))
    assert asked == both and (asked.state, asked.to_make) == ("failed", left)
    assert (other.state, other.to_make) == ("missing" if trained else "failed", left)
    assert asked.stale == (("training",) if trained else ())  # its record names no code
