"""The kinds of events with their required fields, types and bounds.

Events may have further fields; these are not checked.
"""

from typing import Annotated, Any, Literal, Required

from pydantic import ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict

LAST_STEP = (1 << 63) - 1  # SQLite's largest integer
Step = Annotated[int, Field(ge=0, le=LAST_STEP)]
Time = Annotated[float, Field(ge=0, lt=253402300800)]  # Unix seconds (clock.py), to the end of the year 9999
Count = Annotated[int, Field(ge=0, le=LAST_STEP)]
Number = float | Literal["nan", "inf", "-inf"]  # JSON has no NaN
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Event(TypedDict, total=False):
    __pydantic_config__ = ConfigDict(strict=True, extra="allow")  # type: ignore[misc]
    t: Required[Time]
    format: Annotated[int, Field(ge=2)]
    # Used by the attempt until then (experiments/processes/meter.py); the coordinator's events have none.
    cpu_s: Amount
    cpu_joules: Amount  # not where energy is not measured
    gpu_joules: Amount


class Started(_Event, total=False):
    """The attempt has begun."""

    kind: Required[Literal["started"]]
    attempt: Required[Count]
    after_s: Required[Amount]  # since the start of its process
    pid: Count
    members: list[Annotated[list[str], Field(min_length=4, max_length=5)]]  # study, profile, corpus, row, group
    device: dict[str, Any]
    code_digest: str
    revision: dict[str, Any] | None
    versions: dict[str, Any] | None
    host: str


class Resumed(_Event, total=False):
    """Training continues from this step."""

    kind: Required[Literal["resumed"]]
    step: Required[Step]
    path: Required[str]
    run: str


class Branched(_Event, total=False):
    """Training begins with the state of another run, the trunk, after this step of it."""

    kind: Required[Literal["branched"]]
    step: Required[Step]
    path: Required[str]
    run: Required[str]


class Restarted(_Event, total=False):
    """Earlier attempts no longer count; written before "started"."""

    kind: Required[Literal["restarted"]]
    why: str


class Point(_Event, total=False):
    """Values of the training curve."""

    kind: Required[Literal["metrics"]]
    step: Required[Step]
    metrics: Required[dict[str, Number]]


class Progress(_Event, total=False):
    """Progress of work without steps; at most one per second."""

    kind: Required[Literal["progress"]]
    what: Required[str]
    done: Number
    total: Number


class Checkpoint(_Event, total=False):
    """A checkpoint was saved durably."""

    kind: Required[Literal["checkpoint"]]
    step: Required[Step]
    path: Required[str]


class CheckpointSkipped(_Event, total=False):
    """A checkpoint was not usable for a resume."""

    kind: Required[Literal["checkpoint_skipped"]]
    path: Required[str]
    reason: Required[str]


class Pinned(_Event, total=False):
    """Settings that later attempts keep, for an exact resume."""

    kind: Required[Literal["pinned"]]
    micro_batch_tokens: Count
    threads: Count
    precision: str
    attention_kernel: str


class Trained(_Event, total=False):
    """Training is finished; the weights are in the attempt's folder."""

    kind: Required[Literal["trained"]]
    step: Step | None


class Evaluated(_Event, total=False):
    """An evaluation is finished."""

    kind: Required[Literal["evaluated"]]
    eval_id: Required[Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]]
    set: Required[str]
    metrics: dict[str, Any]
    renews: Count  # the attempt whose evaluation this one replaces


class Finished(_Event, total=False):
    """The attempt is finished."""

    kind: Required[Literal["finished"]]


class Preempted(_Event, total=False):
    """The attempt stopped on request."""

    kind: Required[Literal["preempted"]]
    step: Step | None  # of the checkpoint that it made; None: it made none


class Failed(_Event, total=False):
    """The attempt failed."""

    kind: Required[Literal["failed"]]
    cls: Required[str]  # a FailureClass, or a word of another version
    message: Required[str]
    traceback: str
    micro_batch_tokens: Count


class Ended(_Event, total=False):
    """The coordinator saw the end of an attempt that did not say it: its process was killed."""

    kind: Required[Literal["ended"]]


class Probed(_Event, total=False):
    """The measured rate of a large matrix product."""

    kind: Required[Literal["probed"]]
    matrix_flops: Required[float]


_Kind = (
    Started | Resumed | Branched | Restarted | Point | Progress | Checkpoint | CheckpointSkipped | Pinned | Trained
    | Evaluated | Finished | Preempted | Failed | Ended | Probed
)  # fmt: skip
EVENT: TypeAdapter[Any] = TypeAdapter(Annotated[_Kind, Field(discriminator="kind")])
