"""Choose waiting jobs from the queue and start their attempts on free slots."""

import errno
import logging
import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from experiments.errors import Damaged, DiskFull, UserError
from experiments.identity import ParentRun
from experiments.jobs.attempts import attempt as attempts
from experiments.jobs.attempts.attempt import PreparedAttempt, RunningAttempt, with_first_code
from experiments.jobs.attempts.publish import leftover, missing
from experiments.jobs.coordinator.admission import Admission
from experiments.jobs.coordinator.preparation import Preparation, TaskOf
from experiments.jobs.coordinator.reporter import Reporter
from experiments.jobs.coordinator.scheduler import place
from experiments.jobs.coordinator.shared_gpus import SharedGpus
from experiments.jobs.devices.gpu_occupancy import GpuOccupancy
from experiments.jobs.devices.slots import Slot, join
from experiments.jobs.engines.engine import Engine
from experiments.jobs.queue import trust
from experiments.jobs.queue.job import Claimed, Ending, Job, Outcome, State, Waiting
from experiments.jobs.queue.queue_connection import SHARING
from experiments.jobs.queue.work_queue import WorkQueue
from experiments.records import TRAINING
from experiments.store import ledger
from experiments.store.budget import Account
from experiments.store.layout import Store
from experiments.training import kept_checkpoints
from experiments.training.warm_start import checkpoint_of

log = logging.getLogger(__name__)


WHOLE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def ending_of_error(error: Exception, run_id: str) -> Ending:
    """Return the ending of a job after an error: a mistake of the user, or files of the run that cannot be used.

    If the error concerns the whole disk, raise it again.
    """
    if isinstance(error, DiskFull) or (isinstance(error, OSError) and error.errno in WHOLE_DISK):
        raise error
    if isinstance(error, UserError):
        return Ending(State.FAILED, Outcome.USER_ERROR, error=str(error))
    log.info("the files of %s", run_id, exc_info=error)
    return Ending(
        State.FAILED,
        Outcome.BUG,
        error=f"The files in runs/{run_id} of the store cannot be used ({type(error).__name__}: {error}). Restore the "
        "folder from a backup or move it away, then `ablations retry`.",
    )


LOOKAHEAD = 64  # number of jobs that `place` examines in addition to one job per free slot


