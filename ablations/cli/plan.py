"""`ablations plan`: show the runs of a table without running anything."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ablations.cli import options
from ablations.cli.noise import seeds_needed
from ablations.cli.terminal import plain_progress, print_json, say
from ablations.plan.ensembles import in_words
from ablations.plan.planned import Plan, PlannedRun, plan_as_json
from ablations.service.enqueue import wanted
from ablations.service.forecast import Forecast, forecast, lines, measure
from ablations.service.made_again import say_trained_again, trained_again
from ablations.service.noise import hours_of_rows, noise_of, wanted_difference
from ablations.service.obstacles import Obstacle, obstacles, paragraphs, warnings
from ablations.service.orphans import orphans, say_orphans
from ablations.service.selected import Selected, Selectors, choose, device_count
from ablations.study.messages import duration, number
from experiments.errors import UserError
from experiments.identity import seed_in_words
from experiments.jobs.devices.slots import Slot, parse_slots


def plan(
    study: options.LastStudy = None,
    *,
    selectors: Selectors,
    yes: options.Yes = False,
    devices: options.Devices = "auto",
    devices_per_run: options.DevicesPerRun = "1",
    measured: Annotated[bool, typer.Option("--measure", help="Train a few steps to predict the time.")] = False,
    detect: Annotated[
        str | None,
        typer.Option(metavar="[COLUMN=]D", help="Seeds and hours per row that show a difference D from base."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Show the runs of a table: settings, parameters, predicted cost, and state."""
    wide = device_count(devices_per_run)
    study, selectors = selectors.with_last(study, say)
    chosen = choose(study, selectors, many=yes, used=True)
    chosen = replace(chosen, devices_per_run=wide)
    planned, slots = chosen.plan, parse_slots(devices)
    todo = wanted(planned, "keep")
    if measured and todo:
        measure(chosen, todo, slots[0], plain_progress)
    predicted = forecast(chosen, planned, todo, slots)
    needed = _needed(study, selectors, chosen, detect, slots) if detect is not None else None
    found, again = obstacles(chosen, todo, slots), trained_again(chosen, todo)
    if as_json:
        rows = _as_json(planned, predicted, found, again)
        if needed:
            for row in rows:
                row["detect"] = {"seeds": needed.seeds, "hours": needed.hours.get(row["row"])}
        print_json(rows)
    else:
        _print(planned, chosen.store.root, predicted)
        for line in lines(predicted, slots, devices):
            typer.echo(line)
        orphaned = say_orphans(orphans(chosen, planned, todo), chosen.to_paste)
        for note in filter(None, [*planned.notes, *orphaned, say_trained_again(again)]):
            typer.echo(f"note: {note}")
        for line in needed.lines() if needed else ():
            typer.echo(line)
    for warning in warnings(chosen, todo, slots):
        typer.echo(f"note: {warning}", err=True)
    if any(not obstacle.needs_corpus for obstacle in found):
        raise UserError(paragraphs(found, todo))
    if found:
        typer.echo(f"`ablations run` would refuse this: {paragraphs(found, todo)}", err=True)


@dataclass(frozen=True)
class _Needed:
    """What --detect asks for."""

    words: str
    seeds: int | None  # None: more than are looked for
    hours: dict[str, float | None]  # of all these seeds, by row; None: unknown

    def lines(self) -> Iterator[str]:
        yield self.words
        width = max(map(len, self.hours))
        for row, hours in self.hours.items() if self.seeds else ():
            time = "unknown time" if hours is None else duration(hours * 3600)
            yield f"  {row:<{width}}  {number(self.seeds or 0, 'seed')}  {time}"


def _needed(study: str, selectors: Selectors, chosen: Selected, detect: str, slots: Sequence[Slot]) -> _Needed:
    """Seeds and hours of each row. Raises UserError where the store has no two seeds of base."""
    wanted = wanted_difference(detect)
    found = noise_of(study, selectors, chosen)
    if not found:
        raise UserError(
            f"--detect: the spread of base between seeds is not known here. `ablations noise {study}` with the same "
            "options trains some seeds of it."
        )
    of = wanted.of(found)
    seeds = of.seeds_for(wanted.difference)
    hours = hours_of_rows(study, selectors, slots)
    count = seeds[0] or 0
    return _Needed(
        seeds_needed(of, wanted.difference, seeds),
        seeds[0],
        {row: None if value is None else value * count for row, value in hours.items()},
    )


def _as_json(
    planned: Plan, predicted: Forecast, found: Sequence[Obstacle], again: Sequence[PlannedRun]
) -> list[dict[str, Any]]:
    """The plan as JSON, with predictions for runs that are not done."""
    rows = plan_as_json(planned)
    for row in rows:
        row["trained_again"] = any(run.run_id == row["run_id"] for run in again)
        row["obstacles"] = [obstacle.why for obstacle in found if row["row"] in obstacle.rows]
        row["memory_bytes"] = predicted.memory_bytes.get(row["run_id"])
        row["disk_bytes"] = predicted.disk_bytes.get(row["run_id"])
        row["devices"] = predicted.devices.get(row["run_id"], 1)
        row["seconds"] = predicted.seconds.get(row["run_id"])
    return rows


def _print(planned: Plan, store: Path, predicted: Forecast) -> None:
    width = max(len(run.row) for run in planned.trainings)
    described: set[str] = set()  # rows, once for all seeds
    typer.echo(f"{planned.study.title} — profile {planned.profile}, store {store}")
    for run in planned.trainings:
        changes = ", ".join(f"{name.rpartition('.')[2]}={value}" for name, value in run.overrides.items())
        size = _size(run, predicted)
        typer.echo(
            f"  {run.row:<{width}}  {seed_in_words(run.seed)}  {run.run_id}  {run.state:<8}{size}  {changes}".rstrip()
        )
        if run.members:
            members = planned.members_of(run)
            typer.echo(f"  {'':<{width}}  of {members[0].row}, {in_words([member.seed for member in members])}")
        if run.trunk and (trunk := planned.trunk_of(run)):
            typer.echo(f"  {'':<{width}}  begins with {trunk.name} after step {run.trunk.step:,}")
        if run.row not in described:
            described.add(run.row)
            for line in run.config.described():
                typer.echo(f"  {'':<{width}}  {line}")
    states = [run.state for run in planned.trainings]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    # rows may share a training and differ in decoding; an ensemble trains nothing
    trainings = {run.run_id: run.cost for run in planned.trainings if not run.members}
    shared = "" if len(trainings) == len(states) else f"; {number(len(trainings), 'training')}"
    total = sum(trainings.values())
    typer.echo(
        f"{number(len(states), 'run')}: {counts}{shared}{f'; {total:.1e} FLOP of training in all' if total else ''}"
    )


def _size(run: PlannedRun, predicted: Forecast) -> str:
    """Parameters and cost, as far as the task can predict them."""
    params = "" if run.num_params is None else f"  {run.num_params / 1e6:8.2f}M params"
    devices = predicted.devices.get(run.run_id)
    memory, seconds = predicted.memory_bytes.get(run.run_id), predicted.seconds.get(run.run_id)
    return (
        params
        + (f"  {run.cost:8.1e} FLOP" if run.cost else "")
        + (f"  {memory / 1e9:5.1f} GB" if memory else "")
        + (f"  {duration(seconds):>7}" if seconds else "")
        + (f"  on {devices} devices" if devices else "")
    )
