"""The queue: jobs in SQLite. Any number of processes may use it at once.

Every change is one BEGIN IMMEDIATE transaction. Any process may call `enqueue`, `cancel` and `retry` at any time. Only
the coordinator claims and finishes jobs (work_queue.py). The queue can be lost without harm: results are in the store,
and `ablations queue` adds the jobs again.
"""

import contextlib
import functools
import heapq
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from experiments.errors import Damaged
from experiments.jobs.queue import queue_file, trust
from experiments.jobs.queue.job import (
    Claimed,
    Job,
    JobStatus,
    Member,
    State,
    damaged,
    from_text,
    job_from,
    merge,
    to_text,
)
from experiments.jobs.queue.queue_file import explain
from experiments.records import record_time
from experiments.store.retention import union

# --- Read the queue's SQLite file, without locks and without changes


SHARING = "sharing"  # name of the note about how many runs each GPU of `auto` has
LEFT = "left by `ablations run`, which trains its own table; `ablations work` starts it"  # why a job is held
SPEC = "CASE WHEN json_valid(spec) THEN spec ELSE '{}' END"  # {} for a damaged entry
# The jobs of a task and a study, if the task does not predict their GPU memory.
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
        """Return failed run_id → its requested eval_ids. Runs with damaged entries are left out."""
        rows = self._read("SELECT run_id, spec FROM jobs WHERE state='failed'")
        found = {}
        for run_id, spec in rows:
            with contextlib.suppress(Damaged):
                found[run_id] = {item.eval_id for item in job_from(spec, run_id).evaluations}
        return found

    def speed(self) -> float | None:
        """Return the predicted cost completed per second and slot; None if unknown.

        It is the mean over all runs that finished at their first attempt.
        """
        [(cost, seconds)] = self._read(
            "SELECT sum(j.cost), sum(max(a.ended - a.started, 0)) FROM jobs j JOIN attempts a "
            "ON a.run_id = j.run_id AND a.number = j.attempt "
            "WHERE j.state='finished' AND j.attempt=1 AND j.cost > 0"
        )
        return cost / seconds if cost and seconds else None

    def usual_s(self) -> float | None:
        """Return the mean time of the runs without a predicted cost; None if unknown.

        Only runs that finished at their first attempt count.
        """
        [(seconds,)] = self._read(
            "SELECT avg(max(a.ended - a.started, 0)) FROM jobs j JOIN attempts a "
            "ON a.run_id = j.run_id AND a.number = j.attempt "
            "WHERE j.state='finished' AND j.attempt=1 AND j.cost = 0 AND a.ended IS NOT NULL"
        )
        return seconds or None

    def running_left(self) -> list[float]:
        """Return the predicted seconds of training left of each running job; 0 if unknown.

        A job without steps and without a predicted cost is assumed to take the usual time (`usual_s`).
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

    def waiting_costs(self) -> list[float]:
        rows = self._read("SELECT cost FROM jobs WHERE state='waiting' AND held='' ORDER BY cost DESC")
        return [row[0] for row in rows]

    def measured_gpu_gb(self, task: str, study: str) -> float:
        """Return the largest measured peak of GPU memory of a study's finished runs; 0 if none was measured."""
        kept = f"SELECT COALESCE(max(gpu_memory_gb), 0) FROM jobs WHERE state='finished' AND {UNPREDICTED}"
        [(gb,)] = self._read(kept, (task, study))
        return float(gb)

    def devices_wanted(self) -> int:
        """Return the number of devices that all waiting and running jobs need at the same time."""
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

        Jobs that another table's `ablations run` has left (LEFT) do not count.
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
        """Return (run_id, error) of the jobs in a state whose end is not in the tracking store."""
        return self._read("SELECT run_id, error FROM jobs WHERE state=? AND tracked=0", (state,))

    def history(self, run_id: str) -> list[dict[str, Any]]:
        """Return a run's attempts, oldest first, as dictionaries.

        The keys are number, slot, started, ended, outcome, detail, first_step and last_step.
        """
        names = "number, slot, started, ended, outcome, detail, first_step, last_step"
        rows = self._read(f"SELECT {names} FROM attempts WHERE run_id=? ORDER BY number", (run_id,))
        return [dict(zip(names.split(", "), row, strict=True)) for row in rows]

    def damaged_lines(self) -> dict[tuple[str, int], tuple[str, int]]:
        """Return (run_id, attempt) → fingerprint of its events, and the number of damaged lines in them."""
        rows = self._read("SELECT run_id, number, events FROM attempts WHERE events != ''")
        told = {(run_id, number): text.rpartition(" ") for run_id, number, text in rows}
        return {place: (content, int(count)) for place, (content, _, count) in told.items() if count.isdigit()}

    def job(self, run_id: str) -> Claimed:
        """Return a job in full. Raise KeyError if it is not in the queue, and Damaged if its entry is damaged."""
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

        They include rows whose run was finished before the row was requested.
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