class Placement:
    """Starts waiting jobs on free slots.

    `place` starts no job unless `look` is true. Set `look` to True after every change of a job or slot, and after the
    preparation of a corpus.
    """

    def __init__(
        self,
        store: Store,
        queue: WorkQueue,
        slots: Sequence[Slot],
        engine: Engine,
        child: Sequence[str],
        task_of: TaskOf | None,
        reporter: Reporter,
    ) -> None:
        self.store, self.queue, self.slots, self.engine, self._child = store, queue, slots, engine, child
        self._task_of, self.reporter = task_of, reporter
        self.preparation = Preparation(task_of, store.root)
        self.account = Account(store)
        self._elapsed: dict[tuple[str, int], float] = {}  # running attempt → its age in seconds
        self._gpu_occupancy = GpuOccupancy()
        self._memory = Admission()
        self._leased: set[str] = set()
        self._alone: dict[str, str] = {}  # name of a slot → why the slot is not used now
        self._failed: dict[str, str] = {}  # failed GPU → its failure. No further run starts on such a GPU.
        self._gpus = SharedGpus(slots)
        self._noted = ""  # text for `status`: number of runs on the GPUs of `--devices auto`
        self.look = True

    @property
    def doing(self) -> str:
        """Description of the current preparation, or the reason why a run waits for memory; "" without either."""
        return self.preparation.doing or next(iter(self._memory.waiting.values()), "")

    def place(self, lives: Collection[RunningAttempt]) -> list[RunningAttempt]:
        """Start jobs on free slots and on GPUs that runs share, and return the started attempts.

        lives: the running attempts.
        """
        leased = {name for live in lives for name in live.leased}
        # a GPU is not empty if a run has a share of it
        leased |= {name.partition("/")[0] for name in leased if name.startswith("cuda:")}
        self._measure(lives)
        self._elapsed = {(live.run_id, live.number): live.lasted_s for live in lives}
        if (self._alone and self._gpu_occupancy.due) or self._memory.due:
            self.look = True
        self.look |= not leased >= self._leased  # true if a run no longer holds one of its GPUs
        self._leased = leased
        if not self.slots and not lives:
            failed = "; ".join(f"{unit} {why}" for unit, why in self._failed.items())
            raise UserError(f"No GPU is left: {failed}. Check nvidia-smi, then continue with the same command.")
        if not self.look or all(slot.name in leased and slot.most < 2 for slot in self.slots):
            return []
        self.look = False
        self._leave_alone(leased)
        free = [slot for slot in self.slots if slot.name not in leased and slot.name not in self._alone]
        cards = [card for card in self._gpus.cards(self.slots, lives) if card.slot.name not in self._alone]
        if not free and all(len(card.shares) >= card.limit() for card in cards):
            return []
        unready = [self.preparation.current] if self.preparation.current else []
        candidates = self.queue.waiting(len(free) + LOOKAHEAD, unready)
        ready = [job for job in candidates if self._prepared(job)]
        placed = place(ready, free, self.slots, cards)
        self._gpus.note_alone(placed)
        pairs = [(job, join(lease, together=job.devices > 1)) for job, lease in placed]
        before = dict.fromkeys(self._memory.waiting, "")
        found = self._memory.admit(pairs, lives)
        self.queue.explain(before | found.waiting)
        for run_id, error in found.refused.items():
            self._end_waiting(run_id, State.FAILED, error, Outcome.USER_ERROR)
        return self._start([plan for job, slot in found.pairs if (plan := self._begin(job, slot))])

    def collect(self) -> None:
        """Take the outcome of an ended preparation. If the preparation failed, mark the jobs that need it as failed."""
        done = self.preparation.collect()
        if done is None:
            return
        inputs_key, error_class, message = done
        self.look = True
        self.queue.explain_waiting(inputs_key, "")
        if error_class:
            for run_id in self.queue.in_state(State.WAITING, inputs_key=inputs_key):
                self._end_waiting(run_id, State.FAILED, message, error_class)

    def quarantine(self, slot: Slot, why: str) -> None:
        """Stop using a GPU that failed.

        Do nothing on a cluster, because it chooses the GPUs itself. Do nothing for a run on several GPUs either,
        because it is unknown which GPU failed.
        """
        if slot.kind == "cuda" and slot.device and slot.count == 1:
            self.slots = [other for other in self.slots if other.unit != slot.unit]
            self._failed[slot.unit] = f"failed: {''.join(why.splitlines()[:1])}"
            self._note_devices()

    def learn_memory(self, live: RunningAttempt) -> None:
        """Record the peak GPU memory of a finished run if its memory was unknown and was measured.

        Waiting jobs of the same task and study may share a GPU from then on.
        """
        if (gb := self._gpus.peak_gb(live)) is not None:
            self.queue.learn_gpu_memory(live.claimed.job, gb)

    def _measure(self, lives: Collection[RunningAttempt]) -> None:
        """Measure the GPUs of `--devices auto`, and note their numbers of runs for `status`."""
        if not any(slot.most for slot in self.slots):
            return
        self.look |= self._gpus.measure(self.slots, lives)
        text = self._gpus.in_words(self.slots, lives)
        if text != self._noted:
            self._noted = text
            self.queue.note(SHARING, text)

    def _leave_alone(self, leased: Collection[str]) -> None:
        alone = self._gpu_occupancy.left_alone(self.slots, leased)
        if alone != self._alone:
            self._alone = alone
            self._note_devices()

    def _note_devices(self) -> None:
        alone = {name.partition("/")[0]: f"is not used: {why}" for name, why in self._alone.items()}
        self.queue.note("devices", "\n".join(f"{unit} {why}" for unit, why in {**alone, **self._failed}.items()))

    def _prepared(self, waiting: Waiting) -> bool:
        if self.preparation.ready(waiting.inputs_key):
            return True
        claimed = self.job(waiting.run_id)
        if claimed and self._allowed(claimed) and self.preparation.start(claimed.job):
            self.queue.explain_waiting(waiting.inputs_key, self.preparation.doing)
        return False

    def _allowed(self, claimed: Claimed) -> bool:
        """Return whether the job may start. If it may not start, hold the job and record the reason.

        A job may start if this user has queued it, if this user trusts its code, or if it executes no code of a user.
        """
        if claimed.signed or not trust.executes(claimed.job):
            return True
        self.queue.hold(claimed.job.run_id, trust.why_held(claimed.job))
        self.look = True
        return False

    def _begin(self, waiting: Waiting, slot: Slot) -> PreparedAttempt | None:
        """Claim a job and prepare its attempt. Return None if the job cannot start, must wait, or needs no attempt."""
        run_id, claimed = waiting.run_id, self.job(waiting.run_id)
        if claimed is None or not self._allowed(claimed):
            return None
        try:
            claimed = replace(claimed, job=with_first_code(self.store, claimed.job))
            code = self._code_digest(claimed.job)
        except UserError as error:
            self._end_waiting(run_id, State.FAILED, str(error), Outcome.USER_ERROR)
            return None
        try:
            if TRAINING in missing(self.store, claimed.job):
                taken = leftover(self.store, claimed.job)
                self.queue.score_again(claimed.job, taken.replaced)
                claimed = self.queue.job(run_id) if taken.replaced else claimed
            parts = self._parts(claimed.job, code)
            if TRAINING in parts and (why := no_parent_run(self.store, self.queue, claimed.job, code)):
                self.queue.hold(run_id, why)
                self.look = True
                return None
            predicted_s = self._predicted_s(claimed) if TRAINING in parts and self.account.limits else 0.0
            spending = len(slot.parts), TRAINING in parts, predicted_s
            why, for_now = self.account.refuses(run_id, *spending, self._elapsed) if parts else ("", False)
            if why:
                (self.queue.explain({run_id: why}) if for_now else self.queue.hold(run_id, why))
                self.look |= not for_now
                return None
            attempt = self.store.new_attempt(run_id) if parts else None
        except Exception as error:
            ending = ending_of_error(error, run_id)
            self._end_waiting(run_id, State.FAILED, ending.error, ending.outcome)
            return None
        if attempt is None:
            self._end_waiting(run_id, State.FINISHED)
            return None
        if not self.queue.claim(run_id, attempt[0], slot.name, slot.kind):
            attempt[1].rmdir()  # the job was cancelled meanwhile
            return None
        try:
            self.account.start(run_id, attempt[0], *spending)
            return attempts.prepare_attempt(self.store, self.engine, self._child, claimed, attempt, slot, parts, code)
        except Exception as error:
            ending = ending_of_error(error, run_id)
            self.account.end(run_id, attempt[0], ending.outcome, 0.0)
            self.queue.end(run_id, attempt[0], ending)
            self.reporter.ended(claimed, ending.state, ending.error)
            return None

    def _predicted_s(self, claimed: Claimed) -> float:
        """Return the predicted seconds for the rest of a job's training; 0 if unknown.

        The prediction uses the speed of finished runs. A run without a predicted cost is assumed to take the mean time
        of the finished runs without a predicted cost.
        """
        job, left = claimed.job, max(0.0, 1 - claimed.best / (claimed.job.spec.steps or math.inf))
        if not job.spec.cost:
            return left * (self.queue.usual_s() or 0.0)
        speed = self.queue.speed()
        return left * job.spec.cost / speed if speed else 0.0

    def _parts(self, job: Job, code: str) -> list[str]:
        """Return the parts that an attempt must make.

        The parts include the training if the existing weights or checkpoints are not enough for an evaluation or a
        branch. An ensemble has no weights, so the job of each member checks whether the member's weights are enough for
        the ensemble's evaluations (`job.read_by`).
        """
        parts, weights = missing(self.store, job), self.store.weights_folder(job.run_id)
        if self._task_of is None or weights is None or TRAINING in parts or job.spec.members:
            return parts
        if any(checkpoint_of(self.store, ParentRun(job.run_id, step), code) is None for step in job.read_at):
            return [TRAINING, *parts]
        task = self._task_of(job.spec)
        lacking = [*(item for item in job.evaluations if item.eval_id in parts), *job.read_by]
        return parts if all(task.serves(item, weights) for item in lacking) else [TRAINING, *parts]

    def _start(self, plans: Sequence[PreparedAttempt]) -> list[RunningAttempt]:
        lives = attempts.start(self.engine, plans)
        for live in lives:
            ref = live.handle.ref if live.handle is not None else {}
            self.queue.started(live.run_id, live.number, ref, live.claimed.pinned, live.claimed.best)
            self.reporter.track(live.claimed, State.RUNNING)
        return lives

    def _code_digest(self, job: Job) -> str:
        """Return a digest of the code that would train the job now.

        Return "" if this process compares no code. The digest may change while this process runs, because the user may
        edit files.
        """
        if self._task_of is None:
            return ""
        return self._task_of(job.spec).training_code(self.store.root)

    def _end_waiting(self, run_id: str, state: State, error: str = "", error_class: str = "") -> None:
        claimed = self.job(run_id)
        if claimed is not None:
            if state is State.FAILED:
                ledger.append_all(self.store, [{"what": "failed", "run_id": run_id, "outcome": error_class}])
            self.queue.end_waiting([run_id], state, error, error_class)
            self.reporter.ended(claimed, state, error)
            self.look = True

    def job(self, run_id: str) -> Claimed | None:
        """Return the job of a run. If its queue entry is damaged, mark this job as failed and return None."""
        try:
            return self.queue.job(run_id)
        except Damaged as damage:
            self.queue.end_damaged(run_id, str(damage))
            self.reporter.summary.failed += 1
            self.look = True
            return None


