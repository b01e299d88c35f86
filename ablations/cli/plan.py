"""`ablations plan`: the runs of a table, without running anything."""

import json
from pathlib import Path

import typer

from ablations.cli import options as o
from ablations.plan import Plan, PlannedRun, plan_as_json


def register(app: typer.Typer) -> None:
    app.command("plan")(plan)


def plan(
    study: o.StudyName,
    profile: o.Profile = None,
    corpus: o.Corpus = None,
    rows: o.Rows = None,
    seeds: o.Seeds = None,
    sets: o.Set = None,
    store: o.StoreDir = o.DEFAULT_STORE,
    state_dir: o.StateDir = None,
    yes: o.Yes = False,
    as_json: o.Json = False,
) -> None:
    """Show the runs of a table: settings, parameters, cost, and what is done already."""
    chosen = o.choose(study, profile, corpus, rows, seeds, sets, store, state_dir, many=yes)
    planned = chosen.plan
    if as_json:
        typer.echo(json.dumps(plan_as_json(planned), indent=1, ensure_ascii=False))
    else:
        _print(planned, chosen.store.root)


def _print(planned: Plan, store: Path) -> None:
    width = max(len(run.row) for run in planned.runs)
    typer.echo(f"{planned.study.title} — profile {planned.profile}, store {store}")
    for run in planned.runs:
        changes = ", ".join(f"{name.rpartition('.')[2]}={value}" for name, value in run.overrides.items())
        typer.echo(f"  {run.row:<{width}}  seed {run.seed}  {run.run_id}  {run.state:<8}{_size(run)}  {changes}")
    states = [run.state for run in planned.runs]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    trainings = {run.run_id: run.cost for run in planned.runs}  # rows may share one and differ in its decoding
    shared = "" if len(trainings) == len(states) else f"; {len(trainings)} trainings"
    total = sum(trainings.values())
    typer.echo(f"{len(states)} runs: {counts}{shared}{f'; {total:.1e} FLOP of training in all' if total else ''}")
    for note in planned.notes:
        typer.echo(f"note: {note}")


def _size(run: PlannedRun) -> str:
    """Parameters and cost, as far as the task can tell them beforehand."""
    params = "" if run.num_params is None else f"  {run.num_params / 1e6:8.2f}M params"
    return params + (f"  {run.cost:8.1e} FLOP" if run.cost else "")
