"""The command `ablations modules`: list the modules of a row's network by the names that `modules = […]` uses."""

from dataclasses import replace
from typing import Annotated, Any

import typer

from ablations.cli import options
from ablations.cli.terminal import aligned, answer
from ablations.extras.module_rows.planned import Row, looked_at
from ablations.service.forecast import base_of
from ablations.service.selected import Selectors, choose
from ablations.study.selectors import only_row
from experiments.errors import UserError
from experiments.messages import number
from experiments.tasks.base import Task
from experiments.tasks.network_task import NetworkTask
from experiments.tasks.own.function import FunctionTask


def modules(
    study: options.StudyName,
    selector: Annotated[
        str, typer.Argument(metavar="[SELECTOR]", help="Only matching modules: 'layers.*.attn', type:Linear.")
    ] = "",
    *,
    selectors: Annotated[Selectors, options.Without(("seeds",))],
    as_json: options.Json = False,
) -> None:
    """Show the modules of a network: name, type, parameters, operations and shapes of one batch.

    The network is that of base, or of the first row in --rows, with the row's changes. A training function runs until
    its network has computed one batch.
    """
    chosen = choose(study, selectors)
    rows = selectors.rows or only_row(chosen.study, base_of(chosen).key)
    run = choose(study, replace(selectors, rows=rows)).plan.trainings[0]
    found = modules_of(chosen.task, run.config, selector)
    head = f"{run.row}: {selector} matches {number(len(found), 'module')}" if selector else f"{run.row}:"
    lines = [("module", "type", "parameters", "operations", "input", "output")]
    for one in found:
        # shapes such as 2×8×64; – if the network did not call the module
        before, after = ("×".join(map(str, one.get(side) or ())) or "–" for side in ("input", "output"))
        lines.append((one["name"] or "(all)", one["type"], f"{one['params']:,}", f"{one['flops']:,}", before, after))
    answer(as_json, {"row": run.row, "modules": found}, [head, *aligned(lines, left=(0, 1, 4, 5))])


def modules_of(task: Task, config: Any, selector: str) -> list[Row]:
    """Return a description of each module of a run's network, or of those that `selector` matches.

    Raises UserError for a task without a network, and for lines that do not fit the network.
    """
    if isinstance(task, NetworkTask):
        return looked_at(task.planned_network(config), config.modules, config.evaluation.modules, selector)
    if isinstance(task, FunctionTask):
        rows: list[Row] = task.ask(config, "modules", {"lines": list(config.modules), "selector": selector})["rows"]
        return rows
    raise UserError(f"The task {task.name} shows no network: write a function that calls context.ablate.")