def no_parent_run(store: Store, queue: WorkQueue, job: Job, code: str) -> str:
    """Return the reason why a branch cannot begin, if its parent run has no checkpoint of the step.

    Return "" if the branch can begin or has begun, or if the run is not a branch. If the parent run failed after the
    step, the branch can begin, because a later failure does not change the checkpoint of the step.
    """
    parent_run = job.spec.parent_run
    if parent_run is None or checkpoint_of(store, parent_run, code) is not None or _begun(store, job.run_id):
        return ""
    name, state = parent_run.run_id, "is not queued"
    for found in queue.status():
        if found.run_id == parent_run.run_id:
            rows = ", ".join(dict.fromkeys(member.row for member in found.members))
            name = f"{rows} (seed {found.seed}, run {parent_run.run_id})" if rows else name
            state = {State.FAILED: "has failed", State.CANCELLED: "was cancelled"}.get(found.state, "has ended")
    return (
        f"held: it branches from {name} after step {parent_run.step:,}, but that run {state} without a checkpoint of "
        "that step by the present code. `ablations run` trains that run again, and then this one"
    )


def _begun(store: Store, run_id: str) -> bool:
    """Return whether an attempt of the branch has saved a checkpoint."""
    return any(kept_checkpoints.all_of(store.attempt_folder(run_id, number)) for number in store.attempts(run_id))
