"""The queue: jobs in SQLite, safe for any number of processes at once.

Every change is one BEGIN IMMEDIATE transaction. Any process may call `enqueue`, `cancel` and `retry` at any time; only
the coordinator claims and finishes jobs (ledger.py). The queue is disposable: results are in the store, and
`ablations queue` fills it again.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from experiments.errors import Damaged
from experiments.events import clock
from experiments.identity import trunk_in
from experiments.jobs.queue import database, trust
from experiments.jobs.queue.entries import from_text, job_from, to_text
from experiments.jobs.queue.job import Job, Member, merge
from experiments.jobs.queue.reading import Reading
from experiments.jobs.queue.sqlite_errors import explain
from experiments.jobs.queue.states import State
from experiments.store.keeps import union


class Queue(Reading):
    """The requests that any process may make."""

    def enqueue(self, jobs: Iterable[Job], now: float | None = None) -> int:
        """Add jobs; returns how many were not already waiting or running. A run is in the queue only once.

        A request for a run that waits or runs is joined with the earlier one; an ended run waits again.
        """
        now = clock.now() if now is None else now
        with self._change():
            return sum(self._enqueue(job, now) for job in jobs)

    def join(self, members: Iterable[tuple[str, Member]]) -> None:
        """Record the tables of runs that need not be queued, because they are finished."""
        with self._change():
            self._members_of(members)

    def cancel(self, run_ids: Iterable[str]) -> int:
        """Cancel waiting jobs at once, running ones through the coordinator; returns their number."""
        count = 0
        with self._change():
            for run_id in run_ids:
                done = self._db.execute(
                    "UPDATE jobs SET state='cancelled', doing='', tracked=0, ended=? "
                    "WHERE run_id=? AND state='waiting'",
                    (clock.now(), run_id),
                ).rowcount
                done += self._db.execute(
                    "UPDATE jobs SET request='cancel' WHERE run_id=? AND state='running'", (run_id,)
                ).rowcount
                count += done
        return count

    def retry(self, run_ids: Iterable[str]) -> int:
        """Queue failed and cancelled jobs again, with their checkpoints; returns their number.

        Jobs that wait because others failed are held no longer; those that need trust are held again.
        """
        with self._change():
            self._db.execute("UPDATE jobs SET held='' WHERE held<>''")
            return sum(
                self._db.execute(
                    "UPDATE jobs SET state='waiting', stalls=0, hangs=0, error='', error_class='', doing='', "
                    "request='', queued=?, ended=NULL WHERE run_id=? AND state IN ('failed', 'cancelled')",
                    (clock.now(), run_id),
                ).rowcount
                for run_id in run_ids
            )

    def trust(self, study: str) -> list[Job]:
        """Sign a study's jobs that execute another user's code, so that they may run; returns these jobs."""
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
        """Remove the entries of runs that do not run: their jobs, tables and attempts."""
        with self._change():
            for run_id in run_ids:
                done = self._db.execute("DELETE FROM jobs WHERE run_id=? AND state<>'running'", (run_id,)).rowcount
                for table in ("members", "attempts") if done else ():
                    self._db.execute(f"DELETE FROM {table} WHERE run_id=?", (run_id,))

    def drain(self) -> None:
        """Request the coordinator to finish running jobs and start no others. Does not affect the next coordinator."""
        self._write("INSERT OR REPLACE INTO notes VALUES ('drain', 'draining: starts no other runs')")

    def agree(self, shares: str) -> None:
        """Let the coordinator know that other shares were agreed upon, and `status` say so. `shares`: a line."""
        self._write("INSERT OR REPLACE INTO notes VALUES ('shares', ?)", (shares,))

    @contextlib.contextmanager
    def _change(self) -> Iterator[None]:
        with explain(self.path), database.immediate(self._db):
            yield

    def _write(self, sql: str, values: Sequence[Any] = ()) -> int:
        """One change; returns how many rows it concerned."""
        with self._change():
            return self._db.execute(sql, values).rowcount

    def _sound_entry(self, run_id: str) -> tuple[str, str, str] | None:
        """(spec, state, signature) of a run; a damaged entry is removed, so that it can be written again.

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

    def _enqueue(self, job: Job, now: float) -> bool:
        row = self._sound_entry(job.run_id)
        self._members_of((job.run_id, member) for member in job.members)
        again = row is not None and State(row[1]) in (State.WAITING, State.RUNNING)
        mine = row is not None and (trust.signed(row[0], row[2]) or not trust.executes(job))
        if row is not None and again and mine:  # the demands of other users are not signed
            job = merge(job_from(row[0], job.run_id), job)
        elif row is not None and not again:  # trained again: earlier demands still hold
            job = replace(job, keeps=union(job_from(row[0], job.run_id).keeps, job.keeps))
        wanted = (job.seed, job.priority, job.turn, job.cost, job.inputs_key, job.total_steps)
        spec = to_text(job.to_json())
        values = (spec, *wanted, job.memory_gb, job.gpu_memory_gb, job.devices, trust.sign(spec))
        if again:
            names = "spec=?, seed=?, priority=?, turn=?, cost=?, inputs_key=?, total=?, "
            names += "memory_gb=?, gpu_memory_gb=?, devices=?, signature=?, held=''"
            self._db.execute(f"UPDATE jobs SET {names} WHERE run_id=?", (*values, job.run_id))
            return False
        doing = f"waits for its {'trunk' if trunk_in(job.inputs) else 'members'}" if job.after else ""
        self._db.execute(
            "INSERT INTO jobs (run_id, state, queued, spec, seed, priority, turn, cost, inputs_key, total, "
            "memory_gb, gpu_memory_gb, devices, signature, doing, user, pinned) "
            "VALUES (?, 'waiting', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (run_id) DO UPDATE SET state='waiting', queued=excluded.queued, "
            "spec=excluded.spec, seed=excluded.seed, priority=excluded.priority, turn=excluded.turn, "
            "cost=excluded.cost, inputs_key=excluded.inputs_key, total=excluded.total, memory_gb=excluded.memory_gb, "
            "gpu_memory_gb=excluded.gpu_memory_gb, devices=excluded.devices, "
            "signature=excluded.signature, user=excluded.user, held='', alone=0, hangs=0, left_s=NULL, stalls=0, "
            "error='', error_class='', doing=excluded.doing, request='', tracked=0, started=NULL, ended=NULL",
            (job.run_id, now, *values, doing, job.user, to_text({})),
        )
        return True
