"""`ablations run --devices cpu:auto` and `cuda:*xauto`: how many runs share a device, by measurement."""

import re
from collections.abc import Sequence
from dataclasses import replace

import typer

from ablations.cli.forecast import short_spec, step_cost
from ablations.cli.jobs import prepare
from ablations.cli.options import Chosen
from ablations.cli.progress import plain_progress
from ablations.plan import PlannedRun
from experiments.errors import UserError
from experiments.jobs.calibration import Share, keep_share, kept_shares
from experiments.jobs.hardware import available_cores
from experiments.jobs.packing import WORTH, counts, most_worth, shares
from experiments.jobs.probe import STEPS, probe_together
from experiments.jobs.slots import Slot, parse_slots

MEASURED = re.compile(r"(?P<cpu>cpu:)auto|(?P<cuda>cuda:[^x+]+x)auto")


def as_one(devices: str) -> str:
    """The text with a device for each run where sharing is to be measured."""
    return MEASURED.sub(lambda match: _text(match, 1), devices)


def settle(devices: str, chosen: Chosen, runs: Sequence[PlannedRun]) -> str:
    """The text of `--devices` with numbers where it says auto: as many at once as are each time WORTH the fewer.

    Measured is the row in which half of all the table's work is passed, going from its cheapest to its costliest. The
    answer is kept in the store, so that the same command goes on as it began. `runs` are those not done. Raises
    UserError if a coordinator works on the store, or if not even one run can be measured.
    """
    if not runs or not MEASURED.search(devices):
        return as_one(devices)
    prepare(chosen, runs, plain_progress)
    run = middle_of_work(chosen.plan.runs)

    def number(match: re.Match[str]) -> str:
        return _text(match, _count(chosen, run, parse_slots(_text(match, 1))[0]))

    with chosen.store.coordinator_lock():  # what trains beside it would be measured too
        settled = MEASURED.sub(number, devices)
    typer.echo(f"--devices {settled}", err=True)
    return settled


def middle_of_work(runs: Sequence[PlannedRun]) -> PlannedRun:
    """From the cheapest run to the costliest, the one that passes half of the sum of their costs."""
    rising = sorted({run.run_id: run for run in runs}.values(), key=lambda run: run.cost)
    left = sum(run.cost for run in rising) / 2
    for run in rising:
        left -= run.cost
        if left <= 0:
            break
    return run


def _text(match: re.Match[str], count: int) -> str:
    return f"{match['cuda']}{count}" if match["cuda"] else f"cpu:{count}x{max(1, available_cores() // count)}"


def _count(chosen: Chosen, run: PlannedRun, slot: Slot) -> int:
    """Runs at once on a device like `slot`, as was measured in this store or is measured now."""
    like = Share(run.config.task, slot.kind, slot.threads, step_cost(run))
    for share in kept_shares(chosen.store):
        if share.same(like):
            return share.count
    typer.echo(f"measuring how many runs like {run.row} share {slot.unit} best …", err=True)
    spec = short_spec(chosen, run, 2 * STEPS)

    def speeds(count: int) -> list[float]:
        try:
            found = probe_together(chosen.store, spec, shares(slot, count))
        except UserError as error:
            if count == 1:
                raise
            typer.echo(f"  {count} at once: {error}", err=True)
            return [0.0]
        each = [1 / measured.seconds_per_step for measured in found]
        typer.echo(f"  {count} at once: {sum(each):.3g} steps/s", err=True)
        return each

    taken = most_worth(counts(slot, chosen.task.memory_bytes(run.config, slot.kind) / 1e9), speeds)
    count = taken[-1][0] if taken else 1
    typer.echo(f"  {count} it is: each number has to gain {WORTH} times over the one before", err=True)
    keep_share(chosen.store, replace(like, count=count))
    return count
