"""Assign waiting jobs to free slots.

The functions are pure, so that tests and simulations can use them. Usually a job takes one slot. There are three
exceptions. If a job needs more memory than one slot has, it takes several slots of a device. If a job ran out of memory
next to other runs, it takes all slots of a device. If several devices train a job together, it takes these devices.
Small jobs share a GPU of `--devices auto` (sharing.py).
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from experiments.jobs.coordinator.sharing import Card, why_alone
from experiments.jobs.devices.slots import Slot, by_device, most_together
from experiments.jobs.queue.job import Waiting

Lease = tuple[Slot, ...]  # the slots that one job takes


class Choice(NamedTuple):
    """The slots that a job takes now (`lease`), or the slots that stay free for it until it has enough (`kept`)."""

    lease: Lease = ()
    kept: Lease = ()


def place(
    waiting: Iterable[Waiting], free: Sequence[Slot], slots: Sequence[Slot], cards: Iterable[Card] = ()
) -> list[tuple[Waiting, Lease]]:
    """Return pairs of a job and its slots. Each job and each slot occurs at most once.

    slots: all slots, free or not.
    cards: GPUs that runs share or may share. A GPU without runs is also among the free slots. A job that cannot share
        it takes the whole GPU.

    Jobs are placed by priority (highest first), then by `turn` (lowest first), then by predicted cost (largest first).
    Ties keep the order of `waiting`. `turn` puts the first seed of every row first, so that a table has all of its rows
    early. Among these, base and the rows with large published changes come first. The average cost of a slot is the
    total cost of the waiting jobs divided by the number of slots. A job that costs at least this average is placed as
    if it had turn 0. The time until all jobs are done is therefore at most max(longest job, total / slots) plus the
    time of one job.

    A run that started on one kind of device stays on this kind if the coordinator has a slot of it. A job that needs
    several slots reserves free slots until it has enough. Otherwise, smaller jobs after it could delay it forever. For
    the same reason, no other run starts on a shared GPU while an earlier job waits for memory of this GPU, or waits
    until this GPU is empty.
    """
    kinds = {slot.kind for slot in slots}
    left = list(free)
    placed: list[tuple[Waiting, Lease]] = []
    shared = {card.slot.name: card for card in cards}
    waiting = list(waiting)
    share = sum(job.cost for job in waiting) / max(1, len(slots))
    ordered = sorted(waiting, key=lambda job: (-job.priority, 0 if job.cost >= share > 0 else job.turn, -job.cost))
    for job in ordered:
        if not left and not shared:
            break
        bound = job.kind in kinds
        if (not bound or job.kind == "cuda") and (card := _card(job, shared.values())):
            shared[card.slot.name], slot = card.with_run(job)
            left = [other for other in left if other.name != card.slot.name]
            placed.append((job, (slot,)))
            continue
        usable, there = ([s for s in some if not bound or s.kind == job.kind] for some in (left, slots))
        usable = [slot for slot in usable if slot.name not in shared or why_alone(job, slot) or job.devices > 1]
        choice = _several(job.devices, usable, there) if job.devices > 1 else _one(job, usable, there)
        taken = {slot.name for slot in choice.lease + choice.kept}
        if not choice.lease:
            lacking = max(0, job.devices - len(choice.kept)) if job.devices > 1 else 1
            taken.update(_closed(job, [shared[name] for name in shared if name not in taken], there, lacking))
        left = [slot for slot in left if slot.name not in taken] if taken else left
        shared = {name: card for name, card in shared.items() if name not in taken}
        if choice.lease:
            placed.append((job, choice.lease))
    return placed


def _card(job: Waiting, cards: Iterable[Card]) -> Card | None:
    """Return the GPU that the job shares; None if the job cannot share any.

    Of the possible GPUs, return the one with the fewest runs. If several GPUs have equally few runs, return the one
    with the least memory left.
    """
    taking = [card for card in cards if not card.refuses(job)]
    return min(taking, key=lambda card: (len(card.shares), card.left_gb), default=None)


def _closed(job: Waiting, cards: Sequence[Card], there: Sequence[Slot], count: int) -> list[str]:
    """Return the names of shared GPUs on which no other run may start while `job` waits.

    Without this rule, other runs could delay `job` forever.

    If the job can share a GPU, return the shared GPU with the most free memory. Otherwise return the `count` GPUs that
    have enough memory and the fewest runs, because they are likely to become empty first. Return [] if the job waits
    for a device that is not shared.
    """
    if job.devices == 1 and any(not slot.most and _fits(job, slot) for slot in there):
        return []  # the job waits for another device
    names = {slot.name for slot in there}
    mine = [card for card in cards if card.slot.name in names]
    if any(not why_alone(job, slot) for slot in there if slot.most):
        shared = [card for card in mine if not why_alone(job, card.slot)]
        return [max(shared, key=lambda card: card.left_gb).slot.name] if shared else []
    # If a job needs more memory than any GPU has, it gets the largest GPU.
    needed = min(job.needs_gb("cuda"), max((_room([slot], 1) for slot in there), default=0.0))
    enough = [card for card in mine if _room([card.slot], 1) >= needed]
    return [card.slot.name for card in sorted(enough, key=lambda card: len(card.shares))[:count]]


def _one(job: Waiting, usable: Sequence[Slot], there: Sequence[Slot]) -> Choice:
    """Choose one slot with enough memory for the job, or the slots of one device that together have enough."""
    if not job.alone:
        if not (job.memory_gb or job.gpu_memory_gb):
            return Choice(tuple(usable[:1]))
        fitting = [slot for slot in usable if _fits(job, slot)]
        if fitting:  # take the smallest fitting slot, so that larger ones stay free for larger jobs
            return Choice((min(fitting, key=lambda slot: slot.room_gb or math.inf),))
        if any(_fits(job, slot) for slot in there):
            return Choice()
    owned, free = by_device(there, by_memory=True), by_device(usable, by_memory=True)
    needs = {device: _shares(job, shares) for device, shares in owned.items()}
    enough = [device for device in free if len(free[device]) >= needs[device]]
    if not enough:
        device = max(free, key=lambda d: len(free[d]) / needs[d], default="")
        return Choice(kept=tuple(free.get(device, ())))
    roomiest = max(_room(owned[device], needs[device]) for device in owned)
    suited = [d for d in enough if _room(owned[d], needs[d]) >= min(job.needs_gb(owned[d][0].kind), roomiest)]
    if not suited:
        return Choice()
    device = min(suited, key=lambda d: len(free[d]) - needs[d])
    return Choice(tuple(free[device][: needs[device]]))


def _several(count: int, usable: Sequence[Slot], there: Sequence[Slot]) -> Choice:
    """Choose `count` whole devices without other runs; GPUs if there are any, otherwise CPUs.

    If fewer devices exist, choose all of them.
    """
    kind = "cuda" if any(slot.kind == "cuda" for slot in there) else "cpu"
    owned, free = (by_device(slot for slot in some if slot.kind == kind) for some in (there, usable))
    whole = [shares for device, shares in free.items() if len(shares) == len(owned[device])]
    count = min(count, most_together(slot for shares in owned.values() for slot in shares))
    if len(whole) < count:
        return Choice(kept=tuple(slot for shares in whole for slot in shares))
    return Choice(tuple(slot for shares in whole[:count] for slot in shares))


def _fits(job: Waiting, slot: Slot) -> bool:
    return slot.room_gb is None or job.needs_gb(slot.kind) <= slot.room_gb


def _shares(job: Waiting, shares: Sequence[Slot]) -> int:
    """Return the number of a device's slots that a job needs. If even all slots are not enough, return their number."""
    room, needed = shares[0].room_gb, job.needs_gb(shares[0].kind)
    if job.alone:
        return len(shares)
    return 1 if room is None else min(len(shares), max(1, math.ceil(needed / room)))


def _room(shares: Sequence[Slot], count: int) -> float:
    return math.inf if shares[0].room_gb is None else shares[0].room_gb * count
