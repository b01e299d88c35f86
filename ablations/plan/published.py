"""The names of published numbers: those of the task's columns, and of costs."""

from ablations.study.messages import nearest
from ablations.study.study import Study, Variation
from experiments.errors import UserError
from experiments.tasks.base import Task

USUAL_COSTS = ("params", "flops")  # published numbers of any task's rows: parameters (in millions), of training
COSTS = (*USUAL_COSTS, "hours")  # reports/table/cost.py has a column for each


def paper_keys(task: Task) -> list[str]:
    """The names that published numbers may have: those of the task's columns, and of costs."""
    return list(dict.fromkeys([*(column.paper for column in task.columns if column.paper), *COSTS]))


def published_names(study: Study, task: Task) -> list[str]:
    """Those of `paper_keys` that the study's records name: all but costs that no row has."""
    given = {*USUAL_COSTS, *(name for row in study.variations for name in row.paper)}
    return [name for name in paper_keys(task) if name in given or name not in COSTS]


def check_claims(study: Study, task: Task) -> None:
    """Raises UserError for a claim about a number that no column prints."""
    names = paper_keys(task)
    for claim in study.claims:
        if claim.number not in names:
            raise UserError(
                f'{study.origin}, claim "{claim.text}": no column of the task {study.task} prints a {claim.number!r}. '
                f"Nearest: {', '.join(nearest(claim.number, names) or names)}."
            )


def check_published(row: Variation, study: Study, task: Task) -> None:
    """Raises UserError for a published number of a row that no column prints."""
    names = paper_keys(task)
    for key in row.paper:
        if key not in names:
            raise UserError(
                f'{study.origin}, row "{row.key}": no column of the task {study.task} prints a published {key!r}. '
                f"Nearest: {', '.join(nearest(key, names) or names)}."
            )
