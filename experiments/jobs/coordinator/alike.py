"""When different rows of a table fail alike, the rest of the table waits with the reason: it would fail one by one."""

import re
from collections.abc import Mapping
from typing import Any

from experiments.jobs.queue.job import Job
from experiments.jobs.queue.ledger import Ledger
from experiments.jobs.queue.states import Outcome

# What a row's own settings bring about, such as divergence, does not concern the other rows.
CONCERNS_ALL = (Outcome.BUG, Outcome.USER_ERROR)
_FRAME = re.compile(r'^ *File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
Table = tuple[str, str, str]  # study, profile, corpus


class FailedAlike:
    """The failures that this coordinator has seen, by table and traceback."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._rows: dict[tuple[Table, str], set[str]] = {}

    def add(self, job: Job, failure: Mapping[str, Any] | None) -> None:
        """Take note of a failed job; hold the waiting jobs of its tables if another row has failed alike.

        failure: the event of the attempt, with `cls`, `message` and `traceback`.
        """
        place = traceback_in_short(failure or {})
        if not place or (failure or {}).get("cls") not in CONCERNS_ALL:
            return
        for member in job.members:
            rows = self._rows.setdefault((member[:3], place), set())
            rows.add(member.row)
            if len(rows) > 1:
                self._ledger.hold_table(member, _why(sorted(rows), member.study, place))


def traceback_in_short(failure: Mapping[str, Any]) -> str:
    """The exception of a traceback and the frames that lead to it, without its message; "" if it has none.

    Two tracebacks are alike where these are equal: a message may name a size or a file of the row.
    """
    text = str(failure.get("traceback") or "")
    frames = [f"{file}:{line} ({name})" for file, line, name in _FRAME.findall(text)]
    last = [line for line in text.splitlines() if line and not line.startswith(" ")]
    return f"{last[-1].partition(':')[0]} at {' > '.join(reversed(frames))}" if frames and last else ""


def _why(rows: list[str], study: str, place: str) -> str:
    named = ", ".join(rows[:3]) + (f" and {len(rows) - 3} more" if len(rows) > 3 else "")
    innermost = place.partition(" > ")[0]
    return (
        f"held: rows of {study} failed with the same traceback ({named}: {innermost}). "
        "Once the cause is mended, the same command or `ablations retry` goes on"
    )
