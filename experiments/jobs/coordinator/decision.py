"""A pure function that decides how many runs share each GPU of `--devices auto`, and gives the reason."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from experiments.jobs.coordinator.scheduler import place
from experiments.jobs.coordinator.sharing import GAIN, Card, enough_for, load, why_alone
from experiments.jobs.devices.slots import Slot
from experiments.jobs.queue.job import Waiting
from experiments.messages import number


class Decision(NamedTuple):
    """The number of runs that a GPU gets at the same time, and the reason why it does not get more.

    slots: the slots of the runs that start now.
    """

    at_once: int
    why: str
    slots: tuple[Slot, ...] = ()


def decide(
    slots: Sequence[Slot],
    waiting: Iterable[Waiting],
    *,
    cards: Iterable[Card] = (),
    left_alone: Mapping[str, str] | None = None,
    mps: bool = False,
) -> dict[str, Decision]:
    """Return a dict from the name of each GPU of `--devices auto` in `slots` to its decision.

    waiting: all jobs that wait.
    cards: GPUs that have runs, or whose throughput was measured; every other GPU counts as empty and unmeasured.
    left_alone: name of a GPU → reason why this GPU is not used.
    mps: whether NVIDIA's MPS daemon is active and serves the runs of a shared GPU.
    """
    left_alone, waiting = left_alone or {}, list(waiting)
    usable = [slot for slot in slots if slot.name not in left_alone]
    known = {slot.name: Card(slot) for slot in usable if slot.most > 1}
    known |= {card.slot.name: card for card in cards if card.slot.name in known}
    free = [slot for slot in usable if slot.name not in known or not known[slot.name].shares]
    placed = place(waiting, free, slots, known.values())
    started = {job.run_id for job, _ in placed}
    left = [job for job in waiting if job.run_id not in started]
    found = {}
    for slot in slots:
        if slot.most and slot.name in left_alone:
            found[slot.name] = Decision(0, f"not used, because other programs use it: {left_alone[slot.name]}")
        elif slot.most:
            mine = [(job, one) for job, lease in placed for one in lease if one.unit == slot.unit]
            found[slot.name] = _decision(slot, known.get(slot.name), mine, left, mps)
    return found


def _decision(
    slot: Slot, card: Card | None, mine: Sequence[tuple[Waiting, Slot]], left: Sequence[Waiting], mps: bool
) -> Decision:
    """Return the decision for one GPU.

    mine: the jobs that were placed on this GPU, with their slots.
    left: the jobs that have no slot.
    """
    slots = tuple(lease for _, lease in mine)
    if not mine and (card is None or not card.shares):
        return Decision(0, "no run waits for this GPU")
    if card is None or slot.name in [lease.name for lease in slots]:
        why = why_alone(mine[0][0], slot)
        sharing = sum(not why_alone(job, slot) for job in left)
        return Decision(1, why + (f"; {_number(sharing)} can share it" if sharing else ""), slots)
    for job, _ in mine:
        card, _ = card.with_run(job)
    reasons = [_why_no_more(card, left)]
    if mps and len(card.shares) > 1:
        reasons.append("NVIDIA's MPS serves them")
    if alone := [why for job in left if (why := why_alone(job, slot))]:
        reasons.append(f"{_number(len(alone))} get{'s' * (len(alone) == 1)} the GPU alone: {alone[0]}")
    return Decision(len(card.shares), "; ".join(reasons), slots)


def _number(others: int) -> str:
    return number(others, "other run")


def _why_no_more(card: Card, left: Sequence[Waiting]) -> str:
    """Return the reason why no more runs share a GPU."""
    reserved = sum(share.reserved_gb for share in card.shares)
    memory = f"{reserved:.1f} of {card.slot.free_gb or 0.0:.1f} GB are reserved"
    refused = {card.refuses(job) for job in left if not why_alone(job, card.slot)}
    if not refused:
        return f"no other run waits to share it; {memory}"
    if refused == {""}:
        return f"the next run needs the GPU alone or more memory; {memory}"
    if "limit" not in refused:
        return f"not enough memory for another run; {memory}"
    if len(card.shares) >= card.slot.most:
        return f"{enough_for(card.slot.most)}; {memory}"
    if card.level is not None:
        return f"{card.level.why}; {memory}"
    if all(share.ops for share in card.shares):
        start = f"a step of a run fills {_at_most(max(load(share.ops, card.slot) for share in card.shares))} of the GPU"
    else:
        start = "the load of a run is unknown"
    return f"{start}; {memory}; the number of runs doubles while each doubling raises the throughput by {GAIN - 1:.0%}"


def _at_most(part: float) -> str:
    return f"at most {part:.0%}" if part >= 0.01 else "less than 1%"
