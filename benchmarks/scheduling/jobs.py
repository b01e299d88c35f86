"""Jobs for the benchmarks of the scheduler."""

from experiments.jobs.queue.job import Job, Member
from experiments.run_spec import RunSpec


def job(number: int, cost: float = 1.0) -> Job:
    config = {"training": {"train_steps": 1}, "model": {"d_model": 512, "dropout": 0.1}}
    return Job(RunSpec(f"{number:016x}", config, {}, cost=cost), members=(Member("s", "p", "c", str(number)),))
