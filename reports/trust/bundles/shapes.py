"""The types of what a bundle's head and records hold, as far as a report reads it.

This program writes nothing else; somebody else's file may hold anything at any place. Fields that are not named here
may be there and are not checked.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Required

from pydantic import ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict

_LARGEST = (1 << 63) - 1
Count = Annotated[int, Field(ge=0, le=_LARGEST)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Identity = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
Word = Annotated[str, Field(max_length=10_000)]
Words = dict[Word, Word]


class _Record(TypedDict, total=False):
    __pydantic_config__ = ConfigDict(strict=True, extra="allow")  # type: ignore[misc]


class _Column(_Record, total=False):
    key: Required[Word]
    set: Required[Word]
    metric: Required[Word]
    header: Required[Word]
    better: Required[Literal["lower", "higher"]]
    digits: Required[Annotated[int, Field(ge=0, le=12)]]
    paper: Word
    about: Word
    logarithmic: bool
    per_piece: bool


class _Row(_Record, total=False):
    key: Required[Word]
    config: Required[dict[str, Any]]
    seeds: Required[Annotated[list[Count], Field(min_length=1)]]
    overrides: Required[dict[Word, Any]]


class _Evaluation(_Record, total=False):
    eval_id: Required[Identity]
    set: Required[Word]
    settings: Required[dict[Word, Any]]
    inputs: Required[Words]


class _Run(_Record, total=False):
    row: Required[Word]
    seed: Required[Count]
    run_id: Required[Identity]
    num_params: Required[Annotated[int, Field(ge=1, le=_LARGEST)] | None]
    cost: Required[Amount]
    state: Required[Literal["finished", "stale"]]
    inputs: Required[Words]
    evaluations: Required[list[_Evaluation]]


class _Plan(_Record, total=False):
    study: Required[dict[str, Any]]
    profile: Required[Word]
    notes: Required[list[Word]]
    paper_keys: Required[list[Word]]
    rows: Required[Annotated[list[_Row], Field(min_length=1)]]
    runs: Required[Annotated[list[_Run], Field(min_length=1)]]


class _Head(_Record, total=False):
    asked: Required[list[Word]]
    columns: Required[list[_Column]]
    plan: Required[_Plan]
    files: Required[dict[str, str | dict[str, Any]]]


class _Revision(_Record, total=False):
    repository: Word | None
    commit: Word | None
    dirty: bool | None


class _Tool(_Record, total=False):
    version: Word | None
    commit: Word | None
    dirty: bool | None


class _Earlier(_Record, total=False):
    attempt: Required[Count]
    seconds: Required[Amount]
    ended: Required[Word]


class _Result(_Record, total=False):
    attempt: Required[Annotated[int, Field(ge=1, le=999_999)]]
    config: Required[dict[str, Any]]
    task: Word
    step: Count | None
    wall_s: Amount
    train_s: Amount
    earlier_attempts: list[_Earlier]
    continues: dict[str, Any] | None
    devices: Annotated[int, Field(ge=1, le=1_000_000)]
    device_share: Annotated[float, Field(gt=0, le=1)]
    device: Word
    device_kind: Word
    threads: Count
    code_digest: Word
    revision: _Revision
    tool: _Tool
    versions: Words


class _Side(_Record, total=False):
    unknown_rate: Amount | None


class _Train(_Record, total=False):
    kept: Count
    dropped_empty: Count
    dropped_long: Count
    source: _Side
    target: _Side


class _Data(_Record, total=False):
    corpus: dict[str, Any]
    tokenizer: dict[str, Any]
    vocab_size: dict[str, Count]
    train: _Train


class _BuiltinResult(_Result, total=False):
    data: _Data
    precision: Word
    num_params: Count
    flops: Amount
    flops_per_token: Amount
    target_tokens: Count
    resumed_from: Count | None


class _Scored(_Record, total=False):
    metrics: Required[dict[Word, Annotated[float, Field(allow_inf_nan=True)] | None]]
    signature: Words
    sentences: Count
    code_digest: Word
    device: Word
    device_kind: Word
    precision: Word
    versions: Words


class _Seen(_Record, total=False):
    pair: Count


class _SetFacts(_Record, total=False):
    seen_in_train: _Seen


class _BuiltinScored(_Scored, total=False):
    set_facts: _SetFacts


_HEAD: TypeAdapter[Any] = TypeAdapter(_Head)
_RESULTS: tuple[TypeAdapter[Any], TypeAdapter[Any]] = (TypeAdapter(_Result), TypeAdapter(_BuiltinResult))
_SCORES: tuple[TypeAdapter[Any], TypeAdapter[Any]] = (TypeAdapter(_Scored), TypeAdapter(_BuiltinScored))


def check_head(head: Mapping[str, Any]) -> None:
    """Raises ValueError (pydantic's) for a head of other types."""
    _HEAD.validate_python(head)


def check_result(record: Mapping[str, Any], built_in: bool) -> None:
    """The same for a training's result. `built_in`: its task's own facts too; a user's trainer may add any."""
    _RESULTS[built_in].validate_python(record)


def check_scores(record: Mapping[str, Any], built_in: bool) -> None:
    """The same for an evaluation's."""
    _SCORES[built_in].validate_python(record)