# --- The queue


class Queue(QueueConnection):
    """The queue, with the requests that any process may make."""

    def enqueue(self, jobs: Iterable[Job], now: float | None = None) -> int:
        """Add jobs, and return how many of them were not waiting or running before.

        A run is in the queue only once. A request for a run that waits or runs is joined with the earlier request. A
        run that has ended waits again.
        """
        now = record_time() if now is None else now
        measured = functools.cache(self.measured_gpu_gb)
        added = 0
        with self._change():
            for job in jobs:
                task, studies = job.spec.task, [member.study for member in job.members]
                gb = job.gpu_memory_gb or max((measured(task, study) for study in studies), default=0.0)
                added += self._enqueue(job, now, gb)
        return added

    def join(self, members: Iterable[tuple[str, Member]]) -> None:
        """Record the table rows of finished runs, which need not be queued."""
        with self._change():
            self._members_of(members)

    def cancel(self, run_ids: Iterable[str]) -> int:
        """Cancel waiting jobs at once, and running jobs through the coordinator. Return the number of these jobs."""
        count = 0
        with self._change():
            for run_id in run_ids:
                done = self._db.execute(
                    "UPDATE jobs SET state='cancelled', doing='', tracked=0, ended=? "
                    "WHERE run_id=? AND state='waiting'",
                    (record_time(), run_id),
                ).rowcount
                done += self._db.execute(
                    "UPDATE jobs SET request='cancel' WHERE run_id=? AND state='running'", (run_id,)
                ).rowcount
                count += done
        return count

    def retry(self, run_ids: Iterable[str]) -> int:
        """Queue failed and cancelled jobs again, with their checkpoints, and return their number.

        All held jobs are released, except those that `ablations run` has left. The coordinator holds jobs that need
        trust again.
        """
        with self._change():
            self._db.execute("UPDATE jobs SET held='' WHERE held NOT IN ('', ?)", (LEFT,))
            return sum(
                self._db.execute(
                    "UPDATE jobs SET state='waiting', stalls=0, hangs=0, error='', error_class='', doing='', "
                    "request='', queued=?, ended=NULL WHERE run_id=? AND state IN ('failed', 'cancelled')",
                    (record_time(), run_id),
                ).rowcount
                for run_id in run_ids
            )

    def release_left(self, run_ids: Iterable[str]) -> None:
        """Release these runs.

        The present coordinator then starts them, although it began with those of another table.
        """
        self._write(
            "UPDATE jobs SET held='' WHERE held=? AND run_id IN (SELECT value FROM json_each(?))",
            (LEFT, json.dumps(list(run_ids))),
        )

    def trust(self, study: str) -> list[Job]:
        """Sign the jobs of a study that execute another user's code, so that they may run. Return these jobs."""
        with self._change():
            rows = self._db.execute(
                "SELECT run_id, spec, signature FROM jobs WHERE run_id IN (SELECT run_id FROM members WHERE study=?)",
                (study,),
            ).fetchall()
            found = []
            for run_id, spec, signature in rows:
                job = job_from(spec, run_id)
                if trust.executes(job) and not trust.signed(spec, signature):
                    self._db.execute("UPDATE jobs SET signature=?, held='' WHERE run_id=?", (trust.sign(spec), run_id))
                    found.append(job)
        return found

    def forget(self, run_ids: Iterable[str]) -> None:
        """Remove the entries of runs, with their table rows and attempts, except of running ones."""
        with self._change():
            for run_id in run_ids:
                done = self._db.execute("DELETE FROM jobs WHERE run_id=? AND state<>'running'", (run_id,)).rowcount
                for table in ("members", "attempts") if done else ():
                    self._db.execute(f"DELETE FROM {table} WHERE run_id=?", (run_id,))

    def drain(self) -> None:
        """Ask the coordinator to finish the running jobs and start no others.

        The next coordinator starts jobs again.
        """
        self._write("INSERT OR REPLACE INTO notes VALUES ('drain', 'draining: starts no other runs')")

    @contextlib.contextmanager
    def _change(self) -> Iterator[None]:
        with explain(self.path), queue_file.immediate(self._db):
            yield

    def _write(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Make one change, and return the number of rows that it changed."""
        with self._change():
            return self._db.execute(sql, values).rowcount

    def _sound_entry(self, run_id: str) -> tuple[str, str, str] | None:
        """Return (spec, state, signature) of a run. Remove a damaged entry, so that it can be written again.

        Raises Damaged for a damaged entry of a running job.
        """
        row: tuple[str, str, str, str] | None = self._db.execute(
            "SELECT spec, state, signature, pinned FROM jobs WHERE run_id=?", (run_id,)
        ).fetchone()
        if row is None:
            return None
        try:
            job_from(row[0], run_id)
            from_text(row[3], run_id)
            State(row[1])
        except (Damaged, ValueError):
            if row[1] == State.RUNNING:
                raise
            self._db.execute("DELETE FROM jobs WHERE run_id=?", (run_id,))
            return None
        spec, state, signature, _ = row
        return spec, state, signature

    def _members_of(self, members: Iterable[tuple[str, Member]]) -> None:
        self._db.executemany(
            "INSERT OR REPLACE INTO members VALUES (?, ?, ?, ?, ?, ?)",
            [(run_id, m.study, m.profile, m.corpus, m.row, m.group) for run_id, m in members],
        )

    def _enqueue(self, job: Job, now: float, gpu_memory_gb: float) -> bool:
        row = self._sound_entry(job.run_id)
        self._members_of((job.run_id, member) for member in job.members)
        again = row is not None and State(row[1]) in (State.WAITING, State.RUNNING)
        mine = row is not None and (trust.signed(row[0], row[2]) or not trust.executes(job))
        if row is not None and again and mine:  # a request that this user has not signed is replaced, not joined
            job = merge(job_from(row[0], job.run_id), job)
        elif row is not None and not again:  # the run waits again: keep the checkpoints of earlier requests too
            job = replace(job, keeps=union(job_from(row[0], job.run_id).keeps, job.keeps))
        wanted = (job.spec.seed, job.priority, job.turn, job.spec.cost, job.inputs_key, job.total_steps)
        spec = to_text(job.to_json())
        values = (spec, *wanted, job.memory_gb, gpu_memory_gb, job.devices, trust.sign(spec))
        if again:
            names = "spec=?, seed=?, priority=?, turn=?, cost=?, inputs_key=?, total=?, "
            names += "memory_gb=?, gpu_memory_gb=?, devices=?, signature=?, held=''"
            self._db.execute(f"UPDATE jobs SET {names} WHERE run_id=?", (*values, job.run_id))
            return False
        doing = f"waits for its {'parent run' if job.spec.parent_run else 'members'}" if job.spec.reads else ""
        self._db.execute(
            "INSERT INTO jobs (run_id, state, queued, spec, seed, priority, turn, cost, inputs_key, total, "
            "memory_gb, gpu_memory_gb, devices, signature, doing, pinned) "
            "VALUES (?, 'waiting', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (run_id) DO UPDATE SET state='waiting', queued=excluded.queued, "
            "spec=excluded.spec, seed=excluded.seed, priority=excluded.priority, turn=excluded.turn, "
            "cost=excluded.cost, inputs_key=excluded.inputs_key, total=excluded.total, memory_gb=excluded.memory_gb, "
            "gpu_memory_gb=excluded.gpu_memory_gb, devices=excluded.devices, "
            "signature=excluded.signature, held='', alone=0, hangs=0, left_s=NULL, stalls=0, "
            "error='', error_class='', doing=excluded.doing, request='', tracked=0, started=NULL, ended=NULL",
            (job.run_id, now, *values, doing, to_text({})),
        )
        return True


# --- Predict when the queue will be empty, from the finished runs, or from the running ones if none has finished


DOUBLING = 1.8  # assumed speed-up of a run on twice as many devices


def left_s(queue: Queue, speed_now: float | None = None) -> float | None:
    """Return the seconds until the queue is empty, if as many slots as now stay in use; None if unknown.

    The prediction uses the speed of finished runs, or `speed_now`, the speed of the running ones (cost per second), if
    none has finished. Runs without a predicted cost are assumed to take the usual time of finished runs.
    """
    speed, running, waiting = queue.speed() or speed_now, queue.running_left(), queue.waiting_costs()
    usual = queue.usual_s() if 0.0 in waiting else None
    known = all(speed if cost else usual for cost in waiting)
    if not (running or waiting) or not known:
        return None
    slots = max(1, len(running))
    lengths = [(cost / speed if cost and speed else usual or 0.0, 1) for cost in waiting]
    return makespan(lengths, running + [0.0] * (slots - len(running)))  # running jobs stay on their slots


def makespan(runs: Iterable[tuple[float, int]], free_at: Sequence[float]) -> float:
    """Return the time when all runs have ended. The longest run starts first, and each takes the first free devices.

    On twice as many devices, a run is assumed to be DOUBLING times as fast.

    runs: (length on one device, number of devices).
    free_at: time when each device becomes free.
    """
    free = sorted(free_at)
    for length, devices in sorted(runs, reverse=True):
        mine = [heapq.heappop(free) for _ in range(devices)]
        end = max(mine) + length / DOUBLING ** (devices.bit_length() - 1)
        for _ in mine:
            heapq.heappush(free, end)
    return max(free)
