"""The state of the GPUs of `--devices auto` while a coordinator works: runs, measurements, and a text for `status`."""

import logging
import time
from collections.abc import Collection, Iterable, Sequence

from experiments.jobs.attempts.attempt import RunningAttempt
from experiments.jobs.coordinator.sharing import Card, Level, Share, grow, operations, why_alone
from experiments.jobs.coordinator.throughput import RunReport, Throughput
from experiments.jobs.devices.gpu_occupancy import GpuMemory
from experiments.jobs.devices.slots import Slot
from experiments.jobs.queue.job import Waiting
from experiments.messages import number
from experiments.records import CONTEXT_GB, TRAINING

SAMPLES = 2  # a measured memory peak needs at least this many samples
log = logging.getLogger(__name__)


class SharedGpus:
    """Collects the facts on which sharing.py bases its decisions.

    slots: the coordinator's slots. Only GPUs of `--devices auto` that several runs may share are used.
    """

    def __init__(self, slots: Iterable[Slot]) -> None:
        self._throughput = {slot.unit: Throughput() for slot in slots if slot.most > 1}
        self._levels: dict[str, Level] = {}
        self._why_alone: dict[str, str] = {}  # run_id → why the run does not share its GPU
        self._memory = GpuMemory()
        self._peaks: dict[str, list[float]] = {}  # run_id → samples of GB in use on the GPU of the run

    def cards(self, slots: Iterable[Slot], lives: Collection[RunningAttempt]) -> list[Card]:
        """Return the GPUs that running attempts share, and the empty GPUs that runs may share.

        lives: the running attempts.
        """
        found = []
        for slot in slots:
            mine = _on(slot, lives) if slot.most > 1 else []
            if slot.most > 1 and all(_shares(live, slot) for live in mine):
                shares = tuple(_share_of(live) for live in mine)
                found.append(Card(slot, shares, self._levels.get(slot.unit)))
        return found

    def measure(self, slots: Sequence[Slot], lives: Collection[RunningAttempt]) -> bool:
        """Measure throughput and memory. Return whether a complete measurement has updated the level of a GPU."""
        changed = False
        cards = {card.slot.unit: card for card in self.cards(slots, lives)}
        for unit, throughput in self._throughput.items():
            card = cards.get(unit)
            if card is None or (card.level is not None and card.level.settled):
                throughput.observe(time.monotonic(), [])  # nothing to measure: not shared, or the level is settled
                continue
            readings = [RunReport.of(live) for live in _on(card.slot, lives)]
            if window := throughput.observe(time.monotonic(), readings):
                self._levels[unit] = grow(card.level, window, card.limit(), card.slot.most)
                log.info("%s: %s", unit, self._levels[unit].why)
                changed = True
        self._sample(lives)
        return changed

    def note_alone(self, placed: Iterable[tuple[Waiting, Sequence[Slot]]]) -> None:
        """Store for each placed run why it may not share its GPU. `in_words` returns these reasons."""
        self._why_alone |= {job.run_id: why_alone(job, lease[0]) for job, lease in placed if lease[0].most}

    def peak_gb(self, live: RunningAttempt) -> float | None:
        """Return the measured peak GPU memory of a finished training; None if it was not measured.

        Only a run whose memory was not predicted is measured.
        """
        samples = self._peaks.pop(live.run_id, [])
        return max(samples) if len(samples) >= SAMPLES and TRAINING in live.expected else None

    def in_words(self, slots: Iterable[Slot], lives: Collection[RunningAttempt]) -> str:
        """Return a line per GPU of `--devices auto`: its number of runs, and its limit. Return "" without runs."""
        cards = {card.slot.unit: card for card in self.cards(slots, lives)}
        return "\n".join(self._in_words(slot, _on(slot, lives), cards) for slot in slots if slot.most and lives)

    def _in_words(self, slot: Slot, mine: Sequence[RunningAttempt], cards: dict[str, Card]) -> str:
        runs = f"{slot.unit}: {number(len(mine), 'run')}"
        if not mine:
            return runs
        if slot.unit not in cards:
            if len(mine) > 1:
                return f"{runs} of an earlier command; no more runs start there"
            why = self._why_alone.get(mine[0].run_id, "")
            return f"{runs}, alone on the GPU{f': {why}' if why else ''}"
        card = cards[slot.unit]
        why = f": {card.level.why}" if card.level else " until the throughput is measured"
        return f"{runs}, at most {card.limit()} at once{why}"

    def _sample(self, lives: Collection[RunningAttempt]) -> None:
        """Record the memory in use on GPUs that have one run, if the memory of that run is unknown."""
        unknown = {
            live.slot.device: live.run_id
            for live in lives
            if live.slot.most > 1 and live.slot.memory_gb is None and not live.claimed.job.gpu_memory_gb
        }
        for device, gb in (self._memory.sample() if unknown else {}).items():
            if device in unknown:
                self._peaks.setdefault(unknown[device], []).append(gb)


def _on(slot: Slot, lives: Iterable[RunningAttempt]) -> list[RunningAttempt]:
    """Return the attempts that hold a GPU or a share of it."""
    return [live for live in lives if any(name.partition("/")[0] == slot.unit for name in live.leased)]


def _shares(live: RunningAttempt, slot: Slot) -> bool:
    """Return whether an attempt has a share of the GPU and the memory of this share is known.

    If an earlier coordinator started the attempt, the memory of its share is unknown. Then no other run starts on its
    GPU.
    """
    return live.slot.name.startswith(f"{slot.unit}/") and live.slot.memory_gb is not None


def _share_of(live: RunningAttempt) -> Share:
    """Return the share of a GPU that an attempt takes: place, memory and operations."""
    job = live.claimed.job
    place = int(live.slot.name.partition("/")[2])
    return Share(place, (live.slot.memory_gb or 0.0) + CONTEXT_GB, operations(job.spec.cost, job.spec.steps))
