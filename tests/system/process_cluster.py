"""A cluster engine whose jobs are processes on this machine. Each job is a keeper, as on a node of a real cluster."""

import os
import signal
import subprocess
import sys

from experiments.jobs.engines.cluster import ClusterEngine

JOB = "import sys; from experiments.jobs.engines.keeper import run_child; sys.exit(run_child(sys.argv[1]))"
STARTED = {}  # jobs by id; global, because a cluster outlives its engines


class ProcessCluster(ClusterEngine):
    name = "slurm"

    def _submit(self, folders, launches):
        jobs = [subprocess.Popen([sys.executable, "-c", JOB, str(folder)]) for folder in folders]
        STARTED.update({str(job.pid): job for job in jobs})
        return [str(job.pid) for job in jobs]

    def _holds(self, name):
        return name in STARTED and STARTED[name].poll() is None

    def terminate(self, handle):
        end_job(str(handle.ref["id"]), signal.SIGUSR2)

    def kill(self, handle):
        end_job(str(handle.ref["id"]), signal.SIGKILL)


def end_job(name, how=signal.SIGKILL):
    """Signal a job: SIGUSR2 warns that its time limit is near, and SIGKILL simulates the death of its node."""
    if STARTED[name].poll() is None:
        os.kill(STARTED[name].pid, how)


def living():
    return [name for name, job in STARTED.items() if job.poll() is None]
