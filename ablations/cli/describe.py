"""Commands that describe studies and tasks: `ablations studies` and `settings`."""

from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from ablations.cli import options
from ablations.cli.compare_layers import print_layers
from ablations.cli.terminal import answer
from ablations.service.layers import Sizes
from ablations.service.selected import task_of_study
from ablations.study.overrides import settings_of
from ablations.study.study import load_study
from ablations.study.study_file import builtin_studies
from experiments.errors import UserError
from experiments.messages import suggestion
from experiments.tasks.base import Task
from experiments.tasks.load import OF_STUDIES, load_task, named_tasks


def studies(as_json: options.Json = False) -> None:
    """List the built-in studies, their profiles and rows."""
    found = [load_study(name) for name in builtin_studies()]
    facts, lines = [], list[str]()
    for study in found:
        profiles = {name: profile.description for name, profile in study.profiles.items()}
        rows = [row.key for row in study.variations]
        facts.append({"study": study.name, "title": study.title, "task": study.task,
                      "default_profile": study.default_profile, "profiles": profiles, "rows": rows})  # fmt: skip
        lines.append(f"{study.name}: {study.title}")
        for name, description in profiles.items():
            lines.append(f"  --profile {name}{' (default)' * (name == study.default_profile)}: {description}")
        lines.append(f"  rows: {' '.join(rows)}")
    answer(as_json, facts, lines)


_of_layers = partial(typer.Option, rich_help_panel="Types of layers")


def settings(
    task: Annotated[
        str,
        typer.Argument(metavar="[TASK|STUDY]", help=f"{', '.join(named_tasks())}; module:OBJECT; or a study's."),
    ] = "translation",
    prefix: Annotated[
        str, typer.Argument(metavar="[PREFIX]", help="Only names that begin so, such as model. or training.")
    ] = "",
    layers: Annotated[
        bool, _of_layers("--layers", help="Compare types of layers instead, as in the paper's Table 1.")
    ] = False,
    n: Annotated[int, _of_layers(metavar="N", help="Positions of the sequence.")] = 70,
    d: Annotated[int, _of_layers(metavar="D", help="Width of the representation.")] = 512,
    k: Annotated[int, _of_layers(metavar="K", help="Kernel of the convolutions.")] = 3,
    r: Annotated[int, _of_layers(metavar="R", help="Neighbourhood of restricted self-attention.")] = 16,
    measured: Annotated[
        bool, _of_layers("--measure", help="Measure the time of sub-layers over n and d (takes a minute).")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """List the settings of a task: name, default, allowed values, meaning.

    With --layers, list types of layers with their complexity, sequential operations and longest path.
    """
    if layers:
        print_layers(Sizes(n, d, k, r), measured, as_json)
        return
    of_task = _task(task)
    every = settings_of(of_task.config_type)
    found = [one for one in every if one.name.startswith(prefix)]
    if not found:
        groups = dict.fromkeys(f"{one.name.partition('.')[0]}." for one in every if "." in one.name)
        names = [*groups, *(one.name for one in every)]
        raise UserError(f"No setting of {task} begins with {prefix!r}. {suggestion(prefix, names, 'beginnings')}")
    lines = [f"{one.assignment}  ({one.values}){f': {one.meaning}' if one.meaning else ''}" for one in found]
    if of_task.metrics and not prefix:
        lines.insert(0, f"metrics for [[metric]] in a study: {', '.join(of_task.metrics)}\n")
    answer(as_json, [asdict(one) for one in found], lines)


def _task(name: str) -> Task:
    if name in named_tasks() and name not in OF_STUDIES:
        return load_task(name)
    if name in builtin_studies() or name.endswith(".toml"):
        return task_of_study(load_study(name))
    if ":" in name:
        return load_task(name)
    if name in OF_STUDIES:
        raise UserError(f"The settings of the task {name} are those in [base] of its study. Name the study.")
    nearest = suggestion(name, [*named_tasks(), *builtin_studies()], "names")
    raise UserError(f"There is no task or study {name!r}. {nearest}")
