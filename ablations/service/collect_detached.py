"""Collect the results of runs that were left to a cluster (`work --detach`): most commands do so first."""

import os

from experiments.errors import UserError
from experiments.jobs.queue.queue import Queue
from experiments.jobs.queue.states import State
from experiments.store.layout import Store

DETACHED = ("slurm",)  # not Ray: only `work --engine ray --address …` knows the cluster's address


def collect_detached(store: Store) -> None:
    """Record runs that ended on a cluster while no coordinator was running. Starts no run.

    Does nothing on a read-only disk or while another command works on the store.
    """
    if not store.queue_db.exists() or not os.access(store.state_dir, os.W_OK) or store.coordinator():
        return
    names = _engines(store)
    if not names:
        return
    from experiments.jobs.coordinator.background import Background
    from experiments.jobs.coordinator.work import work
    from experiments.jobs.engines.load import load_engine
    from experiments.tracking.mlflow import Tracker

    engine = load_engine("slurm", {}, store.root, 1)
    try:
        work(store, [], tracker=Background(lambda: Tracker(store)), until="settled", engine=engine)
    except UserError:
        return


def _engines(store: Store) -> set[str]:
    """The clusters that have runs of this store."""
    with Queue(store.queue_db, create=False) as queue:
        running = [row.run_id for row in queue.rows(State.RUNNING, 1)]
        refs = [queue.job(run_id).ref or {} for run_id in running]
    return {str(ref.get("engine")) for ref in refs} & set(DETACHED)
