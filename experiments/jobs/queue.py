"""The queue: jobs in SQLite, safe for any number of processes at once.

Every change is one BEGIN IMMEDIATE transaction. `enqueue`, `cancel` and `retry` may come from any process at any
time; claiming and finishing are the coordinator's (ledger.py). The queue is disposable: results are in the store,
and `ablations queue` fills it again.
"""

import contextlib
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from experiments.jobs import database
from experiments.jobs.job import Claimed, Job, Member, Row, merge
from experiments.jobs.states import State

_ROW = (
    "run_id, state, seed, priority, cost, attempt, step, total, doing, slot, error, error_class, queued, started, ended"
)


class Queue:
    """One connection; not to be shared between threads or across a fork."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self.path = path
        self._db = database.connect(path, create=create)

    def close(self) -> None:
        self._db.close()

    # --- requests: from any process ---

    def enqueue(self, jobs: Iterable[Job], now: float | None = None) -> int:
        """Add jobs; returns how many were not already waiting or running. A run is in the queue once.

        Asked again while it waits or runs: the wishes are joined. Asked again after its end: it waits again.
        """
        now = time.time() if now is None else now
        with self._change():
            return sum(self._enqueue(job, now) for job in jobs)

    def cancel(self, run_ids: Iterable[str]) -> int:
        """Cancel what waits at once, what runs through the coordinator; returns how many it concerns."""
        count = 0
        with self._change():
            for run_id in run_ids:
                done = self._db.execute(
                    "UPDATE jobs SET state='cancelled', doing='', tracked=0, ended=? "
                    "WHERE run_id=? AND state='waiting'",
                    (time.time(), run_id),
                ).rowcount
                done += self._db.execute(
                    "UPDATE jobs SET request='cancel' WHERE run_id=? AND state='running'", (run_id,)
                ).rowcount
                count += done
        return count

    def retry(self, run_ids: Iterable[str]) -> int:
        """Let failed and cancelled jobs wait again, with their checkpoints; returns how many."""
        with self._change():
            return sum(
                self._db.execute(
                    "UPDATE jobs SET state='waiting', stalls=0, error='', error_class='', doing='', request='', "
                    "queued=?, ended=NULL WHERE run_id=? AND state IN ('failed', 'cancelled')",
                    (time.time(), run_id),
                ).rowcount
                for run_id in run_ids
            )

    # --- looking: no lock ---

    def status(self) -> list[Row]:
        """Every job, in the order in which they were queued."""
        members = self._members()
        with database.explain(self.path):
            rows = self._db.execute(f"SELECT {_ROW} FROM jobs ORDER BY queued, run_id").fetchall()
        return [_row(values, members.get(values[0], ())) for values in rows]

    def counts(self) -> dict[State, int]:
        with database.explain(self.path):
            found = dict(self._db.execute("SELECT state, count(*) FROM jobs GROUP BY state").fetchall())
        return {state: found.get(state, 0) for state in State}

    def history(self, run_id: str) -> list[dict[str, Any]]:
        """A run's attempts, oldest first: number, slot, started, ended, outcome, detail, first_step, last_step."""
        names = "number, slot, started, ended, outcome, detail, first_step, last_step"
        with database.explain(self.path):
            rows = self._db.execute(f"SELECT {names} FROM attempts WHERE run_id=? ORDER BY number", (run_id,))
            return [dict(zip(names.split(", "), row, strict=True)) for row in rows]

    def job(self, run_id: str) -> Claimed:
        """A job in full. Raises KeyError if it is not in the queue."""
        with database.explain(self.path):
            row = self._db.execute(
                "SELECT spec, j.attempt, pinned, best, stalls, a.ref, j.slot FROM jobs j LEFT JOIN attempts a "
                "ON a.run_id = j.run_id AND a.number = j.attempt WHERE j.run_id=?",
                (run_id,),
            ).fetchone()
        if row is None:
            raise KeyError(run_id)
        spec, attempt, pinned, best, stalls, ref, slot = row
        job = Job.from_json(json.loads(spec), self._members(run_id).get(run_id, ()))
        return Claimed(job, attempt, json.loads(pinned), best, stalls, json.loads(ref) if ref else None, slot)

    # --- inside ---

    @contextlib.contextmanager
    def _change(self) -> Iterator[None]:
        with database.explain(self.path), database.immediate(self._db):
            yield

    def _enqueue(self, job: Job, now: float) -> bool:
        row = self._db.execute("SELECT spec, state FROM jobs WHERE run_id=?", (job.run_id,)).fetchone()
        self._db.executemany(
            "INSERT OR REPLACE INTO members VALUES (?, ?, ?, ?, ?, ?)",
            [(job.run_id, m.study, m.profile, m.corpus, m.row, m.group) for m in job.members],
        )
        again = row is not None and State(row[1]) in (State.WAITING, State.RUNNING)
        if again:
            job = merge(Job.from_json(json.loads(row[0])), job)
        values = (json.dumps(job.to_json()), job.seed, job.priority, job.cost, job.inputs_key, job.total_steps)
        if again:
            names = "spec=?, seed=?, priority=?, cost=?, inputs_key=?, total=?"
            self._db.execute(f"UPDATE jobs SET {names} WHERE run_id=?", (*values, job.run_id))
            return False
        self._db.execute(
            "INSERT INTO jobs (run_id, state, queued, spec, seed, priority, cost, inputs_key, total) "
            "VALUES (?, 'waiting', ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (run_id) DO UPDATE SET state='waiting', "
            "queued=excluded.queued, spec=excluded.spec, seed=excluded.seed, priority=excluded.priority, "
            "cost=excluded.cost, inputs_key=excluded.inputs_key, total=excluded.total, stalls=0, error='', "
            "error_class='', doing='', request='', tracked=0, started=NULL, ended=NULL",
            (job.run_id, now, *values),
        )
        return True

    def _members(self, run_id: str | None = None) -> dict[str, tuple[Member, ...]]:
        where, values = (" WHERE run_id=?", (run_id,)) if run_id else ("", ())
        found: dict[str, tuple[Member, ...]] = {}
        with database.explain(self.path):
            rows: Iterator[Any] = self._db.execute(f"SELECT * FROM members{where}", values)
            for key, study, profile, corpus, row, group in rows:
                found[key] = (*found.get(key, ()), Member(study, profile, corpus, row, group))
        return found


def _row(values: tuple[Any, ...], members: tuple[Member, ...]) -> Row:
    named = dict(zip(_ROW.split(", "), values, strict=True))
    named["state"] = State(named["state"])
    return Row(**named, members=members)
