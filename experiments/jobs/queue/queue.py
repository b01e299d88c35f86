"""The queue: jobs in SQLite. Any number of processes may use it at the same time.

Every change is one BEGIN IMMEDIATE transaction. Any process may call `enqueue`, `cancel` and `retry` at any time. Only
the coordinator claims and finishes jobs (work_queue.py). The queue can be lost without harm, because results are in the
store and `ablations queue` adds the jobs again.
"""

import contextlib
import functools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from experiments.errors import Damaged
from experiments.jobs.queue import queue_file, trust
from experiments.jobs.queue.job import Job, Member, State, merge
from experiments.jobs.queue.job_json import from_text, job_from, to_text
from experiments.jobs.queue.queue_connection import LEFT, QueueConnection
from experiments.jobs.queue.sqlite_errors import explain
from experiments.records import record_time
from experiments.store.retention import union


class Queue(QueueConnection):
    """The queue, with the requests that any process may make."""

    def enqueue(self, jobs: Iterable[Job], now: float | None = None) -> int:
        """Add jobs, and return how many of them were not waiting or running before.

        A run is in the queue only once. A request for a run that waits or runs is joined with the earlier request. If a
        run has ended, its job waits again.
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
        """Record the table rows to which finished runs belong. The runs are not queued."""
        with self._change():
            self._members_of(members)

    def cancel(self, run_ids: Iterable[str]) -> int:
        """Cancel waiting and running jobs, and return their number.

        Waiting jobs end immediately. The coordinator stops running jobs.
        """
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
        """Queue failed and cancelled jobs again, and return their number. The runs resume from their checkpoints.

        Also release all held jobs, except those that `ablations run` has left because they belong to another table. If
        a job executes code that the user must trust first, the coordinator holds the job again.
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
        """Release the jobs of these runs that `ablations run` has left.

        The present coordinator then starts them, although it was started for another table.
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
        """Remove the entries of runs, with their table rows and attempts. Entries of running jobs stay."""
        with self._change():
            for run_id in run_ids:
                done = self._db.execute("DELETE FROM jobs WHERE run_id=? AND state<>'running'", (run_id,)).rowcount
                for table in ("members", "attempts") if done else ():
                    self._db.execute(f"DELETE FROM {table} WHERE run_id=?", (run_id,))

    def drain(self) -> None:
        """Ask the coordinator to finish the running jobs and start no other jobs.

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
        """Return (spec, state, signature) of a run; None if it has no entry or its entry is damaged.

        A damaged entry is removed, so that it can be written again. If the job with the damaged entry runs, the error
        (Damaged or ValueError) is raised instead.
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
        elif row is not None and not again:  # the run waits again, so keep the checkpoints of earlier requests too
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
