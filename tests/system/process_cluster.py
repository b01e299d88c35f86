"""A cluster of processes on this machine: each of its jobs is a keeper, as on a real cluster's node."""

import os
import signal
import subprocess
import sys

from experiments.jobs.engines.cluster import ClusterEngine

JOB = "import sys; from experiments.jobs.engines.keeper import run_child; sys.exit(run_child(sys.argv[1]))"
STARTED = {}  # as a cluster does, it outlives its engines


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
    """SIGUSR2: its time ends soon, as a cluster says it; SIGKILL: its node dies, with all that runs there."""
    if STARTED[name].poll() is None:
        os.kill(STARTED[name].pid, how)


def living():
    return [name for name, job in STARTED.items() if job.poll() is None]
