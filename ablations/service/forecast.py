"""Predict the memory, disk space and time of a plan from measurements in the store, and measure the noise of base."""

import shlex
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ablations.planning.declare_table import table_spec
from ablations.planning.plan import Plan, PlannedRun
from ablations.service.enqueue import prepare, renewed, trained_again
from ablations.service.gpu_sharing import seats
from ablations.service.run_states import Members
from ablations.service.selected import Selected, Selectors, choose
from ablations.study.selectors import only_row
from ablations.study.variation import Variation
from experiments.dotted import flatten, nested
from experiments.errors import UserError
from experiments.events.accounting import attempt_costs
from experiments.identity import PROBE_ID, without_runs
from experiments.jobs.attempts.probe import PROBE_STEPS, ProbePoint, Speed, keep, kept, of_results, probe
from experiments.jobs.devices.slots import Slot, by_device
from experiments.jobs.queue.time_left import makespan
from experiments.messages import duration, number, some_names
from experiments.run_spec import RunSpec
from experiments.store.layout import Store
from experiments.tasks.base import Progress
from experiments.tasks.columns import Column
from reports.results.dunnett import spread
from reports.results.power import smallest_difference
from reports.results.table import compared_values
from reports.table.build import build_table

NAMED_ROWS = 3  # number of rows that a message names
PROBED_S = 120.0  # seconds after which only the cheapest and the most expensive rows are still measured


@dataclass(frozen=True)
class Forecast:
    """Predictions for runs that are not done. The keys of all mappings are run_ids."""

    memory_bytes: dict[str, float]
    disk_bytes: dict[str, float]
    seconds: dict[str, float | None]
    makespan_s: float | None  # seconds until all runs have ended; None if the time of a run is unknown
    devices: dict[str, int]  # number of devices, only for runs on several devices
    evaluations_known: bool  # whether the time of evaluations is known
    unknown: str = ""  # the text to print if the time is unknown
    of_others: tuple[str, ...] = ()  # rows without a finished run, whose time is the median of other rows

    @property
    def total_s(self) -> float:
        """Total seconds of all runs, one after the other. A run of unknown time counts as 0."""
        return sum(seconds or 0.0 for seconds in self.seconds.values())


def forecast(
    chosen: Selected, plan: Plan, runs: Sequence[PlannedRun], slots: Sequence[Slot], stale: str = "keep"
) -> Forecast:
    """Predict `runs` of the plan from measurements in the store on devices like the first of `slots`.

    A GPU of `auto` counts as one slot for each run that shares this GPU at the start. stale: with "rerun", runs whose
    training code has changed are trained again.
    """
    slots = seats(chosen, plan, runs, slots)
    slot, task = slots[0], chosen.task
    every = {run.run_id: step_cost(run) for run in plan.trainings if not run.spec.members}
    steps, evaluations = of_results(chosen.store, every)
    steps += kept(chosen.store)
    # A run that is also a member of an ensemble has a second entry without evaluations. Keep the entry with the most
    # evaluations.
    unique = {run.run_id: run for run in sorted(runs, key=lambda run: len(run.evaluations))}
    precisions = {run_id: task.precisions(run.config, slot.kind) for run_id, run in unique.items()}
    speeds = {name: Speed(steps, slot.kind, slot.threads, name) for name, _ in precisions.values()}
    scorings = {name: Speed(evaluations, slot.kind, slot.threads, name) for _, name in precisions.values()}
    seconds: dict[str, float | None] = {}
    of_others: dict[str, None] = {}
    again = {run.run_id for run in [*trained_again(chosen, unique.values()), *renewed(unique.values(), stale)]}
    of_rows = _of_finished_rows(chosen, plan, slot)
    usual = (
        _usual_s(chosen, plan, of_rows, slot)
        if any(not run.spec.cost and not run.spec.members for run in runs)
        else None
    )
    for run_id, run in unique.items():
        training, scoring = precisions[run_id]
        members = [step_cost(member) for member in plan.members_of(run)]
        steps_left = run.spec.own_steps if run_id in again else run.steps_left
        if run.spec.cost or run.spec.members or steps_left == 0:
            seconds[run_id] = _seconds(run, steps_left, members, speeds[training], scorings[scoring])
        else:
            seconds[run_id] = of_rows.get(run.row, usual)
            if run.row not in of_rows and usual is not None:
                of_others[run.row] = None
    known = {run_id: value for run_id, value in seconds.items() if value is not None}
    width = min(chosen.devices_per_run, len(by_device(slots)))
    wide = dict.fromkeys(unique, width) if width > 1 else {}
    return Forecast(
        {run_id: task.memory_bytes(run.config, slot.kind) for run_id, run in unique.items()},
        {
            run_id: 0.0 if run.spec.members or run.store_state.to_make else task.disk_bytes(run.config)
            for run_id, run in unique.items()
        },
        seconds,
        makespan([(value, wide.get(run_id, 1)) for run_id, value in known.items()], [0.0] * len(slots))
        if known and len(known) == len(seconds)
        else None,
        wide,
        all(scorings.values()),
        why_unknown(runs),
        tuple(of_others),
    )


