"""What planned runs could not be: what their settings, corpus and devices refuse, said before anything is trained."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ablations.plan.plan import PlannedRun
from ablations.service.selected import Selected
from experiments.errors import NeedsCorpus, UserError
from experiments.jobs.devices.hardware import available_cores
from experiments.jobs.devices.slots import Slot


@dataclass(frozen=True)
class Obstacle:
    rows: tuple[str, ...]
    why: str
    needs_corpus: bool = False  # nothing is wrong with the plan but that no corpus was named

    def text(self, every: int) -> str:
        """One paragraph; `every` is how many rows were looked at."""
        return self.why if len(self.rows) == every else f"{', '.join(self.rows)}: {self.why}"


def obstacles(chosen: Selected, runs: Sequence[PlannedRun], slots: Sequence[Slot] = ()) -> list[Obstacle]:
    """Of these runs, on these devices where they are known; one for all rows that it concerns."""
    found: dict[tuple[str, bool], list[str]] = {}
    for run in _one_of_each_row(runs):
        for error in chosen.task.obstacles(run.config, chosen.store.root):
            found.setdefault((str(error), isinstance(error, NeedsCorpus)), []).append(run.row)
    too_large = _too_large(chosen, runs, slots)
    return [*(Obstacle(tuple(rows), why, needs) for (why, needs), rows in found.items()), *too_large]


def refuse(chosen: Selected, runs: Sequence[PlannedRun], slots: Sequence[Slot] = ()) -> None:
    """Raises UserError if anything stands in the way of these runs."""
    if found := obstacles(chosen, runs, slots):
        raise UserError(paragraphs(found, runs))


def paragraphs(found: Sequence[Obstacle], runs: Sequence[PlannedRun]) -> str:
    every = len(_one_of_each_row(runs))
    return "\n".join(obstacle.text(every) for obstacle in found)


def crowded(slots: Iterable[Slot]) -> str:
    """A warning of more threads than cores; "" where there are enough."""
    threads, cores = sum(slot.threads for slot in slots if slot.kind == "cpu"), available_cores()
    if threads <= cores:
        return ""
    return (
        f"--devices asks for {threads:,} threads on {cores} core{'s' * (cores > 1)}: runs wait for each other, "
        f"and memory is divided among all slots. cpu:{cores} uses every core once."
    )


def _one_of_each_row(runs: Iterable[PlannedRun]) -> list[PlannedRun]:
    return list({run.row: run for run in runs}.values())  # seeds differ in nothing that matters here


def _too_large(chosen: Selected, runs: Sequence[PlannedRun], slots: Sequence[Slot]) -> Iterator[Obstacle]:
    """The rows that need more memory than any of the devices has."""
    rooms: dict[tuple[str, str], float] = {}  # GB, by device and its kind; a run may take all slots of one
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
            f"more memory is needed ({sizes}) than any of the devices has for runs (the largest, {unit}: "
            f"{room:,.1f} GB). Make the model smaller, choose other rows with --rows, or train where there is more: "
            "`ablations queue` here, `ablations work` there.",
        )
