"""The engine for Slurm. Each child is one Slurm job. submitit (extra [slurm]) submits the jobs as arrays.

- Time limits and preemption: Slurm sends a signal `signal_delay_s` seconds before it ends a job. The child saves a
  checkpoint. Then the job in this program's queue waits, and is submitted again. Slurm's own requeueing is switched
  off, because a second start in the folder of the same attempt would mix two attempts.
- Slurm's accounting is not used, because many clusters do not let users read it. squeue lists the jobs that exist, and
  the keeper's file shows which children have ended.
"""

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from experiments.errors import UserError
from experiments.jobs.devices.slots import Slot
from experiments.jobs.engines.cluster import ClusterEngine, user
from experiments.jobs.engines.engine import Handle, Launch, import_path
from experiments.jobs.engines.keeper import run_child

ASK_EVERY_S = 2.0
COMMAND_S = 60.0  # time limit for a Slurm command in seconds; a busy Slurm controller may be slow
SIGNAL_DELAY_S = 120
TIME_MIN = 24 * 60
OVER = (
    "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE",
)  # fmt: skip


class SlurmEngine(ClusterEngine):
    """Starts each child as a Slurm job.

    folder: a folder on the shared disk for submitit's files.
    settings: options of sbatch, by their long names. One more setting is `signal_delay_s`, the number of seconds
        between the signal to save a checkpoint and the job's time limit.
    """

    name = "slurm"

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None, at_once: int = 256) -> None:
        super().__init__()
        self._folder, self._at_once = folder, at_once
        self._settings = dict(settings or {})
        self._signal_delay_s = int(self._settings.pop("signal_delay_s", SIGNAL_DELAY_S))
        self._states: dict[str, tuple[str, str]] = {}
        self._asked_at = -ASK_EVERY_S
        self._answered = False  # whether squeue answered the last time

    @classmethod
    def configured(cls, settings: Mapping[str, str], folder: Path, at_once: int) -> Self:
        return cls(folder / "slurm", settings, at_once)

    def _submit(self, folders: Sequence[Path], launches: Sequence[Launch]) -> list[str]:
        names: dict[Path, str] = {}
        for slot in dict.fromkeys(_shape(launch.slot) for launch in launches):
            mine = [folder for folder, launch in zip(folders, launches, strict=True) if _shape(launch.slot) == slot]
            names |= zip(mine, self._submit_array(mine, *slot), strict=True)
        now = time.monotonic()
        self._states |= dict.fromkeys(names.values(), ("PENDING", ""))
        self._asked_at = max(self._asked_at, now - ASK_EVERY_S / 2)  # squeue may list new jobs a little later
        return [names[folder] for folder in folders]

    def _submit_array(self, folders: Sequence[Path], kind: str, cores: int, count: int) -> list[str]:
        try:
            import submitit
        except ImportError:
            raise UserError(
                "--engine slurm needs submitit: pip install 'transformer-ablations[slurm]' (on the login node and, if "
                "it is another installation, on the compute nodes)."
            ) from None
        try:
            executor = submitit.SlurmExecutor(folder=self._folder)
            executor.update_parameters(
                job_name="ablations",
                time=TIME_MIN,
                cpus_per_task=cores,
                array_parallelism=self._at_once,
                signal_delay_s=self._signal_delay_s,
                stderr_to_stdout=True,
                setup=[f"export PYTHONPATH={':'.join(import_path())} PYTHONSAFEPATH=1"],
                srun_args=[f"--cpus-per-task={cores}"],  # srun no longer takes this option from sbatch
                additional_parameters={
                    "no-requeue": True,
                    **({"gpus-per-node": count} if kind == "cuda" else {}),
                    **self._settings,
                },
            )
            with executor.batch():
                jobs = [executor.submit(run_child, str(folder)) for folder in folders]
        except (RuntimeError, OSError, subprocess.SubprocessError, submitit.core.utils.FailedJobError) as error:
            raise UserError(f"Slurm refused the runs: {str(error).strip()} Check --engine-set and sinfo.") from error
        return [str(job.job_id) for job in jobs]

    def _holds(self, name: str) -> bool:
        self._ask()
        return not self._answered or (name in self._states and self._states[name][0] not in OVER)

    def _ask(self) -> None:
        """Update the list of jobs. Keep the old list while Slurm does not answer."""
        if time.monotonic() - self._asked_at < ASK_EVERY_S:
            return
        self._asked_at = time.monotonic()
        listed = _command("squeue", "--user", user(), "--array", "--noheader", "--format=%i|%T|%r", "--states=all")
        self._answered = listed is not None
        if listed is not None:
            rows = [line.split("|") for line in listed.splitlines() if line.count("|") == 2]
            self._states = {name.strip(): (state, reason) for name, state, reason in rows}

    def waiting_for(self, handle: Handle) -> str:
        state, reason = self._states.get(str(handle.ref["id"]), ("", ""))
        return f"waits in Slurm ({reason})" if state == "PENDING" else ""

    def terminate(self, handle: Handle) -> None:
        """Send SIGTERM to a running job. Cancel a job that still waits in Slurm."""
        job = str(handle.ref["id"])
        if self._holds(job):
            if self._states.get(job, ("", ""))[0] in ("PENDING", ""):
                _command("scancel", "--state=PENDING", job)
            _command("scancel", "--state=RUNNING", "--signal=TERM", job)

    def kill(self, handle: Handle) -> None:
        """Cancel the job. Slurm sends SIGTERM, and then SIGKILL after its KillWait (30 s by default)."""
        if self._holds(str(handle.ref["id"])):
            _command("scancel", str(handle.ref["id"]))


def _shape(slot: Slot) -> tuple[str, int, int]:
    return slot.kind, slot.cores, slot.count


def _command(*arguments: str) -> str | None:
    """Return the output of a Slurm command; None if it failed."""
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=COMMAND_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