def why_unknown(runs: Iterable[PlannedRun]) -> str:
    """Return a text for the user on how an unknown time becomes known: by a measurement, or by a finished run."""
    if any(run.spec.cost and run.spec.own_steps for run in runs):
        return "unknown; measure it with `ablations plan … --measure`, which trains a few steps"
    return "unknown until a run has finished"


def measure(chosen: Selected, runs: Sequence[PlannedRun], slot: Slot, progress: Progress) -> None:
    """Measure the training speed for each combination of cost and precision in the rows. Store the measured speeds.

    A measurement trains a few steps on one slot. The cheapest and the most expensive row of each precision are measured
    first. The other rows are measured until PROBED_S has passed. The speeds of the remaining rows are interpolated.
    Raises UserError if the task does not predict the cost of runs.
    """
    prepare(chosen, runs, progress)
    slot = seats(chosen, chosen.plan, runs, [slot])[0]  # a slot with as many threads as a run gets
    rows = {(chosen.task.precisions(run.config, slot.kind)[0], step_cost(run)): run for run in runs if run.spec.cost}
    if not rows:
        raise UserError(
            f"--measure: the task {chosen.study.task} does not predict the cost of its runs, so a few steps do not "
            f"predict their time. Finish one run instead: ablations run {chosen.to_paste} --seeds 1 --rows "
            f"{shlex.quote(runs[0].row if runs else chosen.study.variations[0].key)}"
        )
    every = sorted(rows)
    alike = ([row for row in every if row[0] == name] for name in dict.fromkeys(name for name, _ in every))
    ends = [end for found in alike for end in (found[0], found[-1])]
    order, began = list(dict.fromkeys([*ends, *every])), time.monotonic()
    probes = probe(chosen.store, (short_spec(rows[row]) for row in order), slot)
    for done, (row, measured) in enumerate(zip(order, probes, strict=True), 1):
        progress(f"measuring {rows[row].row}", done, len(order))
        keep(chosen.store, [ProbePoint(slot.kind, slot.threads, row[1], measured.seconds_per_step, measured.precision)])
        if done >= len(set(ends)) and time.monotonic() - began > PROBED_S:
            probes.close()
            break


def refuse_above(
    max_hours: float,
    chosen: Selected,
    runs: Sequence[PlannedRun],
    slots: Sequence[Slot],
    progress: Progress,
    here: bool,
    stale: str = "keep",
) -> str:
    """Return a text with the predicted time of the runs. Raise UserError if it is longer than `max_hours` or unknown.

    here: whether the runs are trained on this machine. If so, unknown speeds are measured first.
    """
    plan = chosen.plan
    predicted = forecast(chosen, plan, runs, slots, stale)
    if predicted.makespan_s is None and not here:
        raise UserError(
            "--max-hours: the time is unknown, because this store has no measurement of a similar run. Measure on a "
            "machine like the cluster's with `ablations plan … --measure`, which trains a few steps of each row."
        )
    if predicted.makespan_s is None:
        measure(chosen, runs, slots[0], progress)
        predicted = forecast(chosen, plan, runs, slots, stale)
    if predicted.makespan_s is None:
        raise UserError("--max-hours: the time of these runs is unknown until one has finished. Leave out --max-hours.")
    if predicted.makespan_s > max_hours * 3600:
        longest = max(predicted.seconds.items(), key=lambda item: item[1] or 0.0)
        row = next(run.row for run in runs if run.run_id == longest[0])
        whole, alone = duration(predicted.makespan_s), duration(longest[1] or 0.0)
        raise UserError(
            f"--max-hours {max_hours:g}: {number(len(predicted.seconds), 'run')} would take about {whole} on "
            f"{number(len(slots), 'slot')}, "
            f"the longest ({row}) {alone}. Nothing was started. Use more --devices, fewer --rows or --seeds, or a "
            "smaller --profile."
        )
    caveat = "".join(f"; {line}" for line in _of_others(predicted))
    return f"about {duration(predicted.makespan_s)}, within the {max_hours:g} h allowed{caveat}"


