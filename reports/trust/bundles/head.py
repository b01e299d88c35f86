"""The head of a bundle (bundle.json): its version, its plan and its columns."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from ablations.study.study import Study
from experiments.store.sealed import write_json
from experiments.tasks.columns import Column, known_to
from experiments.tasks.load import is_built_in, load_task
from reports.results.spending import FILE, Spending

VERSION = 3  # columns say how they are compared; before, their metrics' names did
READABLE = (1, 2, VERSION)
SPENT = "spent"  # what the maker's store says of all attempts (reports/results/spending.py); not in older bundles
_KNOWN_BY_NAME = 2  # up to this version translation's metrics were recognised by name in every task


def column_to_json(column: Column) -> dict[str, Any]:
    """A column without the function of its counts: readers take that of a built-in task, and run no code of others."""
    return {field.name: getattr(column, field.name) for field in fields(column) if field.name != "counts"}


def keep_spent(head: Mapping[str, Any], folder: Path) -> None:
    """Write what the head says of all attempts into the folder of an opened bundle, where reports read it."""
    if SPENT in head:
        write_json(folder / FILE, Spending.model_validate(head[SPENT]).model_dump(mode="json"))


def columns_of(described: Sequence[Mapping[str, Any]], study: Study, version: int) -> tuple[Column, ...]:
    """The bundle's columns. Of a built-in task they follow from the study: what a head says decides nothing there."""
    if is_built_in(study.task):
        task = load_task(study.task)
        return tuple((task.with_columns([m.column for m in study.metrics]) if study.metrics else task).columns)
    names = ["translation"] * (version <= _KNOWN_BY_NAME)
    return known_to((Column(**each) for each in described), [own for name in names for own in load_task(name).columns])
