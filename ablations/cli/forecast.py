"""What a plan will take: memory, disk, and time on the devices there are, from measurements of this store."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ablations.cli.jobs import prepare
from ablations.cli.options import Chosen
from ablations.cli.progress import duration, plain_progress
from ablations.overrides import nested
from ablations.plan import PlannedRun
from experiments.config import flatten, total_steps
from experiments.errors import UserError
from experiments.jobs.calibration import Point, Speed, keep, kept, of_results
from experiments.jobs.probe import STEPS, seconds_per_step
from experiments.jobs.slots import Slot
from experiments.jobs.widths import makespan

PROBED = 3  # rows that are measured: the cheapest, the costliest, and one between


@dataclass(frozen=True)
class Forecast:
    """Of the runs that are not done. Seconds by run_id; `makespan_s` is None where some could not be told."""

    memory_bytes: dict[str, float]
    disk_bytes: dict[str, float]
    seconds: dict[str, float | None]
    makespan_s: float | None
    evaluations_known: bool

    @property
    def total_s(self) -> float:
        return sum(seconds or 0.0 for seconds in self.seconds.values())


def forecast(chosen: Chosen, runs: Sequence[PlannedRun], slots: Sequence[Slot]) -> Forecast:
    """Predict from what was measured in the store on devices like the first of `slots`."""
    slot, task = slots[0], chosen.task
    every = {run.run_id: _step_cost(run) for run in chosen.plan.runs}
    steps, evaluations = of_results(chosen.store, every)
    speed = Speed([*kept(chosen.store), *steps], slot.kind, slot.threads)
    scoring = Speed(evaluations, slot.kind, slot.threads)
    unique = {run.run_id: run for run in runs}
    seconds = {run_id: _seconds(run, speed, scoring) for run_id, run in unique.items()}
    known = [value for value in seconds.values() if value is not None]
    return Forecast(
        {run_id: task.memory_bytes(run.config, slot.kind) for run_id, run in unique.items()},
        {run_id: task.disk_bytes(run.config) for run_id, run in unique.items()},
        seconds,
        makespan(known, len(slots)) if known and len(known) == len(seconds) else None,
        bool(scoring),
    )


def measure(chosen: Chosen, runs: Sequence[PlannedRun], slot: Slot) -> None:
    """Train a few steps of a few rows on one slot, and keep how long they took in the store."""
    prepare(chosen, runs, plain_progress)
    by_cost = {_step_cost(run): run for run in runs if run.cost}
    costs = sorted(by_cost)
    if not costs:
        raise UserError(f"The task {chosen.study.task} does not predict what its runs cost: nothing can be measured.")
    picked = {costs[0], costs[len(costs) // 2], costs[-1]} if len(costs) > PROBED else set(costs)
    points = []
    for cost in sorted(picked):
        seconds = seconds_per_step(chosen.store, _spec(chosen, by_cost[cost]), slot)
        points.append(Point(slot.kind, slot.threads, cost, seconds))
    keep(chosen.store, points)


def refuse_above(max_hours: float, chosen: Chosen, runs: Sequence[PlannedRun], slots: Sequence[Slot]) -> str:
    """Raises UserError if the runs would take longer, all together, than the budget; else what they would take."""
    predicted = forecast(chosen, runs, slots)
    if predicted.makespan_s is None:
        measure(chosen, runs, slots[0])
        predicted = forecast(chosen, runs, slots)
    if predicted.makespan_s is None:
        raise UserError("--max-hours: how long these runs take cannot be predicted, so the budget cannot be kept.")
    if predicted.makespan_s > max_hours * 3600:
        longest = max(predicted.seconds.items(), key=lambda item: item[1] or 0.0)
        row = next(run.row for run in runs if run.run_id == longest[0])
        whole, alone = duration(predicted.makespan_s), duration(longest[1] or 0.0)
        raise UserError(
            f"--max-hours {max_hours:g}: {len(predicted.seconds)} runs would take about {whole} on {len(slots)} slots, "
            f"the longest ({row}) {alone}. Nothing was started. More --devices, fewer --rows or --seeds, or a smaller "
            "--profile make it shorter."
        )
    return f"about {duration(predicted.makespan_s)}, within the {max_hours:g} h allowed"


def lines(predicted: Forecast, slots: Sequence[Slot], devices: str) -> Iterable[str]:
    """Totals for people."""
    memory, disk = list(predicted.memory_bytes.values()), sum(predicted.disk_bytes.values())
    if any(memory):
        yield f"memory: up to {max(memory) / 1e9:.1f} GB a run on {slots[0].kind}; disk: {disk / 1e9:.2f} GB"
    if predicted.makespan_s is None:
        if predicted.seconds:
            yield "time: nothing like it was measured here yet; `ablations plan … --measure` trains a few steps"
        return
    scored = "" if predicted.evaluations_known else ", evaluation not counted (none was measured yet)"
    median = statistics.median(value or 0.0 for value in predicted.seconds.values())
    yield (
        f"time: {duration(predicted.total_s)} of work (median run {duration(median)}), about "
        f"{duration(predicted.makespan_s)} on {devices}{scored}"
    )


def _seconds(run: PlannedRun, speed: Speed, scoring: Speed) -> float | None:
    steps, cost = total_steps(run.config), _step_cost(run)
    if steps is None or (steps and not (speed and cost)):
        return None
    evaluating = scoring.seconds(cost) * len(run.evaluations) if scoring else 0.0
    return (speed.seconds(cost) * steps if steps else 0.0) + evaluating


def _step_cost(run: PlannedRun) -> float:
    return run.cost / (total_steps(run.config) or 1)


def _spec(chosen: Chosen, run: PlannedRun) -> dict[str, object]:
    """The run with as few steps as a measurement takes."""
    settings, name = dict(flatten(run.config)), run.config.setting_roles.steps
    if not name or name not in settings:
        raise UserError(f"The task {run.config.task} does not say in a setting how long it trains: it is not measured.")
    return {
        "task": run.config.task,
        "folder": str(chosen.study.folder or ""),
        "config": nested({**settings, name: STEPS}),
        "inputs": dict(run.inputs),
    }