def lines(predicted: Forecast, slots: Sequence[Slot], devices: str) -> Iterable[str]:
    """Yield the lines that summarize a forecast for the user. devices: the value of --devices."""
    memory, disk = list(predicted.memory_bytes.values()), sum(predicted.disk_bytes.values())
    if any(memory):
        yield f"memory: up to {max(memory) / 1e9:.1f} GB a run on {slots[0].kind}; disk: {disk / 1e9:.2f} GB"
        yield from _limited(max(memory) / 1e9, slots)
    if predicted.makespan_s is None:
        if predicted.seconds:
            yield f"time: {predicted.unknown}"
        return
    scored = "" if predicted.evaluations_known else ", without evaluation, whose time is not measured yet"
    if scored and not predicted.total_s:
        yield "time: unknown; only evaluation is left, whose time is not measured yet"
        return
    if not predicted.total_s:
        yield "time: 0 s, no training is left"
        return
    # Runs that take 0 s are left out, because they train nothing.
    median = statistics.median(value for value in predicted.seconds.values() if value)
    yield (
        f"time: {duration(predicted.total_s)} of work (median run {duration(median)}), about "
        f"{duration(predicted.makespan_s)} on {devices}{scored}"
    )
    yield from (f"time: {line}" for line in _of_others(predicted))


def _of_others(predicted: Forecast) -> Iterable[str]:
    """Yield a caveat on the rows whose predicted time is that of other rows, which may have other settings."""
    if rows := predicted.of_others:
        names = some_names(rows, NAMED_ROWS)
        yield f"no run of {names} has finished, so the median time of other rows is used; their runs may take longer"


def _limited(largest_gb: float, slots: Sequence[Slot]) -> Iterable[str]:
    """Yield a remark if the largest run reaches the memory limit. A run may use all slots of a device."""
    limits = [slot.memory_gb for slot in slots if slot.unit == slots[0].unit and slot.memory_gb is not None]
    if limits and largest_gb > sum(limits):
        yield (
            f"memory: a run that reaches the limit of {sum(limits):g} GB in --devices continues with smaller "
            "micro-batches of the same batch"
        )


def _seconds(
    run: PlannedRun, steps: int | None, members: Sequence[float], speed: Speed, scoring: Speed
) -> float | None:
    """Return the predicted seconds of the remaining training and evaluations of a run; None if unknown.

    steps: the remaining training steps. members: for an ensemble, the cost of one step of each member, because an
    evaluation uses all members.
    """
    cost = sum(members) if members else step_cost(run)
    if steps is None or (steps and not (speed and cost)):
        return None
    left = len(set(run.eval_ids).difference(run.store_state.made))
    evaluating = scoring.seconds(cost) * left if scoring else 0.0
    return (speed.seconds(cost) * steps if steps else 0.0) + evaluating


def _of_finished_rows(chosen: Selected, plan: Plan, slot: Slot) -> dict[str, float]:
    """Return the median training time of each row's finished runs on devices like the slot.

    Only runs whose task predicts no cost count.
    """
    found: dict[str, list[float]] = {}
    for run in plan.trainings:
        spent = None if run.spec.cost or run.spec.members else _trained_in(chosen.store, run.run_id, slot)
        if spent:
            found.setdefault(run.row, []).append(spent)
    return {row: statistics.median(times) for row, times in found.items()}


def _usual_s(chosen: Selected, plan: Plan, of_rows: Mapping[str, float], slot: Slot) -> float | None:
    """Return the median of the times of the plan's rows (`of_rows`).

    If `of_rows` is empty, return the median time of all runs of the same study and profile in the store.
    """
    if of_rows:
        return statistics.median(of_rows.values())
    members, here = Members(chosen.store), (plan.study.name, plan.profile)
    mine = [
        run_id
        for run_id in chosen.store.run_ids()
        if any((member.study, member.profile) == here for member in members.of(run_id))
    ]
    times = [spent for run_id in mine if (spent := _trained_in(chosen.store, run_id, slot))]
    return statistics.median(times) if times else None


