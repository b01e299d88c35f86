"""The coordinator's side of the queue: claiming, progress, endings.

Claiming is a compare-and-set: who finds the job no longer waiting takes the next.
"""

import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from experiments.events import clock
from experiments.jobs.queue import database
from experiments.jobs.queue.entries import to_text
from experiments.jobs.queue.job import Ending, Job, Member, Waiting
from experiments.jobs.queue.queue import Queue
from experiments.jobs.queue.states import Outcome, State


class Ledger(Queue):
    """A queue with the changes that only the coordinator makes."""

    def waiting(self, limit: int, without: Collection[str] = ()) -> list[Waiting]:
        """The first jobs in turn: priority, then predicted cost, then age; `without` those inputs_keys."""
        marks = ",".join("?" * len(without))
        with database.explain(self.path):
            rows = self._db.execute(
                "SELECT run_id, priority, cost, kind, inputs_key, memory_gb, devices, alone, gpu_memory_gb FROM jobs "
                f"WHERE state='waiting' AND held='' AND inputs_key NOT IN ({marks}) "
                "ORDER BY priority DESC, cost DESC, queued, run_id LIMIT ?",
                (*without, limit),
            ).fetchall()
        return [Waiting(*row) for row in rows]

    def in_state(self, state: State, **also: Any) -> list[str]:
        """run_ids in a state; `also` are further columns and their values."""
        names = "".join(f" AND {name}=?" for name in also)
        with database.explain(self.path):
            rows = self._db.execute(f"SELECT run_id FROM jobs WHERE state=?{names}", (state, *also.values()))
            return [row[0] for row in rows]

    def hold(self, run_id: str, why: str) -> None:
        """Keep a job waiting that this user may not run."""
        with self._change():
            self._db.execute("UPDATE jobs SET held=? WHERE run_id=? AND state='waiting'", (why, run_id))

    def release_held(self) -> None:
        """Let all be looked at anew: another coordinator's user may have another key."""
        with self._change():
            self._db.execute("UPDATE jobs SET held='' WHERE held<>''")

    def data_version(self) -> int:
        """Changes when another process has changed the queue."""
        with database.explain(self.path):
            return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def left_open(self) -> bool:
        """Whether runs wait whose number of devices is not decided."""
        with database.explain(self.path):
            return bool(self._db.execute("SELECT 1 FROM jobs WHERE state='waiting' AND devices=0 LIMIT 1").fetchone())

    def widths(self) -> tuple[dict[str, float], dict[str, int]]:
        """Of what waits: predicted costs, and the number of devices where it is decided, or was at an attempt."""
        with database.explain(self.path):
            rows = self._db.execute(
                "SELECT run_id, cost, CASE devices WHEN 0 THEN COALESCE(json_extract(pinned, '$.devices'), 0) "
                "ELSE devices END FROM jobs WHERE state='waiting'"
            ).fetchall()
        return {run_id: cost for run_id, cost, _ in rows}, {run_id: width for run_id, _, width in rows if width}

    def decide(self, widths: Mapping[str, int]) -> None:
        """Keep how many devices the runs take that left it open: one if they are not named."""
        with self._change():
            self._db.executemany(
                "UPDATE jobs SET devices=? WHERE run_id=? AND state='waiting' AND devices=0",
                [(width, run_id) for run_id, width in widths.items()],
            )
            self._db.execute("UPDATE jobs SET devices=1 WHERE state='waiting' AND devices=0")

    def claim(self, run_id: str, attempt: int, slot: str, kind: str, now: float | None = None) -> bool:
        """Compare-and-set from waiting to running; False if somebody else was first or it was cancelled."""
        now = clock.now() if now is None else now
        with self._change():
            claimed = self._db.execute(
                "UPDATE jobs SET state='running', attempt=?, slot=?, started=?, ended=NULL, doing='starting', "
                "request='', tracked=0, kind=? WHERE run_id=? AND state='waiting'",
                (attempt, slot, now, kind, run_id),
            ).rowcount
            if claimed:
                self._db.execute(
                    "INSERT OR REPLACE INTO attempts (run_id, number, slot, started) VALUES (?, ?, ?, ?)",
                    (run_id, attempt, slot, now),
                )
        return bool(claimed)

    def started(self, run_id: str, attempt: int, ref: Mapping[str, Any], pinned: Mapping[str, Any], best: int) -> None:
        """Note what another coordinator needs: the engine's reference to the child, and what it goes on from."""
        with self._change():
            self._db.execute("UPDATE attempts SET ref=? WHERE run_id=? AND number=?", (to_text(ref), run_id, attempt))
            self._db.execute("UPDATE jobs SET pinned=?, best=? WHERE run_id=?", (to_text(pinned), best, run_id))

    def score_again(self, job: Job, replaced: Sequence[Mapping[str, Any]]) -> None:
        """Have evaluations made again whose weights a new training has replaced, whoever asked for them.

        Not those of stale results: they are made when their study is asked for again.
        """
        if replaced and not job.rerun_after:
            self.enqueue([replace(job, evaluations=tuple(replaced))])

    def explain_waiting(self, inputs_key: str, why: str) -> None:
        """Say why the jobs of a corpus wait."""
        with self._change():
            self._db.execute(
                "UPDATE jobs SET doing=? WHERE inputs_key=? AND state='waiting' AND doing<>?", (why, inputs_key, why)
            )

    def explain(self, reasons: Mapping[str, str]) -> None:
        """Say why jobs wait, by run_id; "" for no reason of its own."""
        if reasons:
            with self._change():
                self._db.executemany(
                    "UPDATE jobs SET doing=? WHERE run_id=? AND state='waiting'",
                    [(why, run_id) for run_id, why in reasons.items()],
                )

    def progress(self, updates: Iterable[tuple[str, int | None, str, float | None]]) -> None:
        """Set (run_id, step, doing, left_s) of running jobs."""
        with self._change():
            self._db.executemany(
                "UPDATE jobs SET step=?, doing=?, left_s=? WHERE run_id=? AND state='running'",
                [(step, doing, left_s, run_id) for run_id, step, doing, left_s in updates],
            )

    def end(
        self, run_id: str, attempt: int, ending: Ending, steps: tuple[int | None, int | None] = (None, None)
    ) -> None:
        """Close an attempt and move its job on."""
        now, state = clock.now(), ending.state
        with self._change():
            self._db.execute(
                "UPDATE attempts SET ended=?, outcome=?, detail=?, first_step=?, last_step=? "
                "WHERE run_id=? AND number=?",
                (now, ending.outcome, ending.detail, *steps, run_id, attempt),
            )
            self._db.execute(
                "UPDATE jobs SET state=?, doing=?, slot='', request='', error=?, error_class=?, best=?, stalls=?, "
                "hangs=?, alone=?, left_s=NULL, tracked=0, pinned=COALESCE(?, pinned), step=COALESCE(?, step), "
                "ended=? WHERE run_id=? AND attempt=?",
                (
                    state,
                    ending.detail if state is State.WAITING else "",
                    ending.error,
                    ending.outcome if state is State.FAILED else "",
                    ending.best,
                    ending.stalls,
                    ending.hangs,
                    ending.alone,
                    to_text(ending.pinned) if ending.pinned is not None else None,
                    steps[1],
                    now if state.ended else None,
                    run_id,
                    attempt,
                ),
            )

    def events_read(self, run_id: str, attempt: int, content: str, damaged: int) -> None:
        """Note how many damaged lines an attempt's events have, as long as the file has this content."""
        with self._change():
            self._db.execute(
                "UPDATE attempts SET events=? WHERE run_id=? AND number=?", (f"{content} {damaged}", run_id, attempt)
            )

    def end_waiting(self, run_ids: Iterable[str], state: State, error: str = "", error_class: str = "") -> None:
        """Move waiting jobs on that need no child: all is there already, or their corpus cannot be made."""
        with self._change():
            self._db.executemany(
                "UPDATE jobs SET state=?, doing='', error=?, error_class=?, tracked=0, ended=? "
                "WHERE run_id=? AND state='waiting'",
                [(state, error, error_class, clock.now(), run_id) for run_id in run_ids],
            )

    def end_damaged(self, run_id: str, error: str) -> None:
        """Fail a run whose entry cannot be used, whatever it was doing."""
        with self._change():
            self._db.execute(
                "UPDATE jobs SET state='failed', doing='', slot='', request='', error=?, error_class=?, tracked=1, "
                "ended=? WHERE run_id=?",
                (error, Outcome.USER_ERROR, clock.now(), run_id),
            )

    def check(self) -> None:
        """Raises UserError for a damaged file."""
        with database.explain(self.path):
            found = str(self._db.execute("PRAGMA quick_check(1)").fetchone()[0])
            if found != "ok":
                raise sqlite3.DatabaseError(f"malformed: {found}")

    def note(self, name: str, text: str = "") -> None:
        """Keep a line for `status` to show; an empty text takes it away."""
        with self._change():
            if text:
                self._db.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (name, text))
            else:
                self._db.execute("DELETE FROM notes WHERE name=?", (name,))

    def unfinished(self, member: Member) -> int:
        """How many runs of a table wait or run."""
        with database.explain(self.path):
            row = self._db.execute(
                "SELECT count(*) FROM members m JOIN jobs j ON j.run_id = m.run_id WHERE m.study=? AND m.profile=? "
                "AND m.corpus=? AND j.state IN ('waiting', 'running')",
                member[:3],
            ).fetchone()
        return int(row[0])

    def untracked(self, state: State) -> list[tuple[str, str]]:
        """run_ids in a state whose end the tracking store does not know, and their errors."""
        with database.explain(self.path):
            rows = self._db.execute("SELECT run_id, error FROM jobs WHERE state=? AND tracked=0", (state,))
            return [(run_id, error) for run_id, error in rows]

    def tracked(self, run_ids: Iterable[str]) -> None:
        """Note that the tracking store knows the end of these jobs."""
        with self._change():
            self._db.executemany(
                "UPDATE jobs SET tracked=1 WHERE run_id=? AND state NOT IN ('waiting', 'running')",
                [(run_id,) for run_id in run_ids],
            )
