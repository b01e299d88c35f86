"""A job: one run in the queue.

`Job` describes what to run. `Member` is a table row to which the run belongs. `JobStatus` is the job's state for
display. The coordinator reads `Waiting` and `Claimed` from the queue, and writes `Ending` to it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

from experiments.identity import digest, without_runs
from experiments.masking import masked
from experiments.records import FailureClass
from experiments.run_spec import EvaluationSpec, RunSpec
from experiments.store.retention import Keep, union


class State(StrEnum):
    """State of a job: waiting → running → finished | failed | cancelled.

    A waiting job may also end directly, for example if it is cancelled. A job whose run will be resumed goes from
    running back to waiting. An ended job waits again if its run is requested again.

    The queue never stores "interrupted". Readers use it for a running job whose process has ended without a record
    (experiments/jobs/attempts/liveness.py).
    """

    WAITING = "waiting"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether the job has ended: finished, failed or cancelled."""
        return self in (State.FINISHED, State.FAILED, State.CANCELLED)


class Outcome(StrEnum):
    """Result of one attempt, stored in the queue's history."""

    FINISHED = "finished"  # the attempt completed the training and evaluations that it was started for
    PREEMPTED = "preempted"  # the attempt was stopped on request, usually after a checkpoint
    KILLED = "killed"  # the attempt ended without a message: SIGKILL, a crash, the kernel's out-of-memory killer
    HUNG = "hung"  # the attempt was stopped, because it wrote no events for too long
    OUT_OF_MEMORY = FailureClass.OUT_OF_MEMORY
    DISK_FULL = FailureClass.DISK_FULL
    DIVERGED = FailureClass.DIVERGED
    DEVICE = FailureClass.DEVICE
    USER_ERROR = FailureClass.USER_ERROR
    BUG = FailureClass.BUG
    CANCELLED = "cancelled"


class Member(NamedTuple):
    """A table row to which a run belongs. A run may belong to several rows and tables."""

    study: str
    profile: str
    corpus: str
    row: str
    group: str = ""


@dataclass(frozen=True)
class Job:
    """A request for one run: its training, its evaluations, and the checkpoints to keep."""

    spec: RunSpec
    train: bool = True  # false: only evaluate existing weights
    evaluations: tuple[EvaluationSpec, ...] = ()
    # Evaluations to make again although they exist: eval_id → number of the attempt that made the evaluation.
    renew: Mapping[str, int] = field(default_factory=dict)
    prepared_key: str = ""  # key that is equal for jobs with the same prepared data; "": use all settings as the key
    memory_gb: float = 0.0  # predicted memory on the CPU; 0: unknown
    gpu_memory_gb: float = 0.0  # predicted memory on a GPU; 0: unknown
    devices: int = 1  # number of devices that train the run together
    priority: int = 0  # jobs with a higher priority start first
    # Jobs with a lower turn start first: the first seeds of all rows, then the second seeds, and so on. Within a seed,
    # base comes first, and then the rows with large published changes.
    turn: int = 0
    members: tuple[Member, ...] = ()
    rerun_after: int = 0  # results of attempts up to this number are stale, so the run is trained again
    keeps: tuple[Keep, ...] = ()  # checkpoints that the requests for this run need
    # run_ids of shorter runs of the same schedule, longest first. The run may continue from their checkpoints.
    continues: tuple[str, ...] = ()
    limit: int | None = None  # number of examples of each set to evaluate, for `run --smoke`; None: all
    read_by: tuple[EvaluationSpec, ...] = ()  # evaluations of ensembles that need checkpoints of this run
    read_at: tuple[int, ...] = ()  # steps whose checkpoints are needed, because branches begin after these steps

    @property
    def run_id(self) -> str:
        """The run_id of the run."""
        return self.spec.run_id

    @property
    def inputs_key(self) -> str:
        """A digest that is equal for jobs that share one preparation."""
        settings = {k: v for k, v in self.spec.config.items() if k not in ("seed", "evaluation")}
        inputs = without_runs(self.spec.inputs)
        return digest({"task": self.spec.task, "inputs": inputs, "prepared": self.prepared_key or settings})

    @property
    def total_steps(self) -> int | None:
        """Number of steps of the training; None if it is unknown or if the job only evaluates."""
        return self.spec.steps if self.train else None

    def to_json(self) -> dict[str, Any]:
        """Return all fields except the members, which the queue stores in another table."""
        values = asdict(self)
        del values["members"]
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any], members: tuple[Member, ...] = ()) -> "Job":
        """Convert the result of `to_json` back to a job. The members are given separately.

        Raises TypeError, KeyError or ValueError if a required field is missing or a field is unknown.
        """
        read: dict[str, Any] = {
            "spec": RunSpec.from_json(values["spec"]),
            "keeps": union(values["keeps"]),
            **{name: tuple(map(EvaluationSpec.from_json, values[name])) for name in ("evaluations", "read_by")},
            **{name: tuple(values[name]) for name in ("continues", "read_at")},
        }
        return cls(**{**values, **read}, members=members)


