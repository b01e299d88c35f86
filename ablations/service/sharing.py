"""Measure how many runs share a device, for `ablations run --devices cpu:auto` and `cuda:*xauto`."""

import re
import statistics
from collections.abc import Callable, Sequence

from ablations.plan.planned import PlannedRun
from ablations.service.enqueue import prepare
from ablations.service.forecast import short_spec, step_cost
from ablations.service.selected import Selected
from experiments.errors import UserError
from experiments.identity import digest
from experiments.jobs.attempts.calibration import Point, keep, keep_share, kept_share
from experiments.jobs.attempts.probe import STEPS, probe_together, steps_together
from experiments.jobs.devices.device_sharing import WORTH, counts, most_worth, shares
from experiments.jobs.devices.hardware import available_cores
from experiments.jobs.devices.slots import Slot, parse_slots
from experiments.tasks.base import Progress

MEASURED = re.compile(r"cpu:auto|(cuda:(?:\*|\d+(?:,\d+)*)x)auto")


def as_one(devices: str) -> str:
    """The text of --devices with one run per device wherever sharing is to be measured."""
    return _replaced(devices, lambda part: _text(part, 1))


def resolve_auto(
    devices: str, chosen: Selected, runs: Sequence[PlannedRun], progress: Progress, say: Callable[[str], None]
) -> str:
    """Replace auto in the text of --devices by the largest count whose every step up gained WORTH times.

    Measures the row at half of the table's total cost, counted from its cheapest run upwards. The result is stored, so
    that the same command continues with it. `runs`: those not done. `say`: prints a line. Raises UserError if a
    coordinator works on the store, or if not even one run can be measured.
    """
    if not runs:
        return as_one(devices)
    run = middle_of_work([run for run in chosen.plan.trainings if not run.members])
    prepare(chosen, [*runs, run], progress)
    with chosen.store.coordinator_lock():  # other training would distort the measurement
        settled = _replaced(devices, lambda part: _text(part, _count(chosen, run, say, parse_slots(_text(part, 1))[0])))
    say(f"--devices {settled}")
    return settled


def middle_of_work(runs: Sequence[PlannedRun]) -> PlannedRun:
    """The run at which the sum of costs, from the cheapest run upwards, passes half of the total."""
    rising = sorted({run.run_id: run for run in runs}.values(), key=lambda run: run.cost)
    left = sum(run.cost for run in rising) / 2
    for run in rising:
        left -= run.cost
        if left <= 0:
            break
    return run


def _replaced(devices: str, text: Callable[[re.Match[str]], str]) -> str:
    parts = [(part, MEASURED.fullmatch(part.strip())) for part in devices.split("+")]
    return "+".join(text(match) if match else part for part, match in parts)


def _text(part: re.Match[str], count: int) -> str:
    return f"{part[1]}{count}" if part[1] else f"cpu:{count}x{max(1, available_cores() // count)}"


def _count(chosen: Selected, run: PlannedRun, say: Callable[[str], None], slot: Slot) -> int:
    """Runs at once on a device like `slot`: recorded in this store, or measured now."""
    spec = short_spec(chosen, run, 2 * STEPS)
    alike = {key: value for key, value in spec.items() if key != "config"}
    settings = {key: value for key, value in run.config.model_dump(mode="json").items() if key != "seed"}
    key = digest({**alike, "config": settings, "slot": [slot.kind, slot.threads, slot.room_gb]})
    known = kept_share(chosen.store, key)
    if known is not None:
        return known
    tried = list(counts(slot, chosen.task.memory_bytes(run.config, slot.kind) / 1e9))
    if len(tried) < 2:
        say(f"{slot.unit} is not shared: two runs like {run.row} do not fit")
        return 1
    say(f"measuring how many runs like {run.row} should share {slot.unit} …")
    points: dict[int, Point] = {}  # by number of runs at once

    def speeds(count: int) -> list[float]:
        steps = steps_together(points[1].seconds) if points else 2 * STEPS
        try:
            found = probe_together(chosen.store, short_spec(chosen, run, steps), shares(slot, count))
        except UserError as error:
            if count == 1:
                raise UserError(f"{error} Give a number in --devices, such as cpu:2x4 or cuda:*x2.") from None
            say(f"  {count} at once: {error}")
            return [0.0]
        mean, threads = statistics.fmean(m.seconds_per_step for m in found), shares(slot, count)[0].threads
        points[count] = Point(slot.kind, threads, step_cost(run), mean, found[0].precision)
        each = [1 / measured.seconds_per_step for measured in found]
        say(f"  {count} at once: {sum(each):.3g} steps/s")
        return each

    count = most_worth(tried, speeds)[-1][0]
    say(f"  chose {count}: each step up had to gain {WORTH} ×")
    keep_share(chosen.store, key, count)
    keep(chosen.store, [points[count]])
    return count
