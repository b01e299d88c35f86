"""The budget of a store: its limits on slot hours, runs and time, and the amounts spent.

Slot hours are the hours of an attempt, multiplied by the number of slots (devices or groups of cores) that the attempt
uses. The budget is stored in the ledger. A "budget" line sets limits. The "start" and "end" lines of attempts record
what was spent since the first limit was set. Only the coordinator starts attempts, and it asks an `Account` before each
start. Durations are measured with clocks that users cannot set. This module does not import torch.
"""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from experiments.errors import UserError
from experiments.records import record_time
from experiments.store import ledger
from experiments.store.layout import Store

BUDGET = "the budget"  # `release_held` finds the runs that wait for the budget by this prefix of their reason
HOUR = 3600.0
MOST_HOURS = 1e9  # a larger limit counts as no limit
FINISHED = "finished"  # outcome of an attempt that completes its job
Attempt = tuple[str, int]  # run_id, number


class Open(NamedTuple):
    """An attempt that was started and has not ended."""

    slots: int
    predicted_s: float  # 0: unknown
    t: float  # Unix time of the start


class Account:
    """The limits and the amounts spent, computed from the lines of the ledger. `read` adds the new lines."""

    def __init__(self, store: Store) -> None:
        """Read the ledger. Raise UserError if a line is damaged, because this line may have set a limit."""
        if wrong := ledger.damaged(store):
            raise UserError(
                f"{wrong[0]} No run is started: the budget is not known. Restore {store.root / ledger.FILE} from a "
                "backup, or move it away. Then a new one begins."
            )
        self._store, self._begin = store, 0
        self.changed = False  # whether limits have changed; the caller sets it to False
        # The present limits, by name: "hours", "runs", "until". The value of "until" is a list: the Unix time of the
        # end, the boot id of the machine on which the limit was set, and the end in seconds since this boot.
        self.limits: dict[str, Any] = {}
        self.spent_s, self.open = 0.0, dict[Attempt, Open]()
        # Number of trainings. A retry or a resume does not count. A new training of a finished run counts.
        self.trainings = 0
        self.runs, self._finished = set[str](), set[str]()  # run_ids of all trained runs, and of those that finished
        self.read()

    def read(self) -> None:
        """Read the new lines of the ledger. Raise UserError if a line does not have the expected fields."""
        before = dict(self.limits)
        entries, self._begin = ledger.since(self._store, self._begin)
        for entry in entries:
            try:
                self._take(entry)
            except (LookupError, TypeError, AttributeError, ValueError) as error:
                raise UserError(
                    f"Line {entry['n']} of the ledger ({self._store.root / ledger.FILE}) is damaged: "
                    f"{type(error).__name__} {error}. No run is started: the budget is not known. Restore the file "
                    "from a backup."
                ) from None
        self.changed |= self.limits != before

    def _take(self, entry: ledger.Entry) -> None:
        if entry["what"] == "budget":
            if not self.limits:  # a new budget begins, so earlier attempts do not count
                self.spent_s, self.open = 0.0, {}
                self.trainings, self.runs, self._finished = 0, set(), set()
            if entry["allowed"] == "none":
                self.limits = {}
            # Without `allowed`, a line can only lower a limit. So two simultaneous commands cannot undo each other.
            for name, value in entry["limits"].items():
                lower = name not in self.limits or value < self.limits[name]
                self.limits |= {name: value} if lower or entry["allowed"] else {}
        elif entry["what"] == "start":
            started = Open(entry["slots"], entry["predicted_s"], entry["time"])
            self.open[entry["run_id"], entry["attempt"]] = started
            if entry["trains"]:
                self.trainings += self._is_new(entry["run_id"])
                self.runs.add(entry["run_id"])
                self._finished.discard(entry["run_id"])
        elif entry["what"] == "end":
            ended = self.open.pop((entry["run_id"], entry["attempt"]), None)
            self.spent_s += entry["seconds"] * ended.slots if ended else 0.0
            if entry["outcome"] == FINISHED:
                self._finished.add(entry["run_id"])

    def _is_new(self, run_id: str) -> bool:
        """Return whether an attempt to train this run now is a new training, and not a retry or resume."""
        return run_id not in self.runs or run_id in self._finished

    def start(self, run_id: str, attempt: int, slots: int, trains: bool, predicted_s: float) -> None:
        """Record that an attempt starts now. Call this method before the process starts."""
        facts = {
            "slots": slots,
            "trains": trains,
            "predicted_s": round(predicted_s, 1) if math.isfinite(predicted_s) else 0.0,
        }
        ledger.append_all(self._store, [{"what": "start", "run_id": run_id, "attempt": attempt, **facts}])
        self.read()

    def end(self, run_id: str, attempt: int, outcome: str, seconds: float) -> None:
        """Record how an attempt ended and how long it ran.

        The line may be lost in a power cut. The events of the attempt still record its end.
        """
        facts = {"run_id": run_id, "attempt": attempt, "outcome": outcome, "seconds": round(seconds, 3)}
        ledger.append_all(self._store, [{"what": "end", **facts}], durable=False)
        self.read()

    def seconds_left(self, elapsed: Mapping[Attempt, float]) -> float:
        """Return the slot seconds that remain of the limit on slot hours; infinity without a limit.

        elapsed: seconds for which each running attempt has run.
        """
        if self.limits.get("hours", math.inf) > MOST_HOURS:
            return math.inf
        running = sum(one.slots * elapsed.get(attempt, 0.0) for attempt, one in self.open.items())
        return float(self.limits["hours"]) * HOUR - self.spent_s - running

    def time_left(self) -> float:
        """Return the seconds until the time limit; infinity without a limit.

        If a user sets the machine's clock, the result does not change until the machine restarts.
        """
        if "until" not in self.limits:
            return math.inf
        until, boot, at = self.limits["until"]
        now = boot_clock()
        return float(at) - now[1] if boot == now[0] else float(until) - record_time()

    def used_up(self, elapsed: Mapping[Attempt, float]) -> str:
        """Return the reason why running attempts must end; "" if they may go on."""
        if self.time_left() <= 0:
            return f"{BUDGET}'s time has ended ({self.until})"
        used = self.seconds_left(elapsed) <= 0
        return f"{BUDGET} of {self.limits['hours']:g} slot hours is used up" if used else ""

    def refuses(
        self, run_id: str, slots: int, trains: bool, predicted_s: float, elapsed: Mapping[Attempt, float]
    ) -> tuple[str, bool]:
        """Return the reason why an attempt may not start now, and whether it may start after a running attempt ends.

        The reason is "" if the attempt may start now.
        """
        if why := self.used_up(elapsed):
            return why, False
        if trains and self._is_new(run_id) and self.trainings >= self.limits.get("runs", math.inf):
            return f"{BUDGET} of {self.limits['runs']:,} runs is used up", False
        left, need = self.seconds_left(elapsed), predicted_s * slots
        if need > left:
            return f"{BUDGET} has {left / HOUR:.2g} slot hours left, but the run needs about {need / HOUR:.2g}", False
        if predicted_s > self.time_left():
            return f"{BUDGET}'s time ends at {self.until}, before the run would end", False
        kept = sum(max(0.0, one.predicted_s - elapsed.get(a, 0.0)) * one.slots for a, one in self.open.items())
        return (f"the rest of {BUDGET} is reserved for the running runs", True) if need > left - kept else ("", True)

    @property
    def until(self) -> str:
        """The time limit as local date and time, for messages; "" if there is none."""
        return (
            time.strftime("%Y-%m-%d %H:%M", time.localtime(self.limits["until"][0])) if "until" in self.limits else ""
        )

    def as_json(self) -> dict[str, Any]:
        """Return each limit with the amounts that are used and left; None for a limit that is not set.

        The amounts include the running attempts.
        """
        now, hours, runs = record_time(), self.limits.get("hours"), self.limits.get("runs")
        hours = None if hours is not None and hours > MOST_HOURS else hours
        left = self.seconds_left({attempt: max(0.0, now - one.t) for attempt, one in self.open.items()}) / HOUR
        return {
            "hours": None if hours is None else {"limit": hours, "used": hours - left, "left": max(0.0, left)},
            "runs": None
            if runs is None
            else {"limit": runs, "used": self.trainings, "left": max(0, runs - self.trainings)},
            "until": {"limit": self.until, "seconds_left": max(0.0, self.time_left())} if self.until else None,
            "running": len(self.open),
        }

    def in_words(self) -> str:
        """Return one line that says how much of the budget is left; "" without a budget."""
        found = self.as_json()
        words = [f"{found['hours']['left']:.2f} of {found['hours']['limit']:g} slot hours"] if found["hours"] else []
        words += [f"{found['runs']['left']:,} of {found['runs']['limit']:,} runs"] if found["runs"] else []
        return (
            f"budget left: {', '.join([*words, f'until {self.until}'] if self.until else words)}" if self.limits else ""
        )


def boot_clock() -> tuple[str, float]:
    """Return the boot id of this machine, and the seconds since this boot. Users cannot set this clock."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return boot, time.clock_gettime(time.CLOCK_BOOTTIME)
