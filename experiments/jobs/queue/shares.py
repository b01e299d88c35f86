"""Fair shares for several users of one store: whose job starts next.

What counts is the use of the last DAYS days (of UTC, today included): devices × time from the first event of an attempt
to its end, which belongs to the day of the end. The user with the least use goes first.

This is a convention, not a protection: anyone who can write to a store can use any user's name.
"""

import getpass
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from experiments.errors import UserError
from experiments.jobs.queue.job import Waiting

DAYS, DAY_S = 7, 24 * 3600.0
RESERVED_S = 600.0  # what a job counts at least while it runs: jobs that start at one moment are dealt out in turn
_LONGEST = 64


class Use(NamedTuple):
    """What a user has used in the last DAYS days, in device-seconds."""

    used_s: float = 0.0  # running attempts included
    charged_s: float = 0.0  # the same, where each running attempt counts at least RESERVED_S


def in_turns(jobs: Sequence[Waiting], charged: Mapping[str, float]) -> Iterator[Waiting]:
    """By priority, then by user, the one with the least charge at that moment first, then in the given order.

    jobs: by priority, the highest first. `charged` may grow between two jobs.
    """
    for _, same in groupby(jobs, key=lambda job: job.priority):
        lines: dict[str, deque[Waiting]] = {}
        for job in same:
            lines.setdefault(job.user, deque()).append(job)
        while len(lines) > 1:
            user = min(lines, key=lambda user: charged.get(user, 0.0))
            yield lines[user].popleft()
            if not lines[user]:
                del lines[user]
        for line in lines.values():
            yield from line


def check_user(name: str) -> str:
    """A user's name. Raises UserError for one that cannot be written in a list or on a command line."""
    if not 0 < len(name) <= _LONGEST or any(letter.isspace() or letter in "=,'\"`" for letter in name):
        wanted = f"1 to {_LONGEST} characters, without spaces, commas, equals signs and quotation marks"
        raise UserError(f"User {name!r}: write a name of {wanted}.")
    if not name.isprintable():
        raise UserError(f"User {name!r}: the name has characters that cannot be printed.")
    return name


def login() -> str:
    """The name of this process's user, as `check_user` takes it."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in some containers
        name = ""
    try:
        return check_user(name)
    except UserError:
        return f"uid{os.getuid()}"
