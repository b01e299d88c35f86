"""Prepare corpora that runs share: once, before their first run starts, one at a time, while other runs train."""

import logging
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from experiments.config import TaskConfig
from experiments.errors import UserError
from experiments.jobs.queue.job import Job, Outcome
from experiments.tasks.base import EvaluationSpec, Task

LoadTask = Callable[..., Task]  # arguments: the task's name and, if any, the study's folder and interpreter
log = logging.getLogger(__name__)


def task_of(job: Job, load_task: LoadTask) -> Task:
    """The task that trains a job. Raises UserError if it cannot be loaded."""
    task = load_task(job.task, job.folder, job.python) if job.folder else load_task(job.task)
    return task.with_settings(job.config)


def serves(task: Task, job: Job, evaluations: Iterable[Mapping[str, Any]], weights: Path) -> bool:
    """Whether a finished training kept all that these evaluations of a job need."""
    config = config_of(task, job)
    specs = (EvaluationSpec(item["set"], item["settings"], item["inputs"]) for item in evaluations)
    return all(task.serves(config, spec, weights) for spec in specs)


def config_of(task: Task, job: Job) -> TaskConfig:
    """A job's configuration, validated by its task."""
    return task.config_type.from_mapping(job.config)


class Preparation:
    """Runs `task.prepare` in a thread; `collect` returns its outcome.

    It is a daemon thread: an ending coordinator does not wait for it, and `prepare` may be interrupted anywhere.
    """

    def __init__(self, load_task: LoadTask | None, store: Path) -> None:
        self._load_task = load_task
        self._store = store
        self._ready: set[str] = set()
        self._current = ""
        self._done: tuple[str, str, str] | None = None  # inputs_key, error class, message
        self.doing = ""

    @property
    def current(self) -> str:
        """The inputs_key in preparation; "" if there is none."""
        return self._current

    def ready(self, inputs_key: str) -> bool:
        """Whether the inputs are prepared; always, if nothing is prepared here."""
        return self._load_task is None or inputs_key in self._ready

    def start(self, job: Job) -> bool:
        """Start preparing the inputs of `job`; False while another preparation runs."""
        if self._current or self._load_task is None:
            return False
        self._current, self.doing = job.inputs_key, "preparing the corpus"
        threading.Thread(target=self._run, args=(job, self._load_task), daemon=True, name="prepare").start()
        return True

    def collect(self) -> tuple[str, str, str] | None:
        """(inputs_key, error class, message) of an ended preparation; class "" for success; None if none has ended."""
        if self._done is None:
            return None
        done, self._done = self._done, None
        if not done[1]:
            self._ready.add(done[0])
        self._current = self.doing = ""
        return done

    def _run(self, job: Job, load_task: LoadTask) -> None:
        error_class = message = ""
        try:
            task = task_of(job, load_task)
            config = config_of(task, job)
            facts = task.prepare(config, self._store, self._progress)
            log.info("prepared for %s: %s", job.run_id, facts)
        except UserError as error:
            error_class, message = Outcome.USER_ERROR, str(error)
        except Exception as error:
            error_class = Outcome.BUG
            message = f"Preparing the corpus failed: {error}\n{traceback.format_exc()}"
        self._done = (job.inputs_key, error_class, message)

    def _progress(self, what: str, done: int, total: int) -> None:
        self.doing = f"{what} {done:,}/{total:,}" if total else what
