"""The head of a bundle (bundle.json): its version, its plan and its columns, and the types of what is read of it."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, Required

from pydantic import ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict

from ablations.study.study import Study
from experiments.store.checksummed import write_json
from experiments.store.results import LARGEST, Amount, Count, Word, Words
from experiments.tasks.columns import Column
from experiments.tasks.load import is_built_in, load_task
from reports.results.accounting import FILE, Spending

VERSION = 3
SPENT = "spent"  # what the maker's store says of all attempts (reports/results/accounting.py)


def column_to_json(column: Column) -> dict[str, Any]:
    """A column without the function of its counts: readers take that of a built-in task, and run no code of others."""
    return {field.name: getattr(column, field.name) for field in fields(column) if field.name != "counts"}


def keep_spent(head: Mapping[str, Any], folder: Path) -> None:
    """Write what the head says of all attempts into the folder of an opened bundle, where reports read it."""
    write_json(folder / FILE, Spending.model_validate(head[SPENT]).model_dump(mode="json"))


def columns_of(described: Sequence[Mapping[str, Any]], study: Study) -> tuple[Column, ...]:
    """The bundle's columns. Of a built-in task they follow from the study: what a head says decides nothing there."""
    if is_built_in(study.task):
        task = load_task(study.task)
        return tuple((task.with_columns([m.column for m in study.metrics]) if study.metrics else task).columns)
    return tuple(Column(**each) for each in described)


# --- Types of a head, as far as a report reads it; those of its records are in experiments/store/results.py
# A bundle from elsewhere may contain anything. Fields that are not named here are allowed and not checked.


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
