"""Prepare the corpora that runs share.

Each corpus is prepared once, before its first run starts. One corpus is prepared at a time, while other runs train.
"""

import logging
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from experiments.errors import UserError
from experiments.jobs.queue.job import Job, Outcome
from experiments.run_spec import RunSpec
from experiments.tasks.base import Task
from experiments.tasks.load import validated

log = logging.getLogger(__name__)

TaskOf = Callable[[RunSpec], Task]  # task_of in experiments/tasks/load.py; raises UserError if a task cannot be loaded


class Preparation:
    """Runs `task.prepare` in a thread. `collect` returns the outcome.

    The thread is a daemon, and a coordinator that ends does not wait for it. So `prepare` may be interrupted at any
    point.
    """

    def __init__(self, task_of: TaskOf | None, store: Path) -> None:
        self._task_of = task_of
        self._store = store
        self._ready: set[str] = set()
        self.current = ""  # the inputs_key in preparation
        self._done: tuple[str, str, str] | None = None  # inputs_key, error class, message
        self.doing = ""

    def ready(self, inputs_key: str) -> bool:
        """Return whether the inputs are prepared. If this process prepares nothing, return True."""
        return self._task_of is None or inputs_key in self._ready

    def start(self, job: Job) -> bool:
        """Start preparing the inputs of `job`, and return True.

        Return False and start nothing while another preparation runs, or if this process prepares nothing.
        """
        if self.current or self._task_of is None:
            return False
        self.current, self.doing = job.inputs_key, "preparing the corpus"
        threading.Thread(target=self._run, args=(job, self._task_of), daemon=True, name="prepare").start()
        return True

    def collect(self) -> tuple[str, str, str] | None:
        """Return (inputs_key, error class, message) of an ended preparation; None if none has ended.

        The error class is "" after a success.
        """
        if self._done is None:
            return None
        done, self._done = self._done, None
        if not done[1]:
            self._ready.add(done[0])
        self.current = self.doing = ""
        return done

    def _run(self, job: Job, task_of: TaskOf) -> None:
        error_class = message = ""
        try:
            task = task_of(job.spec)
            facts = task.prepare(validated(task, job.spec), self._store, self._progress)
            log.info("prepared for %s: %s", job.run_id, facts)
        except UserError as error:
            error_class, message = Outcome.USER_ERROR, str(error)
        except Exception as error:
            error_class = Outcome.BUG
            message = f"Preparing the corpus failed: {error}\n{traceback.format_exc()}"
        self._done = (job.inputs_key, error_class, message)

    def _progress(self, what: str, done: int, total: int) -> None:
        self.doing = f"{what} {done:,}/{total:,}" if total else what
