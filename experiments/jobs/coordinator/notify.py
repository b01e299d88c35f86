"""Run a command of the user when a row fails or a table ends: a mail, a chat message, a sound.

The text comes on its standard input. Its environment contains:

    ABLATIONS_EVENT     "failed" or "ended"
    ABLATIONS_SUBJECT   one line: "table3 demo builtin: A-h16 (seed 1) failed"
    ABLATIONS_STUDY  ABLATIONS_PROFILE  ABLATIONS_CORPUS  ABLATIONS_ROW  ABLATIONS_SEED  ABLATIONS_RUN

It runs in parallel to the work. Failures and hangs are only logged.
"""

import contextlib
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping

from experiments.identity import seed_in_words
from experiments.jobs.queue.job import Job, Member
from experiments.jobs.queue.states import State

TIMEOUT_S = 60.0
log = logging.getLogger(__name__)


class Notifier:
    """Starts the user's shell command in a thread for each notification."""

    def __init__(self, command: str, timeout_s: float = TIMEOUT_S) -> None:
        self._command, self._timeout_s = command, timeout_s
        self._threads: list[threading.Thread] = []
        self._failed: dict[tuple[str, str, str], int] = {}

    def ended(self, job: Job, state: State, error: str, unfinished: Callable[[Member], int]) -> None:
        """Notify of a run's end. `unfinished(member)`: number of the table's runs that have not ended."""
        for member in job.members:
            table = " ".join(filter(None, member[:3]))
            if state is State.FAILED:
                self._failed[member[:3]] = self._failed.get(member[:3], 0) + 1
                self._tell("failed", f"{table}: {member.row} ({seed_in_words(job.seed)}) failed", error, job, member)
            if unfinished(member) == 0:
                failed = self._failed.pop(member[:3], 0)
                subject = f"{table}: ended, {failed} failed" if failed else f"{table}: ended"
                self._tell("ended", subject, _how_to_print(job, member), job, member)

    def close(self) -> None:
        """Wait for running commands, each at most its time limit."""
        for thread in self._threads:
            thread.join()

    def _tell(self, event: str, subject: str, text: str, job: Job, member: Member) -> None:
        values = {
            "EVENT": event,
            "SUBJECT": subject,
            "STUDY": member.study,
            "PROFILE": member.profile,
            "CORPUS": member.corpus,
            "ROW": member.row if event == "failed" else "",
            "SEED": str(job.seed) if event == "failed" else "",
            "RUN": job.run_id if event == "failed" else "",
        }
        environment = {f"ABLATIONS_{name}": value for name, value in values.items()}
        thread = threading.Thread(target=self._run, args=(environment, f"{subject}\n{text}\n"), daemon=True)
        self._threads = [t for t in self._threads if t.is_alive()] + [thread]
        thread.start()

    def _run(self, environment: Mapping[str, str], text: str) -> None:
        try:
            shell = subprocess.Popen(
                self._command,
                shell=True,
                env={**os.environ, **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                process_group=0,
            )
            try:
                _, said = shell.communicate(text.encode(), self._timeout_s)
            except subprocess.TimeoutExpired as error:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(shell.pid, signal.SIGKILL)  # the whole pipeline
                shell.wait()
                self._log(f"ended after {self._timeout_s:g} s", error.stderr)
            else:
                if shell.returncode:
                    self._log(f"exit code {shell.returncode}", said)
        except OSError as error:
            self._log(str(error), None)

    def _log(self, how: str, said: bytes | None) -> None:
        words = (said or b"").decode(errors="replace").strip()
        log.warning("the notification command failed: %s: %s %s", self._command, how, words)


def _how_to_print(job: Job, member: Member) -> str:
    """The queue knows the folder of an own study, and not the name of its file."""
    where = f" in {job.folder}" if job.folder else ""
    study = f"the file of the study {member.study}" if job.folder else member.study
    return f"`ablations report` of {study}{where}, profile {member.profile}, prints the table."
