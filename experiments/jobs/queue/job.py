"""A job: one run as the queue keeps it.

`Job` says what is to run, `Member` in which tables it appears, `JobStatus` how far it is.

`Waiting`, `Claimed` and `Ending` are what the coordinator reads and writes of it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, NamedTuple

from experiments.config import digest
from experiments.jobs.queue.states import Outcome, State
from experiments.store.keeps import Keep, union


class Member(NamedTuple):
    """A place of a run in a table: the same run may stand in several."""

    study: str
    profile: str
    corpus: str
    row: str
    group: str = ""


@dataclass(frozen=True)
class Job:
    """What is to be made of one run.

    `evaluations` are dicts of eval_id, set, settings, inputs; and renew, where a stored one has stale parts: the number
    of the attempt that made it.
    """

    run_id: str
    task: str
    config: Mapping[str, Any]  # nested, in full
    folder: str = ""  # where the study lies: a user's own task is found there
    seed: int = 1
    train: bool = True  # false: only evaluations of weights that are there
    evaluations: tuple[Mapping[str, Any], ...] = ()
    inputs: Mapping[str, str] = field(default_factory=dict)  # digests of what training reads
    prepared_key: str = ""  # equal for jobs that one `prepare` serves; if unset, those of equal settings
    steps: int | None = None  # of the training, where its configuration says
    num_params: int | None = None
    cost: float = 0.0  # predicted floating-point operations
    memory_gb: float = 0.0  # predicted, on the CPU; 0: unknown
    gpu_memory_gb: float = 0.0  # the same on a GPU
    devices: int = 1  # devices that train it together; 0: as many as shorten the whole (widths.py)
    priority: int = 0  # higher first
    members: tuple[Member, ...] = ()
    rerun_after: int = 0  # results of attempts up to this number are stale: train anew
    keeps: tuple[Keep, ...] = ()  # what all who ever queued it need the training to keep
    continues: tuple[str, ...] = ()  # run_ids of shorter runs of the same schedule, longest first

    def __post_init__(self) -> None:
        if not self.run_id:
            raise ValueError("a job needs a run_id")

    @property
    def inputs_key(self) -> str:
        """Equal for jobs that one preparation serves."""
        settings = {k: v for k, v in self.config.items() if k not in ("seed", "evaluation")}
        return digest({"task": self.task, "inputs": dict(self.inputs), "prepared": self.prepared_key or settings})

    @property
    def total_steps(self) -> int | None:
        return self.steps if self.train else None

    def to_json(self) -> dict[str, Any]:
        """All but the members, which have a table of their own."""
        values = asdict(self)
        del values["members"]
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any], members: tuple[Member, ...] = ()) -> "Job":
        known = {f.name for f in fields(cls)}
        kept = {key: value for key, value in values.items() if key in known}
        for name in ("evaluations", "continues"):
            kept[name] = tuple(kept.get(name, ()))
        kept["keeps"] = union(kept.get("keeps", ()))
        return cls(**kept, members=members)


def merge(old: Job, new: Job) -> Job:
    """Both wishes in one job: for a run that is asked for again before the first asking was served."""
    evaluations = {item["eval_id"]: item for item in old.evaluations}
    for item in new.evaluations:
        if item["eval_id"] not in evaluations or "renew" in item:
            evaluations[item["eval_id"]] = item
    return replace(
        new,
        train=old.train or new.train,
        evaluations=tuple(evaluations.values()),
        keeps=union(old.keeps, new.keeps),
        priority=max(old.priority, new.priority),
        rerun_after=max(old.rerun_after, new.rerun_after),
        members=old.members + tuple(m for m in new.members if m not in old.members),
    )


@dataclass(frozen=True)
class JobStatus:
    """A job as `status` shows it. Times are Unix seconds."""

    run_id: str
    state: State
    seed: int
    priority: int
    cost: float
    attempt: int  # number of the last attempt; 0: none yet
    step: int | None
    total: int | None
    doing: str  # "training", "evaluating dev" …; why it waits
    slot: str
    error: str
    error_class: str
    queued: float
    started: float | None
    ended: float | None
    left_s: float | None  # of its training, predicted from the steps so far
    held: str = ""  # why it is not run though it waits (trust.py)
    members: tuple[Member, ...] = ()


@dataclass(frozen=True)
class Waiting:
    """What the scheduler needs to know of a job."""

    run_id: str
    priority: int
    cost: float
    kind: str  # the device kind its first attempt pinned; "": any
    inputs_key: str
    memory_gb: float = 0.0  # predicted, on the CPU; 0: unknown
    devices: int = 1  # that train it together; 0: as many as shorten the whole
    alone: bool = False  # ran out of memory beside others: wants a device to itself (0 or 1 from the queue)
    gpu_memory_gb: float = 0.0  # predicted, on a GPU; 0: unknown

    def needs_gb(self, kind: str) -> float:
        """Memory on a device of that kind."""
        return self.gpu_memory_gb if kind == "cuda" else self.memory_gb


@dataclass(frozen=True)
class Claimed:
    """A job in full with what its attempts have left."""

    job: Job
    attempt: int
    pinned: Mapping[str, Any]
    best: int  # progress mark that the best attempt reached (outcomes.py)
    stalls: int  # attempts in a row that ended without passing it
    ref: Mapping[str, Any] | None = None  # the engine's reference to the running child
    slot: str = ""
    alone: bool = False  # it has a device to itself, after running out of memory beside others
    hangs: int = 0  # attempts in a row that had to be stopped because nothing came of them
    signed: bool = False  # by this user (trust.py)


@dataclass(frozen=True)
class Ending:
    """How the coordinator closes an attempt."""

    state: State
    outcome: Outcome
    error: str = ""
    detail: str = ""
    pinned: Mapping[str, Any] | None = None
    best: int = 0
    stalls: int = 0
    hangs: int = 0
    alone: bool = False
