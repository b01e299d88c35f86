"""A store's budget: how many slot hours, how many runs, and how much time its owner allows; what was spent of it.

It is lines of the ledger: "budget" has limits, "start" and "end" of attempts what was spent since the first limit. The
coordinator alone starts attempts, and asks here before each. Seconds are measured by clocks that nobody sets. Imports
no torch.
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

BUDGET = "the budget"  # reasons why a run waits begin with it
HOUR = 3600.0
MOST_HOURS = 1e9  # a limit above is none
FINISHED = "finished"  # the outcome of an attempt after which nothing of its run is missing
Attempt = tuple[str, int]  # run_id, number


class Open(NamedTuple):
    """An attempt that was started and has not ended."""

    slots: int
    predicted_s: float  # 0: unknown
    t: float


class Account:
    """The limits and what was spent, as the ledger's lines say. `read` takes those appended since."""

    def __init__(self, store: Store) -> None:
        """Raises UserError for a ledger with a damaged line: that line may have been a limit."""
        if wrong := ledger.damaged(store):
            raise UserError(
                f"{wrong[0]} No run is started: the budget is not known. Restore {store.root / ledger.FILE} from a "
                "backup, or move it away. Then a new one begins."
            )
        self._store, self._begin = store, 0
        self.changed = False  # whether limits have changed; for the reader to reset
        self.limits: dict[str, Any] = {}  # hours, runs, until (Unix time), boot (`boot_clock` then): those that are set
        self.spent_s, self.open = 0.0, dict[Attempt, Open]()
        self.trainings = 0  # a retry or a resumed attempt is none; training a finished run again is one
        self.runs, self._finished = set[str](), set[str]()  # those trained, and those of them that are finished
        self.read()

    def read(self) -> None:
        """Take the new lines. Raises UserError for one that says something else than this program writes."""
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
            if not self.limits:  # a new budget: what was spent before is not counted
                self.spent_s, self.open = 0.0, {}
                self.trainings, self.runs, self._finished = 0, set(), set()
            if entry["allowed"] == "none":
                self.limits = {}
            for name, value in entry["limits"].items():  # of two commands at once, none may undo the other
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
        """Return whether training this run now is one more training: its first, or one of a run that has finished."""
        return run_id not in self.runs or run_id in self._finished

    def start(self, run_id: str, attempt: int, slots: int, trains: bool, predicted_s: float) -> None:
        """Record that an attempt starts now; before its process does."""
        facts = {
            "slots": slots,
            "trains": trains,
            "predicted_s": round(predicted_s, 1) if math.isfinite(predicted_s) else 0.0,
        }
        ledger.append_all(self._store, [{"what": "start", "run_id": run_id, "attempt": attempt, **facts}])
        self.read()

    def end(self, run_id: str, attempt: int, outcome: str, seconds: float) -> None:
        """Record how an attempt ended and how long it ran. If a power cut takes the line, its events tell that."""
        facts = {"run_id": run_id, "attempt": attempt, "outcome": outcome, "seconds": round(seconds, 3)}
        ledger.append_all(self._store, [{"what": "end", **facts}], durable=False)
        self.read()

    def seconds_left(self, elapsed: Mapping[Attempt, float]) -> float:
        """Slot seconds left of the hours. `elapsed`: seconds of running attempts."""
        if self.limits.get("hours", math.inf) > MOST_HOURS:
            return math.inf
        running = sum(one.slots * elapsed.get(attempt, 0.0) for attempt, one in self.open.items())
        return float(self.limits["hours"]) * HOUR - self.spent_s - running

    def time_left(self) -> float:
        """Seconds until the end of the time. A clock that is set changes nothing until the machine starts again."""
        if "until" not in self.limits:
            return math.inf
        until, boot, at = self.limits["until"]
        now = boot_clock()
        return float(at) - now[1] if boot == now[0] else float(until) - record_time()

    def used_up(self, elapsed: Mapping[Attempt, float]) -> str:
        """Return the reason why running attempts must end; "" if they need not."""
        if self.time_left() <= 0:
            return f"{BUDGET}'s time has ended ({self.until})"
        used = self.seconds_left(elapsed) <= 0
        return f"{BUDGET} of {self.limits['hours']:g} slot hours is used up" if used else ""

    def refuses(
        self, run_id: str, slots: int, trains: bool, predicted_s: float, elapsed: Mapping[Attempt, float]
    ) -> tuple[str, bool]:
        """Return why an attempt may not start now ("" if it may), and whether that may change when running ones end."""
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
        """The end of the time, for people; "" without one."""
        return (
            time.strftime("%Y-%m-%d %H:%M", time.localtime(self.limits["until"][0])) if "until" in self.limits else ""
        )

    def as_json(self) -> dict[str, Any]:
        """Limits, what is used and what is left, of running attempts until now; None where there is no limit."""
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
        """Return the rest of the budget on one line; "" without a budget."""
        found = self.as_json()
        words = [f"{found['hours']['left']:.2f} of {found['hours']['limit']:g} slot hours"] if found["hours"] else []
        words += [f"{found['runs']['left']:,} of {found['runs']['limit']:,} runs"] if found["runs"] else []
        return (
            f"budget left: {', '.join([*words, f'until {self.until}'] if self.until else words)}" if self.limits else ""
        )


def boot_clock() -> tuple[str, float]:
    """The present boot of this machine, and the seconds since it began, which nobody can set."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return boot, time.clock_gettime(time.CLOCK_BOOTTIME)
