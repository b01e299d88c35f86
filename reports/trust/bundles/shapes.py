"""Types of a bundle's head, as far as a report reads it; types of its records are in experiments/store/results.py.

A bundle from elsewhere may contain anything. Fields that are not named here are allowed and not checked.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Required

from pydantic import ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict

from experiments.store.facts import LARGEST, Amount, Count, Word, Words

Identity = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


class _Record(TypedDict, total=False):
    __pydantic_config__ = ConfigDict(strict=True, extra="allow")  # type: ignore[misc]


class _Column(_Record, total=False):
    key: Required[Word]
    set: Required[Word]
    metric: Required[Word]
    header: Required[Word]
    better: Required[Literal["lower", "higher"]]
    digits: Required[Annotated[int, Field(ge=0, le=12)]]
    paper: Required[Word]
    about: Required[Word]
    logarithmic: Required[bool]
    per_piece: Required[bool]


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
    num_params: Required[Annotated[int, Field(ge=1, le=LARGEST)] | None]
    cost: Required[Amount]
    state: Required[Literal["finished", "stale"]]
    stale: Required[list[Word]]
    inputs: Required[Words]
    evaluations: Required[list[_Evaluation]]


class _Plan(_Record, total=False):
    settings: Required[dict[str, Any]]
    study: Required[dict[str, Any]]
    profile: Required[Word]
    notes: Required[list[Word]]
    paper_keys: Required[list[Word]]
    rows: Required[Annotated[list[_Row], Field(min_length=1)]]
    runs: Required[Annotated[list[_Run], Field(min_length=1)]]
    members: Required[list[_Run]]  # of ensembles
    by_rule: Required[bool]


class _File(_Record, total=False):
    bytes: Required[Count]
    sha256: Required[Word]


class _Head(_Record, total=False):
    names_can_be_checked: Required[bool]
    asked: Required[list[Word]]
    spent: Required[dict[str, Any]]
    columns: Required[list[_Column]]
    plan: Required[_Plan]
    files: Required[dict[str, _File]]


_HEAD: TypeAdapter[Any] = TypeAdapter(_Head)


def check_head(head: Mapping[str, Any]) -> None:
    """Raises ValueError (pydantic's) for a head of other types."""
    _HEAD.validate_python(head)
