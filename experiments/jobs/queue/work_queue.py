"""The coordinator's changes to the queue: claims, progress, endings.

The coordinator claims a job with a compare-and-set. If the job no longer waits, the claim fails and the coordinator
continues with the next job.
"""

import json
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from experiments.jobs.queue.job import Ending, Job, Member, Outcome, State, Waiting
from experiments.jobs.queue.job_json import to_text
from experiments.jobs.queue.queue import Queue
from experiments.jobs.queue.queue_connection import LEFT, SPEC, UNPREDICTED
from experiments.jobs.queue.sqlite_errors import explain
from experiments.records import record_time
from experiments.run_spec import EvaluationSpec

# Selects the members of an ensemble, or the parent run of a branch, that have not ended. Their run_ids are among the
# inputs of the job (experiments/identity.py). For a damaged entry, which is not JSON, the query selects nothing, and
# the job fails when its entry is read. A job has few inputs, so CROSS JOIN makes SQLite loop over the inputs and not
# over all jobs of the queue.
_MEMBER_LEFT = (
    "SELECT 1 FROM json_each(CASE WHEN json_valid(jobs.spec) THEN jobs.spec ELSE '{}' END, '$.spec.inputs') AS read "
    "CROSS JOIN jobs AS other ON other.run_id = read.value WHERE other.state IN ('waiting', 'running') "
    "AND (read.key = 'parent_run' OR read.key LIKE 'ensemble member %')"
)


class WorkQueue(Queue):
    """A queue with the changes that only the coordinator makes."""

    def waiting(self, limit: int, without: Collection[str] = ()) -> list[Waiting]:
        """Return the first waiting jobs in the order of priority, turn, predicted cost and age.

        without: inputs_keys of jobs to leave out.

        An ensemble is left out while a member waits or runs, and a branch while its parent run waits or runs.
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
        """Return the run_ids of the jobs in a state. also: further columns, and the values that they must have."""
        names = "".join(f" AND {name}=?" for name in also)
        rows = self._read(f"SELECT run_id FROM jobs WHERE state=?{names}", (state, *also.values()))
        return [row[0] for row in rows]

    def hold(self, run_id: str, why: str) -> None:
        """Hold a waiting job, so that it is not started, and record the reason."""
        self._write("UPDATE jobs SET held=? WHERE run_id=? AND state='waiting'", (why, run_id))

    def hold_table(self, member: Member, why: str) -> None:
        """Hold all waiting jobs of a table, so that they are not started, and record the reason."""
        self._write(
            "UPDATE jobs SET held=? WHERE state='waiting' AND run_id IN "
            "(SELECT run_id FROM members WHERE study=? AND profile=? AND corpus=?)",
            (why, *member[:3]),
        )

    def leave_others(self, run_ids: Collection[str]) -> None:
        """Hold all waiting jobs except those of `run_ids`, until another coordinator starts."""
        self._write(
            "UPDATE jobs SET held=? WHERE state='waiting' AND run_id NOT IN (SELECT value FROM json_each(?))",
            (LEFT, json.dumps(list(run_ids))),
        )

    def release_held(self, beginning: str = "") -> None:
        """Release held jobs whose reason begins with `beginning`, so that the coordinator checks them again.

        The result of the check may have changed, for example because another user works on the store.
        """
        self._write("UPDATE jobs SET held='' WHERE held<>'' AND held LIKE ?", (f"{beginning}%",))

    def data_version(self) -> int:
        """Return a number that changes when another process changes the queue."""
        return int(self._read("PRAGMA data_version")[0][0])

    def claim(self, run_id: str, attempt: int, slot: str, kind: str) -> bool:
        """Change a job from waiting to running.

        Returns False if the job no longer waits, because another process has claimed or cancelled it.
        """
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
        """Record the facts about a started attempt that another coordinator needs to take it over.

        ref: the engine's reference to the child.
        pinned, best: the pinned settings and the best progress at the start of the attempt.
        """
        with self._change():
            self._db.execute("UPDATE attempts SET ref=? WHERE run_id=? AND number=?", (to_text(ref), run_id, attempt))
            self._db.execute("UPDATE jobs SET pinned=?, best=? WHERE run_id=?", (to_text(pinned), best, run_id))

    def score_again(self, job: Job, replaced: Sequence[EvaluationSpec]) -> None:
        """Queue evaluations again if a new training has replaced their weights, whichever study requested them.

        If earlier results of the job are stale, nothing is queued here. The evaluations are made when their study is
        run again.
        """
        if replaced and not job.rerun_after:
            self.enqueue([replace(job, evaluations=tuple(replaced), renew={})])

    def explain_waiting(self, inputs_key: str, why: str) -> None:
        """Set the reason why the jobs that need the same prepared data wait."""
        self._write(
            "UPDATE jobs SET doing=? WHERE inputs_key=? AND state='waiting' AND doing<>?", (why, inputs_key, why)
        )

    def explain(self, reasons: Mapping[str, str]) -> None:
        """Set the reasons why jobs wait: run_id → reason, with "" for no reason."""
        if reasons:
            with self._change():
                self._db.executemany(
                    "UPDATE jobs SET doing=? WHERE run_id=? AND state='waiting'",
                    [(why, run_id) for run_id, why in reasons.items()],
                )

    def progress(self, updates: Iterable[tuple[Any, ...]]) -> None:
        """Set the progress of running jobs. updates: (run_id, step, doing, left_s) of each."""
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
        """Record the end of an attempt, and set the next state of its job."""
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
        """Record the number of damaged lines in an attempt's events.

        content: fingerprint of the events file. The number is valid as long as the file has this fingerprint.
        """
        self._write(
            "UPDATE attempts SET events=? WHERE run_id=? AND number=?", (f"{content} {damaged}", run_id, attempt)
        )

    def learn_gpu_memory(self, job: Job, gb: float) -> None:
        """Record the measured peak GPU memory of a run whose memory is not predicted.

        The peak becomes the prediction for waiting runs of the same task and study, unless a larger peak was measured
        before.
        """
        with self._change():
            for study in {member.study for member in job.members}:
                self._db.execute(
                    "UPDATE jobs SET gpu_memory_gb=max(gpu_memory_gb, ?) "
                    f"WHERE (run_id=? OR state='waiting') AND {UNPREDICTED}",
                    (gb, job.run_id, job.spec.task, study),
                )

    def end_waiting(self, run_ids: Iterable[str], state: State, error: str = "", error_class: str = "") -> None:
        """End waiting jobs that need no child: their results exist already, or they cannot be started."""
        with self._change():
            self._db.executemany(
                "UPDATE jobs SET state=?, doing='', error=?, error_class=?, tracked=0, ended=? "
                "WHERE run_id=? AND state='waiting'",
                [(state, error, error_class, record_time(), run_id) for run_id in run_ids],
            )

    def end_damaged(self, run_id: str, error: str) -> None:
        """Set the state of a job with a damaged entry to failed, whatever its present state is."""
        self._write(
            "UPDATE jobs SET state='failed', doing='', slot='', request='', error=?, error_class=?, tracked=1, "
            "ended=? WHERE run_id=?",
            (error, Outcome.USER_ERROR, record_time(), run_id),
        )

    def check(self) -> None:
        """Raise UserError if the file is damaged."""
        with explain(self.path):
            found = str(self._db.execute("PRAGMA quick_check(1)").fetchone()[0])
            if found != "ok":
                raise sqlite3.DatabaseError(f"malformed: {found}")

    def note(self, name: str, text: str = "") -> None:
        """Store a line for `status`. An empty text removes the line."""
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