def merge(old: Job, new: Job) -> Job:
    """Return one job that fulfils two requests for the same run.

    The queue calls this function if a run is requested again while its job waits or runs.
    """
    evaluations = {item.eval_id: item for item in old.evaluations}
    for item in new.evaluations:
        if item.eval_id not in evaluations or item.eval_id in new.renew:
            evaluations[item.eval_id] = item
    return replace(
        new,
        train=old.train or new.train,
        evaluations=tuple(evaluations.values()),
        renew={**old.renew, **new.renew},
        keeps=union(old.keeps, new.keeps),
        read_by=old.read_by + tuple(item for item in new.read_by if item not in old.read_by),
        read_at=tuple(sorted({*old.read_at, *new.read_at})),
        priority=max(old.priority, new.priority),
        turn=min(old.turn, new.turn),
        rerun_after=max(old.rerun_after, new.rerun_after),
        members=old.members + tuple(m for m in new.members if m not in old.members),
    )


@dataclass(frozen=True)
class JobStatus:
    """A job in the form that `status` shows. Times are Unix seconds."""

    run_id: str
    state: State
    seed: int
    priority: int
    cost: float
    attempt: int  # number of the last attempt; 0: there is none
    step: int | None
    total: int | None
    doing: str  # "training", "evaluating dev" …, or why the job waits
    slot: str
    error: str
    error_class: str
    queued: float
    started: float | None
    ended: float | None
    left_s: float | None  # predicted seconds of training left
    held: str = ""  # why the job is held; "" if it is not
    members: tuple[Member, ...] = ()


@dataclass(frozen=True)
class Waiting:
    """A waiting job in the form that the scheduler uses."""

    run_id: str
    priority: int
    cost: float
    kind: str  # the device kind that its first attempt pinned; "": any
    inputs_key: str
    memory_gb: float = 0.0  # predicted memory on the CPU; 0: unknown
    devices: int = 1  # number of devices that train the run together
    alone: bool = False  # whether the job needs a whole device, because memory ran out next to other runs
    gpu_memory_gb: float = 0.0  # predicted memory on a GPU; 0: unknown
    turn: int = 0
    steps: int | None = None  # number of training steps, even if the job only evaluates; None if unknown

    def needs_gb(self, kind: str) -> float:
        """Return the predicted GB of memory on a device of this kind."""
        return self.gpu_memory_gb if kind == "cuda" else self.memory_gb


@dataclass(frozen=True)
class Claimed:
    """A job with all its fields, and the state that its earlier attempts have left."""

    job: Job
    attempt: int
    pinned: Mapping[str, Any]
    best: int  # best progress of its attempts (../attempts/outcomes.py)
    stalls: int  # number of attempts in a row that did not improve `best`
    ref: Mapping[str, Any] | None = None  # the engine's reference to the running child
    slot: str = ""
    alone: bool = False  # whether the job gets a whole device, because memory ran out next to other runs
    hangs: int = 0  # number of attempts in a row that hung, or whose device failed
    signed: bool = False  # whether this user has signed the job (trust.py)


@dataclass(frozen=True)
class Ending:
    """The result of an attempt, and the next state of its job."""

    state: State
    outcome: Outcome
    error: str = ""
    detail: str = ""
    pinned: Mapping[str, Any] | None = None
    best: int = 0
    stalls: int = 0
    hangs: int = 0
    alone: bool = False

    def __post_init__(self) -> None:
        """Mask credentials, because the texts are shown in the queue, in MLflow and in the terminal."""
        object.__setattr__(self, "error", masked(self.error))
        object.__setattr__(self, "detail", masked(self.detail))
