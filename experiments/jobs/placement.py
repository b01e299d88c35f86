"""From waiting jobs to started children: the coordinator's half that places."""

from collections.abc import Collection, Sequence

from experiments import provenance
from experiments.errors import UserError
from experiments.jobs import attempts
from experiments.jobs.attempts import Live
from experiments.jobs.engines.base import Engine
from experiments.jobs.job import Job, Waiting
from experiments.jobs.ledger import Ledger
from experiments.jobs.preparation import LoadTask, Preparation, task_of
from experiments.jobs.promote import TRAINING, leftover, missing
from experiments.jobs.reporter import Reporter
from experiments.jobs.scheduler import place
from experiments.jobs.slots import Slot
from experiments.jobs.states import Outcome, State
from experiments.store import Store

LOOKAHEAD = 64  # jobs beyond the free slots that one placement looks at


class Placement:
    """`look` says whether placing might find something new: set it when a job, a slot or a corpus has changed."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        slots: Sequence[Slot],
        engine: Engine,
        child: Sequence[str],
        load_task: LoadTask | None,
        reporter: Reporter,
    ) -> None:
        self._store, self._ledger, self._slots, self._engine, self._child = store, ledger, slots, engine, child
        self._load_task, self._reporter = load_task, reporter
        self.preparation = Preparation(load_task, store.root)
        self.look = True

    def place(self, leased: Collection[str]) -> list[Live]:
        """Start what can be started on slots whose names are not in `leased`."""
        free = [slot for slot in self._slots if slot.name not in leased]
        if not self.look or not free:
            return []
        self.look = False
        unready = [self.preparation.current] if self.preparation.current else []
        candidates = self._ledger.waiting(len(free) + LOOKAHEAD, without=unready)
        ready = [job for job in candidates if self._prepared(job)]
        pairs = place(ready, free, {slot.kind for slot in self._slots})
        begun = (self._begin(job, slot) for job, slot in pairs)
        return [live for live in begun if live is not None]

    def collect(self) -> None:
        """Take in the end of a preparation."""
        done = self.preparation.collect()
        if done is None:
            return
        inputs_key, error_class, message = done
        self.look = True
        self._ledger.explain_waiting(inputs_key, "")
        if error_class:
            for run_id in self._ledger.in_state(State.WAITING, inputs_key=inputs_key):
                self._end_waiting(run_id, State.FAILED, message, error_class)

    def _prepared(self, waiting: Waiting) -> bool:
        if self.preparation.ready(waiting.inputs_key):
            return True
        if self.preparation.start(self._ledger.job(waiting.run_id).job):
            self._ledger.explain_waiting(waiting.inputs_key, self.preparation.doing)
        return False

    def _begin(self, waiting: Waiting, slot: Slot) -> Live | None:
        run_id, claimed = waiting.run_id, self._ledger.job(waiting.run_id)
        try:
            code_digest = self._code_digest(claimed.job)
        except UserError as error:
            self._end_waiting(run_id, State.FAILED, str(error), Outcome.USER_ERROR)
            return None
        parts = missing(self._store, claimed.job)
        if TRAINING in parts and leftover(self._store, claimed.job, code_digest):
            parts = missing(self._store, claimed.job)
        if not parts:
            self._end_waiting(run_id, State.FINISHED)
            return None
        attempt = self._store.new_attempt(run_id)
        if not self._ledger.claim(run_id, attempt[0], slot.name, slot.kind):
            attempt[1].rmdir()  # cancelled since we looked
            return None
        live = attempts.launch(self._store, self._engine, self._child, claimed, attempt, slot, parts, code_digest)
        ref = live.handle.ref if live.handle is not None else {}
        self._ledger.started(run_id, live.number, ref, live.claimed.pinned, live.claimed.best)
        self._reporter.track(live.claimed, State.RUNNING)
        return live

    def _code_digest(self, job: Job) -> str:
        """Of the code on disk now, past the cache: it may be edited while this process runs; a child reads it anew."""
        if self._load_task is None:
            return ""
        return provenance.code_digest.__wrapped__(task_of(job, self._load_task).training_code)

    def _end_waiting(self, run_id: str, state: State, error: str = "", error_class: str = "") -> None:
        self._ledger.end_waiting([run_id], state, error, error_class)
        self._reporter.ended(self._ledger.job(run_id), state, error)
        self.look = True
