"""Make jobs of the queue for tests."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from experiments.jobs.queue.job import Job
from experiments.run_spec import EvaluationSpec, RunSpec

_OF_RUN = {field.name for field in fields(RunSpec)}


def made_job(run_id: str, task: str = "stub", config: Mapping[str, Any] | None = None, **given: Any) -> Job:
    """Return a job. `given`: fields of RunSpec and of Job, and the seed."""
    seed = {"seed": given.pop("seed")} if "seed" in given else {}
    of_run = {"inputs": {}} | {name: given.pop(name) for name in list(given) if name in _OF_RUN}
    return Job(RunSpec(run_id, {**(config or {}), "task": task, **seed}, **of_run), **given)


def evaluation(eval_id: str, set_: str = "dev") -> EvaluationSpec:
    """Return an evaluation without settings."""
    return EvaluationSpec(set_, {}, {}, eval_id=eval_id)
