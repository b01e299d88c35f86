"""The coordinator's changes to the queue: claiming, progress, endings.

Claiming is a compare-and-set: a process that finds the job no longer waiting takes the next one. All changes that
only the coordinator makes stand in one class.
"""

import json
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from experiments.jobs.queue.job import Ending, Job, Member, Outcome, State, Waiting, to_text
from experiments.jobs.queue.queue import LEFT, SPEC, UNPREDICTED, Queue
from experiments.jobs.queue.queue_file import explain
from experiments.records import record_time
from experiments.run_spec import EvaluationSpec

# The run_ids of an ensemble's members and of a branch's parent run are among its inputs (experiments/identity.py). A
# damaged entry is no JSON; it fails by itself when it is read. CROSS JOIN: inputs first, of which a job has few, and
# not all jobs of the queue for each.
_MEMBER_LEFT = (
    "SELECT 1 FROM json_each(CASE WHEN json_valid(jobs.spec) THEN jobs.spec ELSE '{}' END, '$.spec.inputs') AS read "
    "CROSS JOIN jobs AS other ON other.run_id = read.value WHERE other.state IN ('waiting', 'running') "
    "AND (read.key = 'parent_run' OR read.key LIKE 'ensemble member %')"
)


class WorkQueue(Queue):
    """A queue with the changes that only the coordinator makes."""

    def waiting(self, limit: int, without: Collection[str] = ()) -> list[Waiting]:
        """The first waiting jobs by priority, turn, predicted cost and age; none of the inputs_keys in `without`.

        An ensemble is left out while a member waits or runs, a branch while its parent run does.
        """
        marks = ",".join("?" * len(without))
        rows = self._read(
            "SELECT run_id, priority, cost, kind, inputs_key, memory_gb, devices, alone, gpu_memory_gb, turn, "
            f"json_extract({SPEC}, '$.spec.steps') FROM jobs "
            f"WHERE state='waiting' AND held='' AND inputs_key NOT IN ({marks}) AND NOT EXISTS ({_MEMBER_LEFT}) "
            "ORDER BY priority DESC, turn, cost DESC, queued, run_id LIMIT ?",
            (*without, limit),
        )
        return [Waiting(*row) for row in rows]

    def in_state(self, state: State, **also: Any) -> list[str]:
        """run_ids in a state; `also`: further conditions, column=value."""
        names = "".join(f" AND {name}=?" for name in also)
        rows = self._read(f"SELECT run_id FROM jobs WHERE state=?{names}", (state, *also.values()))
        return [row[0] for row in rows]

    def hold(self, run_id: str, why: str) -> None:
        """Keep a waiting job from being started, with the reason."""
        self._write("UPDATE jobs SET held=? WHERE run_id=? AND state='waiting'", (why, run_id))

    def hold_table(self, member: Member, why: str) -> None:
        """Keep all waiting jobs of a table from being started, with the reason."""
        self._write(
            "UPDATE jobs SET held=? WHERE state='waiting' AND run_id IN "
            "(SELECT run_id FROM members WHERE study=? AND profile=? AND corpus=?)",
            (why, *member[:3]),
        )

    def leave_others(self, run_ids: Collection[str]) -> None:
        """Keep all waiting jobs but these from being started, until another coordinator works."""
        self._write(
            "UPDATE jobs SET held=? WHERE state='waiting' AND run_id NOT IN (SELECT value FROM json_each(?))",
            (LEFT, json.dumps(list(run_ids))),
        )

    def release_held(self, beginning: str = "") -> None:
        """Release held jobs, those for a reason that begins so, to be checked again: another user may have a key."""
        self._write("UPDATE jobs SET held='' WHERE held<>'' AND held LIKE ?", (f"{beginning}%",))

    def data_version(self) -> int:
        """A number that changes when another process changes the queue."""
        return int(self._read("PRAGMA data_version")[0][0])

    def claim(self, run_id: str, attempt: int, slot: str, kind: str) -> bool:
        """Compare-and-set from waiting to running; False if another process was first, or the job was cancelled."""
        now = record_time()
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
        """Record what another coordinator needs: the engine's reference to the child, and its starting point."""
        with self._change():
            self._db.execute("UPDATE attempts SET ref=? WHERE run_id=? AND number=?", (to_text(ref), run_id, attempt))
            self._db.execute("UPDATE jobs SET pinned=?, best=? WHERE run_id=?", (to_text(pinned), best, run_id))

    def score_again(self, job: Job, replaced: Sequence[EvaluationSpec]) -> None:
        """Queue evaluations again whose weights a new training replaced, whichever study requested them.

        Not for stale results: their evaluations are made when their study is run again.
        """
        if replaced and not job.rerun_after:
            self.enqueue([replace(job, evaluations=tuple(replaced), renew={})])

    def explain_waiting(self, inputs_key: str, why: str) -> None:
        """Set the reason why the jobs of a corpus wait."""
        self._write(
            "UPDATE jobs SET doing=? WHERE inputs_key=? AND state='waiting' AND doing<>?", (why, inputs_key, why)
        )

    def explain(self, reasons: Mapping[str, str]) -> None:
        """Set the reason why jobs wait, by run_id; "" for none."""
        if reasons:
            with self._change():
                self._db.executemany(
                    "UPDATE jobs SET doing=? WHERE run_id=? AND state='waiting'",
                    [(why, run_id) for run_id, why in reasons.items()],
                )

    def progress(self, updates: Iterable[tuple[Any, ...]]) -> None:
        """Set (run_id, step, doing, left_s) of running jobs."""
        with self._change():
            self._db.executemany(
                "UPDATE jobs SET step=?, doing=?, left_s=? WHERE run_id=? AND state='running'",
                [(step, doing, left_s, run_id) for run_id, step, doing, left_s in updates],
            )

    def end(
        self,
        run_id: str,
        attempt: int,
        ending: Ending,
        steps: tuple[int | None, int | None] = (None, None),
    ) -> None:
        """Close an attempt, and set the next state of its job."""
        now, state = record_time(), ending.state
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
        """Record the number of damaged lines in an attempt's events, valid for this fingerprint of the file."""
        self._write(
            "UPDATE attempts SET events=? WHERE run_id=? AND number=?", (f"{content} {damaged}", run_id, attempt)
        )

    def learn_gpu_memory(self, job: Job, gb: float) -> None:
        """Record the measured peak on a GPU of a run whose memory is not predicted.

        It becomes the prediction of the waiting runs of the same study, unless a larger one was measured.
        """
        with self._change():
            for study in {member.study for member in job.members}:
                self._db.execute(
                    "UPDATE jobs SET gpu_memory_gb=max(gpu_memory_gb, ?) "
                    f"WHERE (run_id=? OR state='waiting') AND {UNPREDICTED}",
                    (gb, job.run_id, job.spec.task, study),
                )

    def end_waiting(self, run_ids: Iterable[str], state: State, error: str = "", error_class: str = "") -> None:
        """End waiting jobs that need no child: everything exists already, or their corpus cannot be prepared."""
        with self._change():
            self._db.executemany(
                "UPDATE jobs SET state=?, doing='', error=?, error_class=?, tracked=0, ended=? "
                "WHERE run_id=? AND state='waiting'",
                [(state, error, error_class, record_time(), run_id) for run_id in run_ids],
            )

    def end_damaged(self, run_id: str, error: str) -> None:
        """Fail a run with an unusable queue entry, in whatever state it is."""
        self._write(
            "UPDATE jobs SET state='failed', doing='', slot='', request='', error=?, error_class=?, tracked=1, "
            "ended=? WHERE run_id=?",
            (error, Outcome.USER_ERROR, record_time(), run_id),
        )

    def check(self) -> None:
        """Raises UserError for a damaged file."""
        with explain(self.path):
            found = str(self._db.execute("PRAGMA quick_check(1)").fetchone()[0])
            if found != "ok":
                raise sqlite3.DatabaseError(f"malformed: {found}")

    def note(self, name: str, text: str = "") -> None:
        """Store a line for `status`; an empty text removes it."""
        if text:
            self._write("INSERT OR REPLACE INTO notes VALUES (?, ?)", (name, text))
        else:
            self._write("DELETE FROM notes WHERE name=?", (name,))

    def tracked(self, run_ids: Iterable[str]) -> None:
        """Record that the ends of these jobs are in the tracking store."""
        with self._change():
            self._db.executemany(
                "UPDATE jobs SET tracked=1 WHERE run_id=? AND state NOT IN ('waiting', 'running')",
                [(run_id,) for run_id in run_ids],
            )
