"""Read the queue's SQLite file.

The methods change nothing. Opening the file may create it, or convert a queue of version 0.1.0.
"""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from experiments.errors import Damaged
from experiments.jobs.queue import queue_file, trust
from experiments.jobs.queue.job import Claimed, JobStatus, Member, State
from experiments.jobs.queue.job_json import damaged, from_text, job_from
from experiments.jobs.queue.sqlite_errors import explain

SHARING = "sharing"  # name of the note that says how many runs share each GPU (with `--devices auto`)
LEFT = "left by `ablations run`, which trains its own table; `ablations work` starts it"  # why a job is held
SPEC = "CASE WHEN json_valid(spec) THEN spec ELSE '{}' END"  # {} for a damaged entry
# Condition that selects the jobs of a task and a study whose GPU memory is not predicted.
UNPREDICTED = (
    f"json_extract({SPEC}, '$.gpu_memory_gb')=0 AND json_extract({SPEC}, '$.spec.config.task')=? "
    "AND run_id IN (SELECT run_id FROM members WHERE study=?)"
)
_ROW = (
    "run_id, state, seed, priority, cost, attempt, step, total, doing, slot, error, error_class, queued, started, "
    "ended, left_s, held"
)
_STATUS = TypeAdapter(JobStatus)


class QueueConnection:
    """A connection to the queue, closed at the end of a `with` block.

    Threads must not share it, and it must not be used across a fork.
    """

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self.path = path
        self._db = queue_file.connect(path, create=create)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    def _read(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return the rows of a query. Raise UserError if the file cannot be read."""
        with explain(self.path):
            return self._db.execute(sql, values).fetchall()

    def status(self) -> list[JobStatus]:
        """Return all jobs in the order in which they were queued."""
        members = self.members()
        rows = self._read(f"SELECT {_ROW} FROM jobs ORDER BY queued, run_id")
        return [_row(self.path, values, members.get(values[0], ())) for values in rows]

    def rows(self, state: State, limit: int) -> list[JobStatus]:
        """Return the first `limit` jobs of a state, in the order in which waiting jobs start."""
        found = self._read(
            f"SELECT {_ROW} FROM jobs WHERE state=? ORDER BY priority DESC, turn, cost DESC, queued, run_id LIMIT ?",
            (state, limit),
        )
        return [_row(self.path, values, self.members(values[0]).get(values[0], ())) for values in found]

    def asked_of_failed(self) -> dict[str, set[str]]:
        """Return a dict from the run_ids of failed runs to their requested eval_ids, without damaged entries."""
        rows = self._read("SELECT run_id, spec FROM jobs WHERE state='failed'")
        found = {}
        for run_id, spec in rows:
            with contextlib.suppress(Damaged):
                found[run_id] = {item.eval_id for item in job_from(spec, run_id).evaluations}
        return found

    def speed(self) -> float | None:
        """Return the speed of a slot (predicted cost per second of training); None if unknown.

        The result is the total cost divided by the total time of all runs that finished at their first attempt.
        """
        [(cost, seconds)] = self._read(
            "SELECT sum(j.cost), sum(max(a.ended - a.started, 0)) FROM jobs j JOIN attempts a "
            "ON a.run_id = j.run_id AND a.number = j.attempt "
            "WHERE j.state='finished' AND j.attempt=1 AND j.cost > 0"
        )
        return cost / seconds if cost and seconds else None

    def usual_s(self) -> float | None:
        """Return the mean seconds that a run without a predicted cost takes; None if unknown.

        Only runs that finished at their first attempt are counted.
        """
        [(seconds,)] = self._read(
            "SELECT avg(max(a.ended - a.started, 0)) FROM jobs j JOIN attempts a "
            "ON a.run_id = j.run_id AND a.number = j.attempt "
            "WHERE j.state='finished' AND j.attempt=1 AND j.cost = 0 AND a.ended IS NOT NULL"
        )
        return seconds or None

    def running_left(self) -> list[float]:
        """Return, for each running job, the predicted seconds that its training still takes; 0 if unknown.

        If a job reports no remaining time and has no predicted cost, it is assumed to take the mean time of finished
        runs without a predicted cost (`usual_s`).
        """
        rows = self._read(
            "SELECT j.left_s, j.cost, a.started FROM jobs j LEFT JOIN attempts a "
            "ON a.run_id = j.run_id AND a.number = j.attempt WHERE j.state='running'"
        )
        usual, now = self.usual_s() or 0.0, time.time()
        return [
            left if left is not None else 0.0 if cost or started is None else max(0.0, usual - (now - started))
            for left, cost, started in rows
        ]

    def running_refs(self) -> dict[tuple[str, int], dict[str, Any]]:
        """Return the engine's reference to the child of each running job, by (run_id, attempt).

        The reference is {} if none was recorded. Attempts with a damaged reference are left out.
        """
        rows = self._read(
            "SELECT j.run_id, j.attempt, COALESCE(a.ref, '') FROM jobs j LEFT JOIN attempts a "
            "ON a.run_id = j.run_id AND a.number = j.attempt WHERE j.state='running'"
        )
        found = {}
        for run_id, attempt, ref in rows:
            with contextlib.suppress(Damaged):
                found[run_id, attempt] = from_text(ref, run_id) if ref else {}
        return found

    def waiting_costs(self) -> list[float]:
        rows = self._read("SELECT cost FROM jobs WHERE state='waiting' AND held='' ORDER BY cost DESC")
        return [row[0] for row in rows]

    def measured_gpu_gb(self, task: str, study: str) -> float:
        """Return the largest measured peak of GPU memory (GB); 0 if none was measured.

        Only finished runs of this task and study whose GPU memory was not predicted are counted.
        """
        kept = f"SELECT COALESCE(max(gpu_memory_gb), 0) FROM jobs WHERE state='finished' AND {UNPREDICTED}"
        [(gb,)] = self._read(kept, (task, study))
        return float(gb)

    def devices_wanted(self) -> int:
        """Return the number of devices that would be in use if all waiting and running jobs ran at the same time."""
        [(count,)] = self._read("SELECT COALESCE(sum(devices), 0) FROM jobs WHERE state IN ('waiting', 'running')")
        return int(count)

    def tasks_wanted(self) -> list[str]:
        """Return the tasks of all waiting and running jobs, with "" for damaged entries."""
        whole = "CASE WHEN json_valid(spec) THEN spec ELSE '{}' END AS spec"
        rows = self._read(
            "SELECT DISTINCT json_extract(spec, '$.spec.config.task') FROM "
            f"(SELECT {whole} FROM jobs WHERE state IN ('waiting', 'running'))"
        )
        return [str(row[0] or "") for row in rows]

    def held(self) -> list[str]:
        """Return the distinct reasons why jobs are held.

        The reason LEFT is left out, because it marks the jobs of other tables, which the present `ablations run`
        does not train.
        """
        kept = "SELECT DISTINCT held FROM jobs WHERE state='waiting' AND held NOT IN ('', ?) ORDER BY held"
        rows = self._read(kept, (LEFT,))
        return [row[0] for row in rows]

    def notes(self) -> dict[str, str]:
        """Return the coordinator's notes for `status`, by name."""
        return dict(self._read("SELECT name, text FROM notes"))

    def counts(self) -> dict[State, int]:
        """Return the number of jobs in each state."""
        found = dict(self._read("SELECT state, count(*) FROM jobs GROUP BY state"))
        return {state: found.get(state, 0) for state in State}

    def states(self) -> dict[str, State]:
        """Return the state of every job, by run_id."""
        return {run_id: State(state) for run_id, state in self._read("SELECT run_id, state FROM jobs")}

    def untracked(self, state: State) -> list[tuple[str, str]]:
        """Return (run_id, error) of the jobs in this state that are not yet recorded as ended in the tracking store."""
        return self._read("SELECT run_id, error FROM jobs WHERE state=? AND tracked=0", (state,))

    def history(self, run_id: str) -> list[dict[str, Any]]:
        """Return a run's attempts, oldest first, as dictionaries.

        The keys are number, slot, started, ended, outcome, detail, first_step and last_step.
        """
        names = "number, slot, started, ended, outcome, detail, first_step, last_step"
        rows = self._read(f"SELECT {names} FROM attempts WHERE run_id=? ORDER BY number", (run_id,))
        return [dict(zip(names.split(", "), row, strict=True)) for row in rows]

    def damaged_lines(self) -> dict[tuple[str, int], tuple[str, int]]:
        """Return a dict: (run_id, attempt) → (fingerprint of the attempt's events, number of damaged lines in them)."""
        rows = self._read("SELECT run_id, number, events FROM attempts WHERE events != ''")
        told = {(run_id, number): text.rpartition(" ") for run_id, number, text in rows}
        return {place: (content, int(count)) for place, (content, _, count) in told.items() if count.isdigit()}

    def job(self, run_id: str) -> Claimed:
        """Return the job of a run. Raise KeyError if it is not in the queue, and Damaged if its entry is damaged."""
        rows = self._read(
            "SELECT spec, j.attempt, pinned, best, stalls, a.ref, j.slot, alone, hangs, signature FROM jobs j "
            "LEFT JOIN attempts a ON a.run_id = j.run_id AND a.number = j.attempt WHERE j.run_id=?",
            (run_id,),
        )
        if not rows:
            raise KeyError(run_id)
        [(spec, attempt, pinned, best, stalls, ref, slot, alone, hangs, signature)] = rows
        job = job_from(spec, run_id, self.members(run_id).get(run_id, ()))
        if attempt and ref is None:
            raise damaged(run_id, "its last attempt is missing")
        left = from_text(ref, run_id) if ref else None
        if not all(isinstance(number, int) for number in (attempt, best, stalls, alone, hangs)):
            raise damaged(run_id, "a number of its attempts is not a number")
        signed = trust.signed(spec, signature)
        return Claimed(job, attempt, from_text(pinned, run_id), best, stalls, left, slot, bool(alone), hangs, signed)

    def members(self, run_id: str | None = None) -> dict[str, tuple[Member, ...]]:
        """Return the table rows of one run or of all runs, by run_id.

        The result includes rows that were requested after their run had finished.
        """
        where, values = (" WHERE run_id=?", (run_id,)) if run_id else ("", ())
        found: dict[str, tuple[Member, ...]] = {}
        for key, study, profile, corpus, row, group in self._read(f"SELECT * FROM members{where}", values):
            found[key] = (*found.get(key, ()), Member(study, profile, corpus, row, group))
        return found


def _row(path: Path, values: tuple[Any, ...], members: tuple[Member, ...]) -> JobStatus:
    named = dict(zip(_ROW.split(", "), values, strict=True))
    try:
        return _STATUS.validate_python({**named, "members": members})
    except ValidationError as error:
        wrong = " and ".join(str(one["loc"][0]) for one in error.errors())
        raise Damaged(
            f"The queue {path} is damaged ({wrong} of an entry). Move it away. A queue holds no results: it is rebuilt "
            "by `ablations queue`."
        ) from None
