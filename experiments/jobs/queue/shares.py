"""Fair shares for several users of one store: whose job starts next, and quotas of device-hours.

As in Slurm (slurm.schedmd.com/classic_fair_share.html) use decays: an hour on a device counts 2^(-age / half-life). Its
factor of a user is 2^(-U / S): U, the use over that of all users; S, the weight over that of all users. The largest
factor is that of the least use / weight, and this order is all that is needed here. A quota limits the same decayed
use, as Slurm's GrpTRESMins does, so it is lifted by time.

w devices used from a to b count at the time t: ∫ w · 2^(-(t-x)/H) dx = w · H/ln 2 · (2^(-(t-b)/H) - 2^(-(t-a)/H)).

This is an agreement between colleagues and no barrier: who can write in a store can take any user's name.
"""

import getpass
import json
import math
import os
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from experiments.errors import UserError, explain_os_errors
from experiments.jobs.queue.job import Waiting
from experiments.store.durable import write_bytes
from experiments.store.layout import Store

FILE = "shares.json"
FORMAT, WEIGHTED = 1, 2  # a program of the first format would forget weights, so a file that has some is the second
HALF_LIFE_H = 7 * 24.0  # Slurm's default PriorityDecayHalfLife
RESERVED_S = 600.0  # what a job counts at least while it runs: jobs that start at one moment are dealt out in turn
MOST = 1e6  # of hours a century
_LONGEST = 64


class Use(NamedTuple):
    """What a user has used, in device-seconds that have decayed."""

    used_s: float = 0.0  # running attempts included
    charged_s: float = 0.0  # the same, where each running attempt counts at least RESERVED_S


class Turns(NamedTuple):
    """Whose jobs may start now, and in which order."""

    over: Collection[str] = ()  # users whose quota is used up
    charged: Mapping[str, float] = {}  # Use.charged_s by user
    weights: Mapping[str, float] = {}  # Shares.weights: the user with the least charge / weight goes first
    lifted_in_s: float = math.inf  # when a quota is lifted


@dataclass(frozen=True)
class Shares:
    """What the users of a store have agreed upon (FILE)."""

    half_life_h: float = HALF_LIFE_H
    quotas: Mapping[str, float] = field(default_factory=dict)  # device-hours by user
    weights: Mapping[str, float] = field(default_factory=dict)  # by user; 1 if not named: 2 may use twice as much

    def __post_init__(self) -> None:
        _check_number("the half-life", self.half_life_h, positive=True)
        for user, hours in self.quotas.items():
            check_user(user)
            _check_number(f"the quota of {user}", hours, positive=False)
        for user, weight in self.weights.items():
            check_user(user)
            _check_number(f"the weight of {user}", weight, positive=True, unit="")

    def later(self, device_s: float, passed_s: float) -> float:
        """What a decayed use counts after so many seconds."""
        return float(device_s * 0.5 ** (max(0.0, passed_s) / (3600 * self.half_life_h)))

    def of_span(self, devices: float, begin: float, end: float, now: float) -> float:
        """What devices used from `begin` to `end` count now: the integral above."""
        constant = 3600 * self.half_life_h / math.log(2)
        return self.later(devices * constant * -math.expm1(-max(0.0, end - begin) / constant), now - end)

    def over(self, user: str, used_s: float) -> bool:
        """Whether a user has used up a quota."""
        return user in self.quotas and used_s >= 3600 * self.quotas[user]

    def lifted_in_s(self, user: str, used_s: float) -> float:
        """Seconds until the use falls below the quota if none is added; infinite for a quota of 0."""
        quota_s = 3600 * self.quotas[user]
        if used_s < quota_s:
            return 0.0
        return 3600 * self.half_life_h * math.log2(used_s / quota_s) if quota_s else math.inf

    def why_over(self, user: str, used_s: float) -> str:
        """A line for a user whose runs wait for the quota: what is used, and when it is lifted."""
        quota, wait_s = self.quotas[user], self.lifted_in_s(user, used_s)
        until = "until the quota is raised (`ablations shares --quota`)"
        if quota:
            lifted = time.strftime("%Y-%m-%d %H:%M", time.localtime(time.time() + wait_s))
            until = f"until about {lifted} if nothing more is used"
        of = f"{used_s / 3600:.3g} of {quota:.3g} device-hours"
        return f"the quota of {user} is used up ({of}): other runs of {user} wait {until}"


def in_turns(jobs: Sequence[Waiting], charged: Mapping[str, float], weights: Mapping[str, float]) -> Iterator[Waiting]:
    """By priority, then by user, the one with the least charge / weight at that moment first, then in the given order.

    jobs: by priority, the highest first. `charged` may grow between two jobs.
    """
    for _, same in groupby(jobs, key=lambda job: job.priority):
        lines: dict[str, deque[Waiting]] = {}
        for job in same:
            lines.setdefault(job.user, deque()).append(job)
        while len(lines) > 1:
            user = min(lines, key=lambda user: charged.get(user, 0.0) / weights.get(user, 1.0))
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
    if not isinstance(found, dict) or any(not isinstance(found.get(of, {}), dict) for of in ("quotas", "weights")):
        raise UserError(f"{path} is not as `ablations shares` writes it. {_MEND}")
    if found.get("format") not in (FORMAT, WEIGHTED):
        there = f"{path} has the format {found.get('format')!r}, this program reads {FORMAT} and {WEIGHTED}."
        raise UserError(f"{there} Use the version that wrote it.")
    try:
        return Shares(found.get("half_life_hours", HALF_LIFE_H), found.get("quotas", {}), found.get("weights", {}))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def keep_shares(store: Store, shares: Shares) -> None:
    """Write what is agreed. Raises UserError if the store cannot be written."""
    path = store.root / FILE
    values: dict[str, Any] = {"format": FORMAT, "half_life_hours": shares.half_life_h, "quotas": dict(shares.quotas)}
    if shares.weights:
        values |= {"format": WEIGHTED, "weights": dict(shares.weights)}
    with explain_os_errors(f"write {path}"):
        write_bytes(Path(path), (json.dumps(values, indent=1, ensure_ascii=False, sort_keys=True) + "\n").encode())


_MEND = "Mend it, or delete it and say again what you agreed upon with `ablations shares`."


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


def _check_number(what: str, value: object, *, positive: bool, unit: str = " hours") -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"{what} is {value!r}: expected a number{unit and f' of{unit}'}.")
    if not (value > 0 if positive else value >= 0) or value > MOST:
        least = "more than" if positive else "at least"
        raise UserError(f"{what} is {value:g}{unit}: it must be {least} 0, and at most {MOST:,.0f}.")
