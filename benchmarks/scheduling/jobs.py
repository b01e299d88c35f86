"""Jobs of the benchmarks."""

from experiments.jobs.queue.job import Job, Member


def job(number: int, cost: float = 1.0) -> Job:
    config = {"training": {"train_steps": 1}, "model": {"d_model": 512, "dropout": 0.1}}
    return Job(f"{number:016x}", "stub", config, members=(Member("s", "p", "c", str(number)),), cost=cost)
