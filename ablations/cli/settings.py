"""`ablations settings`: what a row may change."""

from dataclasses import asdict
from typing import Annotated

import typer

from ablations.cli import options
from ablations.cli.terminal import print_json
from ablations.service.selected import task_of
from ablations.service.settings import settings_of
from ablations.study.messages import suggestion
from ablations.study.study import builtin_studies, load_study
from experiments.errors import UserError
from experiments.tasks.base import Task
from experiments.tasks.load import OF_STUDIES, load_task, named_tasks


def settings(
    task: Annotated[
        str, typer.Argument(metavar="[TASK|STUDY]", help=f"{', '.join(named_tasks())}; module:OBJECT; or a study's.")
    ] = "translation",
    prefix: Annotated[str, typer.Argument(metavar="[PREFIX]", help="Only these, such as model. or training.")] = "",
    as_json: options.Json = False,
) -> None:
    """List the settings of a task: name, default, allowed values, meaning."""
    every = settings_of(_task(task))
    found = [one for one in every if one.name.startswith(prefix)]
    if not found:
        groups = dict.fromkeys(f"{one.name.partition('.')[0]}." for one in every if "." in one.name)
        names = [*groups, *(one.name for one in every)]
        raise UserError(f"No setting of {task} begins with {prefix!r}. {suggestion(prefix, names, 'beginnings')}")
    if as_json:
        print_json([asdict(one) for one in found])
        return
    for one in found:
        typer.echo(f"{one.assignment}  ({one.values}){f': {one.meaning}' if one.meaning else ''}")


def _task(name: str) -> Task:
    if name in named_tasks() and name not in OF_STUDIES:
        return load_task(name)
    if name in builtin_studies() or name.endswith(".toml"):
        return task_of(load_study(name))
    if ":" in name:
        return load_task(name)
    if name in OF_STUDIES:
        raise UserError(f"The settings of the task {name} are those in [base] of its study: name the study.")
    nearest = suggestion(name, [*named_tasks(), *builtin_studies()], "names")
    raise UserError(f"There is no task and no study {name!r}. {nearest}")
