"""Runs that continue without this command, on a cluster or in a background process."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path

from experiments.errors import UserError, explain_os_errors
from experiments.jobs.coordinator.background import Background
from experiments.jobs.coordinator.reporter import Summary
from experiments.jobs.coordinator.work import work
from experiments.jobs.engines.by_name import load_engine
from experiments.jobs.engines.engine import import_path
from experiments.jobs.queue.job import State
from experiments.jobs.queue.queue import Queue
from experiments.store.layout import Store
from experiments.store.locks import Occupied
from experiments.tracking.mlflow import Tracker

# The engine whose runs another command can collect. Ray is not supported here, because only a command with the option
# `--address` knows the address of the Ray cluster.
DETACHED = "slurm"


def collect_detached(store: Store) -> None:
    """Record runs that ended on a cluster while no coordinator was running. Starts no run.

    Does nothing on a read-only disk or while another command works on the store.
    """
    if not store.queue_db.exists() or not os.access(store.state_dir, os.W_OK) or store.coordinator():
        return
    with Queue(store.queue_db, create=False) as queue:
        refs = [queue.job(row.run_id).ref or {} for row in queue.rows(State.RUNNING, 1)]
    if not any(ref.get("engine") == DETACHED for ref in refs):
        return
    with contextlib.suppress(UserError):
        engine = load_engine(DETACHED, {}, store.root, 1)
        work(store, [], tracker=Background(lambda: Tracker(store)), until="settled", engine=engine)


LOGS = "detached"  # the folder in the store for logs of background processes
TURN_S = 1.0  # seconds between two checks whether another coordinator works


def hand_over(store: Store) -> tuple[int, Path]:
    """Start this command again in a background process. Return its process id and its log.

    The process has a new session, so that it continues after its caller has ended.
    """
    log = store.root / LOGS / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    with explain_os_errors(f"write to {log.parent}"):
        log.parent.mkdir(exist_ok=True)
        with log.open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "ablations", sys.argv[1], "--in-turn", *sys.argv[2:]],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(import_path())},
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
    return process.pid, log


def in_turn(store: Store, run_ids: Collection[str], start: Callable[[], Summary]) -> Summary:
    """Work on these runs once no other coordinator works on the store.

    The other coordinator may train these runs too. If none of them is waiting or running any more, or if the store is
    drained, return without starting work.
    """
    while True:
        if not store.coordinator():
            with contextlib.suppress(Occupied):
                return start()
        with Queue(store.queue_db) as queue:
            queue.release_left(run_ids)
        time.sleep(TURN_S)
        with Queue(store.queue_db, create=False) as queue:
            states, drained = queue.states(), "drain" in queue.notes()
        mine = [states.get(run_id) for run_id in run_ids]
        if drained or not {State.WAITING, State.RUNNING} & set(mine):
            return Summary(left=mine.count(State.WAITING))
