"""Fair shares for several users of one store: whose job starts next, and quotas of device-hours.

What counts is the use of the last DAYS days (of UTC, today included): devices × time from the first event of an attempt
to its end, which belongs to the day of the end. The user with the least use goes first. A quota limits the same use.

This is a convention, not a protection: anyone who can write to a store can use any user's name.
"""

import getpass
import json
import math
import os
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from experiments.errors import UserError, explain_os_errors
from experiments.jobs.queue.job import Waiting
from experiments.store.durable import write_bytes
from experiments.store.layout import Store

FILE = "shares.json"
FORMAT = 3
DAYS, DAY_S = 7, 24 * 3600.0
RESERVED_S = 600.0  # what a job counts at least while it runs: jobs that start at one moment are dealt out in turn
MOST = 1e6  # of hours a century
_LONGEST = 64


class Use(NamedTuple):
    """What a user has used in the last DAYS days, in device-seconds."""

    used_s: float = 0.0  # running attempts included
    charged_s: float = 0.0  # the same, where each running attempt counts at least RESERVED_S


class Turns(NamedTuple):
    """Whose jobs may start now, and in which order."""

    over: Collection[str] = ()  # users whose quota is used up
    charged: Mapping[str, float] = {}  # Use.charged_s by user: the least goes first
    lifted_in_s: float = math.inf  # when a quota may be lifted: at the end of the day, if one is used up


@dataclass(frozen=True)
class Shares:
    """What the users of a store have agreed upon (FILE)."""

    quotas: Mapping[str, float] = field(default_factory=dict)  # device-hours of DAYS days, by user

    def __post_init__(self) -> None:
        for user, hours in self.quotas.items():
            check_user(user)
            if isinstance(hours, bool) or not isinstance(hours, int | float) or not math.isfinite(hours):
                raise UserError(f"the quota of {user} is {hours!r}: expected a number of hours.")
            if not 0 <= hours <= MOST:
                raise UserError(f"the quota of {user} is {hours:g} hours: it must be 0 to {MOST:,.0f}.")

    def over(self, user: str, used_s: float) -> bool:
        """Whether a user has used up a quota."""
        return user in self.quotas and used_s >= 3600 * self.quotas[user]

    def why_over(self, user: str, used_s: float) -> str:
        """A line for a user whose runs wait for the quota: what is used, and when it is lifted."""
        quota = self.quotas[user]
        until = f"what was used {DAYS} days ago no longer counts, or " if quota else ""
        of = f"{used_s / 3600:.3g} of {quota:.3g} device-hours in {DAYS} days"
        until += "the quota is raised (`ablations status --quota`)"
        return f"the quota of {user} is used up ({of}): other runs of {user} wait until {until}"


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


def load_shares(store: Store) -> Shares:
    """What is agreed in a store; the defaults if nothing is. Raises UserError for a file that is not valid."""
    path = store.root / FILE
    try:
        with explain_os_errors(f"read {path}"):
            found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Shares()
    except ValueError as error:
        raise UserError(f"{path} is no JSON ({error}). {_MEND}") from None
    if not isinstance(found, dict) or not isinstance(found.get("quotas", {}), dict):
        raise UserError(f"{path} is not as `ablations status --quota` writes it. {_MEND}")
    if found.get("format") != FORMAT:
        raise UserError(f"{path} has the format {found.get('format')!r}, this program reads {FORMAT}. {_MEND}")
    try:
        return Shares(found.get("quotas", {}))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def keep_shares(store: Store, shares: Shares) -> None:
    """Write what is agreed. Raises UserError if the store cannot be written."""
    path = store.root / FILE
    values = {"format": FORMAT, "quotas": dict(shares.quotas)}
    with explain_os_errors(f"write {path}"):
        write_bytes(Path(path), (json.dumps(values, indent=1, ensure_ascii=False, sort_keys=True) + "\n").encode())


_MEND = "Mend it, or delete it and say again what you agreed upon with `ablations status --quota`."


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
