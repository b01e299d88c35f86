"""Hold the waiting runs of a table when two of its rows fail in the same way, because the others would fail too."""

import re
from collections.abc import Mapping
from typing import Any

from experiments.jobs.attempts import outcomes
from experiments.jobs.queue.job import Job, Outcome
from experiments.jobs.queue.work_queue import WorkQueue
from experiments.messages import some_names

# Failures that may concern all rows. A failure caused by the settings of one row, such as divergence, does not.
CONCERNS_ALL = (Outcome.BUG, Outcome.USER_ERROR)
LAST_LINES = 3  # number of log lines that are compared; the last lines usually contain the reason of the failure
NAMED_ROWS = 3  # number of rows that a message names
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:[eE][-+]?\d+)?")
_PATH = re.compile(r"[\w.~-]*(?:/[\w.=,@+-]+)+/?")
_FRAME = re.compile(r'^ *File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
LAST_LINES_FOLLOW = "The last lines:"  # end of the first line of a message that continues with the end of the log
Table = tuple[str, str, str]  # study, profile, corpus


class RepeatedFailures:
    """The failures that this coordinator has seen, by table and by their short form (`cause_in_short`)."""

    def __init__(self, queue: WorkQueue) -> None:
        self._queue = queue
        self._rows: dict[tuple[Table, str], set[str]] = {}

    def add(self, job: Job, failure: Mapping[str, Any] | None, error: str) -> None:
        """Record a failed job. Hold the waiting jobs of its tables if another row has failed in the same way.

        failure: the attempt's failure event, with `cls`, `message` and `traceback`.
        error: the job's error, which includes the end of its log.
        """
        if failure is None or failure.get("cls") not in CONCERNS_ALL:
            return
        kind, cause = cause_in_short(failure, error)
        for member in job.members:
            rows = self._rows.setdefault((member[:3], cause), set())
            rows.add(member.row)
            if len(rows) > 1:
                self._queue.hold_table(member, _why_held(sorted(rows), member.study, kind, cause))


def cause_in_short(failure: Mapping[str, Any], error: str) -> tuple[str, str]:
    """Return what is compared ("message", "traceback" or "last lines"), and its short form.

    The message of a UserError says what is wrong, and this program raises different UserErrors at one place. Therefore
    UserErrors are compared by their messages, and other exceptions by the place where they were raised.

    error: the job's error, which includes the end of its log.
    """
    place = traceback_in_short(failure)
    if not place:
        return "last lines", lines_in_short(error)
    if failure.get("cls") == Outcome.USER_ERROR and (message := message_in_short(failure)):
        return "message", message
    return "traceback", place


def message_in_short(failure: Mapping[str, Any]) -> str:
    """Return the first line of the exception's message, with "#" for each number and "…" for each path.

    Numbers and paths may depend on the row's settings. The other lines may be the end of a log.
    """
    line = str(failure.get("message") or "").strip().partition("\n")[0]
    return _NUMBER.sub("#", _PATH.sub("…", line.removesuffix(LAST_LINES_FOLLOW).strip()))


def traceback_in_short(failure: Mapping[str, Any]) -> str:
    """Return the exception's type and the frames that lead to it; "" without a traceback.

    If this function returns equal texts for two failures, they count as the same failure. The exception's message is
    left out, because it may contain a value that differs from row to row, such as a size or a file name.
    """
    text = str(failure.get("traceback") or "")
    frames = [f"{file}:{line} ({name})" for file, line, name in _FRAME.findall(text)]
    unindented = [line for line in text.splitlines() if line and not line.startswith(" ")]
    if not frames or not unindented:
        return ""
    exception = unindented[-1].partition(":")[0]
    return f"{exception} at {' > '.join(reversed(frames))}"


def lines_in_short(error: str) -> str:
    """Return the last lines of a run's log, with "#" for each number, because numbers may depend on the row's settings.

    The lines are sorted, because the two output streams of a command may be read in any order. For a run that printed
    nothing, return the beginning of the error up to its first colon.
    """
    printed = outcomes.printed(error)
    if not printed:
        return error.partition(":")[0]
    return _NUMBER.sub("#", " / ".join(sorted(printed[-LAST_LINES:])))


def _why_held(rows: list[str], study: str, kind: str, cause: str) -> str:
    """Return the reason that a held job shows.

    kind, cause: see `cause_in_short`.
    """
    names = some_names(rows, NAMED_ROWS)
    innermost = (cause.partition(" > ")[0] if kind == "traceback" else cause).rstrip(".")
    return (
        f"held: rows of {study} failed with the same {kind} ({names}: {innermost}). Correct the cause, then continue "
        "with the same command or with `ablations retry`"
    )
