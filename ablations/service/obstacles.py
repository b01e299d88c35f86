"""Reasons why planned runs cannot run: settings, corpus or devices. Checked before anything is trained."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ablations.plan.planned import PlannedRun
from ablations.service.selected import Selected
from experiments.errors import NeedsCorpus, UserError
from experiments.jobs.devices.hardware import available_cores
from experiments.jobs.devices.slots import Slot


@dataclass(frozen=True)
class Obstacle:
    """One reason with the rows that it concerns."""

    rows: tuple[str, ...]
    why: str
    needs_corpus: bool = False  # the plan is valid except that it names no corpus

    def text(self, every: int) -> str:
        """One paragraph. `every`: number of rows checked; if all are concerned, they are not listed."""
        return self.why if len(self.rows) == every else f"{', '.join(self.rows)}: {self.why}"


def obstacles(chosen: Selected, runs: Sequence[PlannedRun], slots: Sequence[Slot] = ()) -> list[Obstacle]:
    """Obstacles of these runs, and of these devices if given; equal reasons of several rows are one."""
    found: dict[tuple[str, bool], list[str]] = {}
    for run in _one_of_each_row(runs):
        for error in chosen.task.obstacles(run.config, chosen.store.root):
            found.setdefault((str(error), isinstance(error, NeedsCorpus)), []).append(run.row)
    too_large = _too_large(chosen, runs, slots)
    return [*(Obstacle(tuple(rows), why, needs) for (why, needs), rows in found.items()), *too_large]


def refuse(chosen: Selected, runs: Sequence[PlannedRun], slots: Sequence[Slot] = ()) -> None:
    """Raises UserError if there is any obstacle."""
    if found := obstacles(chosen, runs, slots):
        raise UserError(paragraphs(found, runs))


def paragraphs(found: Sequence[Obstacle], runs: Sequence[PlannedRun]) -> str:
    """The obstacles as text, one paragraph each."""
    every = len(_one_of_each_row(runs))
    return "\n".join(obstacle.text(every) for obstacle in found)


def crowded(slots: Iterable[Slot]) -> str:
    """A warning if slots have more threads than there are cores, else ""."""
    threads, cores = sum(slot.threads for slot in slots if slot.kind == "cpu"), available_cores()
    if threads <= cores:
        return ""
    return (
        f"--devices requests {threads:,} threads on {cores} core{'s' * (cores > 1)}: runs slow each other down, "
        f"and memory is divided among all slots. cpu:{cores} uses every core once."
    )


def _one_of_each_row(runs: Iterable[PlannedRun]) -> list[PlannedRun]:
    return list({run.row: run for run in runs}.values())  # a row's seeds have the same obstacles


def _too_large(chosen: Selected, runs: Sequence[PlannedRun], slots: Sequence[Slot]) -> Iterator[Obstacle]:
    """Rows that need more memory than the largest device has."""
    rooms: dict[tuple[str, str], float] = {}  # GB by device and kind; one run may use all slots of a device
    for slot in slots:
        device = slot.unit, slot.kind
        rooms[device] = rooms.get(device, 0.0) + (math.inf if slot.room_gb is None else slot.room_gb)
    needed: dict[str, float] = {}
    for run in _one_of_each_row(runs):
        needs = {kind: chosen.task.least_memory_bytes(run.config, kind) / 1e9 for _, kind in rooms}
        if rooms and all(needs[kind] > room for (_, kind), room in rooms.items()):
            needed[run.row] = min(needs.values())
    if needed:
        (unit, _), room = max(rooms.items(), key=lambda item: item[1])
        sizes = ", ".join(f"{row} {gb:,.1f} GB" for row, gb in needed.items())
        yield Obstacle(
            tuple(needed),
            f"these rows need more memory ({sizes}) than any device has for runs (the largest, {unit}: "
            f"{room:,.1f} GB). Make the model smaller, choose other rows with --rows, or train on a larger machine: "
            "`ablations queue` here, `ablations work` there.",
        )
