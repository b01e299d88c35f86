"""The commands `ablations plan` and `ablations noise` (the spread between seeds of base)."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ablations.cli import options
from ablations.cli.run import run_chosen
from ablations.cli.terminal import plain_progress, print_json
from ablations.planning.plan import Plan, PlannedRun, plan_as_json
from ablations.service.coordination import WorkOptions
from ablations.service.enqueue import say_trained_again, trained_again, wanted
from ablations.service.forecast import (
    Forecast,
    Noise,
    base_of,
    forecast,
    hours_of_rows,
    lines,
    measure,
    noise_of,
    why_unknown,
)
from ablations.service.gpu_sharing import sharing_lines
from ablations.service.preflight import Refusal, paragraphs, refusals, warnings
from ablations.service.selected import Queueing, Selectors, choose
from ablations.service.store_tables import orphans, say_orphans
from ablations.study.selectors import only_row
from experiments.errors import UserError
from experiments.identity import ensemble_in_words, seed_in_words
from experiments.jobs.devices.slots import parse_slots
from experiments.messages import duration, number
from experiments.store import ledger
from experiments.store.budget import Account
from experiments.store.layout import MARKER, Store
from experiments.tasks.own.run_code import NO_TREE
from reports.render.markdown import pipe
from reports.results.dunnett import ALPHA
from reports.results.number_text import fixed
from reports.results.power import POWER
from reports.results.table import change_digits


def plan(
    study: options.StudyName,
    *,
    selectors: Selectors,
    queueing: Annotated[Queueing, options.Without(("priority", "stale"))],
    devices: options.Devices = "auto",
    measured: Annotated[bool, typer.Option("--measure", help="Train a few steps to predict the time.")] = False,
    as_json: options.Json = False,
) -> None:
    """Show the runs of a table: settings, parameters, predicted cost, and state."""
    chosen = queueing.choose(study, selectors)
    planned, slots = chosen.plan, parse_slots(devices)
    todo = wanted(planned, "keep")
    if measured and todo:
        measure(chosen, todo, slots[0], plain_progress)
    predicted = forecast(chosen, planned, todo, slots)
    found, again = refusals(chosen, todo, slots), trained_again(chosen, todo)
    if (chosen.store.root / MARKER).exists() and os.access(chosen.store.root, os.W_OK):
        rows = list(dict.fromkeys(run.row for run in planned.trainings))
        ledger.append(chosen.store, "plan", study=planned.study.name, profile=planned.profile, planned=rows)
    if as_json:
        print_json(_predicted_as_json(planned, predicted, found, again))
    else:
        _print(planned, chosen.store.root, predicted)
        summary = [*lines(predicted, slots, devices), *sharing_lines(chosen, planned, todo, slots)]
        for line in filter(None, [*summary, _budget_in_words(chosen.store)]):
            typer.echo(line)
        orphaned = say_orphans(orphans(chosen, planned, todo))
        for note in filter(None, [*planned.notes, *orphaned, say_trained_again(again)]):
            typer.echo(f"note: {note}")
    for warning in warnings(chosen, todo, slots):
        typer.echo(f"note: {warning}", err=True)
    if any(not refusal.needs_corpus for refusal in found):
        raise UserError(paragraphs(found, todo))
    if found:
        typer.echo(f"`ablations run` will refuse this: {paragraphs(found, todo)}", err=True)


def _budget_in_words(store: Store) -> str:
    """Return the remaining budget in words, or the reason why it is unknown if the ledger is damaged."""
    try:
        return Account(store).in_words()
    except UserError as error:
        return f"budget: unknown. {error}"


def _predicted_as_json(
    planned: Plan, predicted: Forecast, found: Sequence[Refusal], again: Sequence[PlannedRun]
) -> list[dict[str, Any]]:
    """Return the plan as JSON, with predictions for runs that are not done."""
    rows = plan_as_json(planned)
    for row in rows:
        row["trained_again"] = any(run.run_id == row["run_id"] for run in again)
        row["refusals"] = [refusal.why for refusal in found if row["row"] in refusal.rows]
        row["memory_bytes"] = predicted.memory_bytes.get(row["run_id"])
        row["disk_bytes"] = predicted.disk_bytes.get(row["run_id"])
        row["devices"] = predicted.devices.get(row["run_id"], 1)
        row["seconds"] = predicted.seconds.get(row["run_id"])
    return rows


def _print(planned: Plan, store: Path, predicted: Forecast) -> None:
    width = max(len(run.row) for run in planned.trainings)
    states = [run.state_in_words for run in planned.trainings]
    wide = max(8, *map(len, states))
    described: set[str] = set()  # rows whose description was printed; it is the same for all seeds of a row
    typer.echo(f"{planned.study.title} — profile {planned.profile}, store {store}")
    for run, state in zip(planned.trainings, states, strict=True):
        changes = ", ".join(f"{name.rpartition('.')[2]}={value}" for name, value in run.planned_row.overrides.items())
        if planned.changes_code(run.planned_row):
            tree = run.spec.trainer.tree
            changes = run.variation.label if tree.startswith(NO_TREE) else f"{run.variation.label} ({tree[:12]})"
        size = _size(run, predicted)
        typer.echo(
            f"  {run.row:<{width}}  {seed_in_words(run.seed)}  {run.run_id}  {state:<{wide}}{size}  {changes}".rstrip()
        )
        if run.spec.members:
            members = planned.members_of(run)
            typer.echo(
                f"  {'':<{width}}  of {members[0].row}, {ensemble_in_words([member.seed for member in members])}"
            )
        if run.spec.parent_run and (parent_run := planned.parent_run_of(run)):
            typer.echo(f"  {'':<{width}}  branches from {parent_run.name} after step {run.spec.parent_run.step:,}")
        if run.row not in described:
            described.add(run.row)
            for line in run.config.described():
                typer.echo(f"  {'':<{width}}  {line}")
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    # Rows that differ only in decoding share a training. An ensemble trains nothing.
    trainings = {run.run_id: run for run in planned.trainings if not run.spec.members}
    shared = "" if len(trainings) == len(states) else f"; {number(len(trainings), 'training')}"
    total = sum(run.spec.cost for run in trainings.values())
    left = sum(run.spec.cost for run in trainings.values() if run.run_id in predicted.seconds and run.steps_left != 0)
    of_these = f"{left:.1e}" if left else "none"
    cost = f"{total:.1e} FLOP of training{f', {of_these} left' if left < total else ''}"
    typer.echo(f"{number(len(states), 'run')}: {counts}{shared}{f'; {cost}' if total else ''}")


def _size(run: PlannedRun, predicted: Forecast) -> str:
    """Return the parameters, cost, memory, time and devices of a run, as far as they are known."""
    params = "" if run.spec.num_params is None else f"  {run.spec.num_params / 1e6:8.2f}M params"
    devices = predicted.devices.get(run.run_id)
    memory, seconds = predicted.memory_bytes.get(run.run_id), predicted.seconds.get(run.run_id)
    return (
        params
        + (f"  {run.spec.cost:8.1e} FLOP" if run.spec.cost else "")
        + (f"  {memory / 1e9:5.1f} GB" if memory else "")
        + (f"  {duration(seconds):>7}" if seconds else "")
        + (f"  on {devices} devices" if devices else "")
    )


SEEDS = (2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 100)


def noise(
    study: options.StudyName,
    selectors: Annotated[Selectors, options.Without(("seeds",))],
    seeds: Annotated[
        int, typer.Option(metavar="N", min=2, help="Number of seeds of base; missing ones are trained.")
    ] = 5,
    devices: options.Devices = "auto",
    as_json: options.Json = False,
) -> None:
    """Train seeds of base; print their spread, which differences N seeds can detect, and the hours that they take."""
    chosen = choose(study, selectors)
    base = base_of(chosen)
    alone = replace(selectors, rows=only_row(chosen.study, base.key), seeds=seeds)
    run_chosen(choose(study, alone), WorkOptions(devices=devices), "keep", "markdown", show=False)
    found = noise_of(study, selectors, chosen, seeds)
    if not found:
        raise UserError(f"{base.key}: no metric varies between {number(seeds, 'seed')}, so there is no noise to print.")
    hours = hours_of_rows(study, selectors, parse_slots(devices))
    known = [value for value in hours.values() if value is not None]
    per_seed = sum(known) if known and len(known) == len(hours) else None
    if as_json:
        print_json(_spread_as_json(base.key, seeds, found, per_seed))
        return
    typer.echo(f"{base.key} of {chosen.study.name}, profile {chosen.plan.profile}: {number(seeds, 'seed')}\n")
    typer.echo(_spreads(found))
    typer.echo(
        f"Differences from {base.key} that N seeds of every row detect with {POWER * 100:.0f} % power at "
        f"p < {ALPHA:g}, for {number(found[0].rows, 'row')} compared at once (Dunnett's test and T3), if all rows vary "
        f"as {base.key} does:\n"
    )
    typer.echo(_shown(found, per_seed))
    if per_seed is None:
        typer.echo(f"Hours of work: {why_unknown(chosen.plan.runs)}.")


def _spreads(found: Sequence[Noise]) -> str:
    lines = []
    for one in found:
        places = change_digits(one.column) + 1
        lines.append([
            one.column.header + (" (spread in ln)" if one.column.logarithmic else ""),
            fixed(one.mean, one.column.digits),
            fixed(one.sd, places),
            f"{fixed(one.low, places)} … {fixed(one.high, places)}",
        ])  # fmt: skip
    return pipe(["metric", "mean", "sd of a seed", "95 % interval of the sd"], lines, [True, False, False, False])


def _shown(found: Sequence[Noise], per_seed: float | None) -> str:
    """Return a table of the detectable differences and the hours of work, with one line per number of seeds."""
    heads = ["seeds per row", *(one.column.header + (" Δ ln" if one.column.logarithmic else " Δ") for one in found)]
    lines = []
    for seeds in SEEDS:
        cells = [fixed(one.shown_by(seeds) or 0.0, change_digits(one.column)) for one in found]
        lines.append([str(seeds), *cells, "" if per_seed is None else f"{seeds * per_seed:.3g}"])
    return pipe([*heads, "hours of work"], lines, [False] * (len(heads) + 1))


def _spread_as_json(base: str, seeds: int, found: Sequence[Noise], per_seed: float | None) -> dict[str, Any]:
    return {
        "base": base,
        "seeds": seeds,
        "rows_compared": found[0].rows,
        "alpha": ALPHA,
        "power": POWER,
        "hours_per_seed": per_seed,
        "columns": [
            {
                "key": one.column.key,
                "header": one.column.header,
                "logarithmic": one.column.logarithmic,
                "values": list(one.values),
                "mean": one.mean,
                "sd": one.sd,
                "sd_interval": [one.low, one.high],
                "smallest_difference": {str(n): one.shown_by(n) for n in SEEDS},
            }
            for one in found
        ],
    }
