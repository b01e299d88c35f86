"""Check settings, corpus and devices of planned runs before anything is trained, and refuse runs that cannot run."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ablations.planning.plan import PlannedRun
from ablations.service.selected import Selected
from experiments.errors import NeedsCorpus, UserError
from experiments.jobs.devices.hardware import available_cores
from experiments.jobs.devices.slots import Slot
from experiments.messages import number


@dataclass(frozen=True)
class Refusal:
    """A reason why rows cannot run, with the keys of these rows."""

    rows: tuple[str, ...]
    why: str
    needs_corpus: bool = False  # the plan is valid except that it names no corpus


def refusals(chosen: Selected, runs: Sequence[PlannedRun], slots: Sequence[Slot] = ()) -> list[Refusal]:
    """Return the refusals of these runs. Devices are checked only if slots are given.

    Rows that are refused for the same reason share one refusal.
    """
    found: dict[tuple[str, bool], list[str]] = {}
    for run in _one_of_each_row(runs):
        if run.variation.refused:
            why = f"{run.variation.refused} Correct it, or leave the row out with --rows."
            found.setdefault((why, False), []).append(run.row)
            continue
        for error in chosen.task.preflight(run.config, chosen.store.root):
            found.setdefault((str(error), isinstance(error, NeedsCorpus)), []).append(run.row)
    too_large = _too_large(chosen, runs, slots)
    lacking = missing_precisions(chosen, runs, slots)
    return [*(Refusal(tuple(rows), why, needs) for (why, needs), rows in found.items()), *lacking, *too_large]


def refuse(chosen: Selected, runs: Sequence[PlannedRun], slots: Sequence[Slot] = ()) -> None:
    """Raise UserError if a run is refused."""
    if found := refusals(chosen, runs, slots):
        raise UserError(paragraphs(found, runs))


def paragraphs(found: Sequence[Refusal], runs: Sequence[PlannedRun]) -> str:
    """Return the refusals as text, one paragraph each. A refusal of all rows does not list them."""
    every = len(_one_of_each_row(runs))
    return "\n".join(one.why if len(one.rows) == every else f"{', '.join(one.rows)}: {one.why}" for one in found)


def warnings(chosen: Selected, runs: Sequence[PlannedRun], slots: Sequence[Slot]) -> list[str]:
    """Return warnings about work that is slow on these devices, one paragraph each."""
    slow = _by_message(chosen, runs, slots, chosen.task.device_warnings)
    found = paragraphs([Refusal(tuple(rows), why) for why, rows in slow.items()], runs).splitlines()
    threads, cores = sum(slot.threads for slot in slots if slot.kind == "cpu"), available_cores()
    if threads > cores:
        found.append(
            f"--devices requests {threads:,} threads on {number(cores, 'core')}: runs slow each other down, and "
            f"memory is divided among all slots. cpu:{cores} uses every core once."
        )
    return found


def _one_of_each_row(runs: Iterable[PlannedRun]) -> list[PlannedRun]:
    return list({run.row: run for run in runs}.values())  # all seeds of a row have the same refusals


def missing_precisions(chosen: Selected, runs: Sequence[PlannedRun], slots: Sequence[Slot]) -> list[Refusal]:
    """Return refusals of rows whose precision one of the devices does not support. That device might train the rows."""
    found = _by_message(chosen, runs, slots, chosen.task.device_preflight)
    return [Refusal(tuple(rows), f"{why} {_ELSEWHERE}") for why, rows in found.items()]


def _by_message(
    chosen: Selected, runs: Sequence[PlannedRun], slots: Sequence[Slot], ask: Callable[..., Iterable[object]]
) -> dict[str, list[str]]:
    """Return each message that `ask` gives for a run and a kind of device, with the rows that it concerns."""
    found: dict[str, dict[str, None]] = {}
    for run in _one_of_each_row(runs):
        trained = chosen.store.result(run.run_id) is not None
        for kind in dict.fromkeys(slot.kind for slot in slots):
            for message in ask(run.config, kind, trained=trained):
                found.setdefault(str(message), {})[run.row] = None
    return {message: list(rows) for message, rows in found.items()}


def _too_large(chosen: Selected, runs: Sequence[PlannedRun], slots: Sequence[Slot]) -> Iterator[Refusal]:
    """Yield a refusal of the rows that need more memory than any device has."""
    devices: dict[tuple[str, str], list[Slot]] = {}  # (device, kind) → slots; one run may use all slots of a device
    for slot in slots:
        devices.setdefault((slot.unit, slot.kind), []).append(slot)
    capacities = {
        device: sum(math.inf if s.room_gb is None else s.room_gb for s in there) for device, there in devices.items()
    }
    limited = {device for device, there in devices.items() if any(s.memory_gb is not None for s in there)}
    needed: dict[str, float] = {}
    for run in _one_of_each_row(runs):
        needs = {
            device: chosen.task.least_memory_bytes(run.config, device[1], limited=device in limited) / 1e9
            for device in capacities
        }
        if capacities and all(needs[device] > capacity for device, capacity in capacities.items()):
            needed[run.row] = min(needs.values())
    if needed:
        largest, capacity = max(capacities.items(), key=lambda item: item[1])
        sizes = ", ".join(f"{row} {gb:,.1f} GB" for row, gb in needed.items())
        largest_in_words = f"{largest[0]}: {capacity:,.1f} GB{', the limit in --devices' * (largest in limited)}"
        least = ", with the smallest micro-batch, for the program, weights, gradients and the optimizer's state"
        yield Refusal(
            tuple(needed),
            f"these rows need more memory than any device has for runs (the largest is {largest_in_words}): "
            f"{sizes}{least * (largest in limited)}. Make the model smaller, "
            f"{'raise the limit, ' * (largest in limited)}choose other rows with --rows, or train on a larger "
            f"machine: {_THERE}.",
        )


_THERE = "`ablations queue` here, `ablations work` there"
_ELSEWHERE = f"Or use another machine: {_THERE}."