def _trained_in(store: Store, run_id: str, slot: Slot) -> float | None:
    """Return the seconds that a finished training took on devices like the slot; None if there is no such training.

    All attempts that contributed to the weights count, including those before a resume. Attempts that only evaluated,
    that read a log again, or that belong to an earlier training of the run do not count.
    """
    result = store.result(run_id)
    if result is None or result.ensemble or (result.device_kind, result.threads) != (slot.kind, slot.threads):
        return None
    parts = {result.attempt}
    for earlier in reversed(result.earlier_attempts):
        if earlier.ended == "finished":
            break
        parts.add(earlier.attempt)
    spent = sum(one.wall_s for one in attempt_costs(store, run_id) if one.attempt in parts)
    return spent or result.wall_s or None


def step_cost(run: PlannedRun) -> float:
    """Return the predicted floating-point operations of one training step; 0 if they are unknown."""
    return run.spec.cost / (run.spec.own_steps or 1)


def short_spec(run: PlannedRun, steps: int = PROBE_STEPS) -> RunSpec:
    """Return the specification of a run with only `steps` steps.

    Raises UserError if the task has no setting for steps.
    """
    settings, name = dict(flatten(run.spec.config)), run.config.setting_roles.steps
    if not name or name not in settings:
        raise UserError(f"--measure: the task {run.config.task} names no setting for its training steps.")
    config = nested({**settings, name: steps})
    inputs = without_runs(run.spec.inputs)  # a branch is measured without its parent run
    return replace(run.spec, run_id=PROBE_ID, config=config, inputs=inputs, steps=steps)


@dataclass(frozen=True)
class Noise:
    """A column's spread between the seeds of base.

    The spread and the differences of a logarithmic column are in logarithms. The values and the mean are in the
    column's unit.
    """

    column: Column
    values: tuple[float, ...]  # one per seed
    mean: float
    sd: float  # standard deviation between seeds
    low: float  # lower end of the 95 % interval of the standard deviation
    high: float  # upper end
    rows: int  # number of rows that a table compares with base

    def shown_by(self, seeds: int) -> float | None:
        """Return the smallest true difference from base that `seeds` seeds per row detect; None for one seed."""
        return smallest_difference(self.sd, self.rows, seeds)


def base_of(chosen: Selected) -> Variation:
    """Return the study's base row. Raises UserError for an ensemble, which has no seeds."""
    base = chosen.study.base_row or chosen.study.variations[0]
    if base.ensemble is not None:
        raise UserError(f'The base row "{base.key}" of {chosen.study.name} is an ensemble, which has no seeds.')
    return base


def compared(plan: Plan, base: Variation) -> list[PlannedRun]:
    """Return one run of each row that the table compares with base."""
    rows = {run.row: run for run in plan.runs if not run.spec.members and run.row != base.key}
    return [run for run in rows.values() if not plan.study.families or run.variation.group == base.group]


def noise_of(study: str, selectors: Selectors, chosen: Selected, seeds: int) -> list[Noise]:
    """Return the spread of each column between the seeds of base. The first `seeds` seeds count, if they have results.

    Columns with fewer than two values or without spread are left out. A logarithmic column is also left out if one of
    its values is not positive.
    """
    base = base_of(chosen)
    alone = choose(study, replace(selectors, rows=only_row(chosen.study, base.key), seeds=seeds))
    table = build_table(table_spec(alone.plan, alone.columns), alone.store, "none")
    rows, found = max(1, len(compared(chosen.plan, base))), []
    for column in table.listed:
        values = table.rows[0].measures[column.key].values
        if len(values) < 2 or (column.logarithmic and min(values) <= 0):
            continue
        sd, low, high = spread(compared_values(values, column))
        if sd > 0:
            found.append(Noise(column, values, sum(values) / len(values), sd, low, high, rows))
    return found


def hours_of_rows(study: str, selectors: Selectors, slots: Sequence[Slot]) -> dict[str, float | None]:
    """Return the predicted hours of one seed of each row; None if unknown. For an ensemble, only evaluations count."""
    chosen = choose(study, replace(selectors, seeds=1))
    plan = chosen.plan
    predicted = forecast(chosen, plan, plan.runs, slots)
    first = {run.row: run.run_id for run in reversed(plan.runs)}
    rows = list(dict.fromkeys(run.row for run in plan.runs))
    seconds = {row: predicted.seconds.get(first[row]) for row in rows}
    return {row: None if value is None else value / 3600 for row, value in seconds.items()}
