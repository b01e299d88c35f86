"""The names of published numbers: those of the task's columns, of costs, and what the study prints beside them; the
column of a rule's target.
"""

from collections.abc import Iterable

from ablations.study.messages import nearest
from ablations.study.parts import Target
from ablations.study.study import Study
from ablations.study.variation import Variation
from experiments.errors import UserError
from experiments.tasks.base import Task
from experiments.tasks.columns import Column

USUAL_COSTS = ("params", "flops")  # published numbers of any task's rows: parameters (in millions), of training
COSTS = (*USUAL_COSTS, "hours")  # reports/table/cost.py has a column for each


def paper_keys(study: Study, task: Task) -> list[str]:
    """The names that published numbers may have: those of the task's columns, of costs, and of the study's own."""
    return list(dict.fromkeys([*_measured(task), *study.published]))


def _measured(task: Task) -> list[str]:
    return [*(column.paper for column in task.columns if column.paper), *COSTS]


def published_names(study: Study, task: Task) -> list[str]:
    """Those of `paper_keys` that the study's records name: all but costs that no row has."""
    given = {*USUAL_COSTS, *(name for row in study.variations for name in row.paper)}
    return [name for name in paper_keys(study, task) if name in given or name not in COSTS]


def check_heads(study: Study, task: Task) -> None:
    """Raises UserError for a head of a number that the table prints already."""
    for name in study.published:
        if name in _measured(task):
            raise UserError(
                f"{study.origin}, [published]: the table of the task {study.task} has a column for {name!r} already, "
                "which prints published numbers next to those of the runs. Leave the name out there, or take another."
            )


def check_claims(study: Study, task: Task) -> None:
    """Raises UserError for a claim about a number that no column prints."""
    for claim in study.claims:
        _check(claim.number, list(dict.fromkeys(_measured(task))), f'claim "{claim.text}"', study, "")


def check_published(row: Variation, study: Study, task: Task) -> None:
    """Raises UserError for a published number of a row that no column prints."""
    for key in row.paper:
        _check(key, paper_keys(study, task), f'row "{row.key}"', study, "published ")


def _check(name: str, names: list[str], where: str, study: Study, what: str) -> None:
    if name not in names:
        raise UserError(
            f"{study.origin}, {where}: no column of the task {study.task} prints a {what}{name!r}. "
            f"Nearest: {', '.join(nearest(name, names) or names)}."
        )


def target_column(target: Target, columns: Iterable[Column]) -> Column | None:
    """The column that a target is about; before sets are known, one with the set "*" may be."""
    there = [column for column in columns if column.set == target.set or (column.set == "*" and target.set != "dev")]
    return next((column for column in there if target.metric in ("", column.metric)), None)


def check_target(study: Study, profile: str, task: Task) -> None:
    """Raises UserError if no column prints what the target of the rule is about."""
    target = study.target_in(profile)
    if target is None:
        return
    column = target_column(target, task.columns)
    if column is not None and column.logarithmic and target.value <= 0:
        raise UserError(
            f"{study.origin}, target: value = {target.value:g}: {column.metric} is compared by its logarithm, so the "
            "value must be more than 0."
        )
    if column is None:
        wanted = f"{target.metric or 'metric'} on {target.set}"
        known = [f"{column.metric} on {'test' if column.set == '*' else column.set}" for column in task.columns]
        raise UserError(
            f"{study.origin}, target: no column of the task {study.task} prints a {wanted}. Its columns are: "
            f"{', '.join(dict.fromkeys(known))}."
        )
