"""`ablations tune`: search the best settings of every row with equal budgets, and print the table of the tuned rows."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ablations.cli import exits, options
from ablations.cli.progress import Live
from ablations.cli.report import print_table
from ablations.cli.run import run_chosen
from ablations.cli.terminal import plain_progress
from ablations.plan.planned import Plan
from ablations.service.enqueue import enqueue, prepare, wanted
from ablations.service.run_states import plan_with_states
from ablations.service.selected import Selected, Selectors, choose
from ablations.service.shares import user_name
from ablations.service.trials import Trials
from ablations.study.messages import number
from ablations.study.overrides import setting_names
from ablations.study.selectors import Selection
from ablations.study.tuning import SETS, notes_of, tune_of, with_tuned
from experiments.errors import UserError
from experiments.jobs.coordinator.background import Background
from experiments.jobs.coordinator.reporter import Summary, View
from experiments.jobs.coordinator.work import work
from experiments.jobs.devices.slots import Slot, parse_slots
from experiments.tasks.load import load_task
from experiments.tracking.mlflow import Tracker


def tune(
    study: options.StudyName,
    selectors: Selectors,
    devices: options.Devices = "auto",
    user: options.User = None,
    trials: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Trials of each row; the study's number if unset.")
    ] = None,
    format_: Annotated[
        str, typer.Option("--format", metavar="F", help="Format of the table: see `ablations report`.")
    ] = "",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table to a file.")] = None,
    importances: Annotated[bool, typer.Option(help="Print the importance of each tuned setting for each row.")] = False,
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> None:
    """Tune each row on the development set with the study's budget and ranges, train it at its best, print the table.

    A trial is an ordinary run. After an interruption the same command continues; at the end it prints the table.
    """
    slots = parse_slots(devices)
    chosen = replace(choose(study, selectors, many=yes, used=True), user=user_name(user))
    selected = selectors.selection()
    budget = trials or tune_of(chosen.study, chosen.task).trials

    def queue_tuned() -> None:
        """Queue the tuned rows as soon as the last trial ends, so that no slot is idle."""
        tuned = _tuned(chosen, selected, searching)
        plan = tuned.plan
        enqueue(tuned, plan, wanted(plan, "keep"), "keep")

    searching = Trials(chosen, selected, budget, len(slots), queue_tuned)
    if not searching.complete:
        _search(chosen, searching, slots)
    if importances:
        for line in _importances(searching):
            typer.echo(line, err=True)
    tuned = _tuned(chosen, selected, searching)
    format_ = "json" if as_json else format_
    if out is None:
        run_chosen(tuned, devices, "keep", format_)
    else:
        run_chosen(tuned, devices, "keep", format_, show=False)
        print_table(tuned, format_, out)


def _search(chosen: Selected, searching: Trials, slots: list[Slot]) -> None:
    """Run trials until every row's budget is spent. Exits 128 + the signal if interrupted, 1 if a row is given up."""
    prepare(chosen, chosen.plan.runs, plain_progress)
    spent = {row: len(search.trials) - len(search.running) for row, search in searching.searches.items()}
    typer.echo(
        f"{number(len(spent), 'row')}, {number(searching.trials, 'trial')} each: {sum(spent.values())} done", err=True
    )
    with Live(chosen.store) as live:

        def show(view: View) -> None:
            searching.watch(view)
            live.update(view)

        summary = work(
            chosen.store, slots, load_task, Background(lambda: Tracker(chosen.store)), show, refill=searching.refill
        )
    _leave_if_incomplete(searching, summary)


def _leave_if_incomplete(searching: Trials, summary: Summary) -> None:
    if summary.interrupted:
        typer.echo("stopped; the same command continues with the same trials", err=True)
        raise typer.Exit(exits.INTERRUPTED + summary.interrupted)
    for row, why in searching.given_up.items():
        typer.echo(f"{row}: a trial failed, so this row is not tuned further: {why}", err=True)
    if not searching.complete:
        typer.echo("`ablations status` shows why; the same command tries failed trials again", err=True)
        raise typer.Exit(exits.FAILED)


def _tuned(chosen: Selected, selected: Selection, searching: Trials) -> Selected:
    """The study with tuned rows, also scored on the test sets if the task has a setting for sets. Raises UserError."""
    lost = [row for row, search in searching.searches.items() if searching.budget(row) and search.best is None]
    if lost:
        raise UserError(
            f"No trial of {', '.join(lost)} gave a score, so no settings can be chosen: widen or move the ranges."
        )
    notes = notes_of(searching.searches, searching.trials, searching.column)
    study, task, store = with_tuned(chosen.study, searching.best(), notes), chosen.task, chosen.store
    asked: dict[str, object] = {}
    if SETS in setting_names(task.config_type):
        asked[SETS] = [searching.tune.set, *searching.tune.test]
    final = replace(selected, overrides={**asked, **selected.overrides})

    def replan() -> Plan:
        return plan_with_states(study, final, task, store)

    return Selected(study=study, task=task, store=store, replan=replan, columns=chosen.columns, user=chosen.user)


def _importances(searching: Trials) -> Iterator[str]:
    for row, search in searching.searches.items():
        found = search.importances()
        shares = ", ".join(f"{name} {share:.0%}" for name, share in found.items())
        yield f"{row}: {shares or 'too few trials for importances'}"
