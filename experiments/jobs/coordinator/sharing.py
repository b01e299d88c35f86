"""Decide how many runs share a GPU of `--devices auto`, from predictions and from measured throughput.

The functions are pure. A small run whose memory is known may share a GPU. Any other run gets a GPU for itself.

 - Memory: a run reserves its predicted memory times TOLERANCE, plus CONTEXT_GB for the CUDA context of its process. The
   sum of the reservations on a GPU is at most `Slot.free_gb`, 90 % of its memory. The rest is for other programs.
 - Load: the predicted operations of a training step, divided by FULL_STEP times the GB of the GPU's memory. A run with
   a load above LARGE gets the GPU for itself.
 - Start: at first, 4, 2 or 1 runs may share the GPU. The program takes the largest of these numbers whose product with
   the largest load of the runs is at most LARGE. If the load of a run is unknown, the number is 1.
 - Growth: once the throughput of this number of runs is measured (throughput.py), twice as many may run. The number
   doubles again as long as each doubling raises the throughput at least by the factor GAIN. If a doubling does not, the
   number before the doubling becomes final. The program does not stop any runs to reach the final number.
"""

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from experiments.jobs.devices.slots import HOST_GB, TOLERANCE, Slot
from experiments.jobs.queue.job import Waiting
from experiments.records import CONTEXT_GB

# Floating-point operations per GB (1e9 bytes) of GPU memory. A run whose training step has this many operations fills
# the GPU. nvidia-smi does not report the speed of a GPU, so the program estimates it from the memory. This also works
# for a MIG slice, which has a share of the GPU's memory and speed. An H100 with 85.5 GB is full at 8.6e12 operations.
# They take 22 ms at half the measured speed of its bf16 matrix products (784e12 operations/s).
FULL_STEP = 1e11
LARGE = 0.5  # two runs of this load fill the GPU
FIRST = (4, 2, 1)  # possible numbers of simultaneous runs before the throughput is measured
GAIN = 1.1  # a doubling of the number of runs must raise the throughput at least by this factor
SHARERS = 8  # a run that shares a GPU gets the GPU's CPU threads divided by this number


def operations(cost: float, steps: int | None) -> float:
    """Return the predicted floating-point operations of a training step; 0 if unknown.

    cost: operations of all steps.
    """
    return cost / steps if steps else 0.0


def load(ops: float, slot: Slot) -> float:
    """Return the share of a GPU that a run fills. The result may exceed 1. If `ops` is unknown (0), the result is 0.

    ops: operations of a training step.
    """
    return ops / (FULL_STEP * ((slot.room_gb or 0.0) + CONTEXT_GB))


def reserved_gb(job: Waiting) -> float:
    """Return the GB of GPU memory that a run reserves if it shares a GPU."""
    return job.gpu_memory_gb * TOLERANCE + CONTEXT_GB


def why_alone(job: Waiting, slot: Slot) -> str:
    """Return the reason why a run may not share a GPU of `--devices auto`; "" if it may."""
    if slot.free_gb is None and slot.room_gb is None:
        return "nvidia-smi does not report the memory of the GPU"
    if slot.memory_gb is not None:
        return "--devices limits the memory of a run"
    if slot.free_gb is None:
        return "the GPU lets one process compute at a time (compute mode Exclusive_Process), and no MPS daemon runs"
    if slot.most < 2:
        return enough_for(1)
    if job.devices > 1:
        return f"{job.devices} devices train the run"
    if job.alone:
        return "the run ran out of memory beside other runs"
    if not job.gpu_memory_gb:
        return "the memory of the run is unknown"
    if reserved_gb(job) > slot.free_gb:
        return f"the run may need {reserved_gb(job):.1f} GB, more than the {slot.free_gb:.1f} GB for shared runs"
    ops = operations(job.cost, job.steps)
    if load(ops, slot) > LARGE:
        return f"a step of the run has {ops:.1e} operations, which {_fill(load(ops, slot))}"
    return ""


def enough_for(most: int) -> str:
    """Return the message that the processor cores and the main memory limit each GPU to `most` runs."""
    runs = f"{most} runs" if most > 1 else "one run"
    return f"the processor cores and the main memory ({HOST_GB:g} GB for each run) are enough for {runs} on each GPU"


def _fill(of_gpu: float) -> str:
    return "fill the GPU" if of_gpu >= 1 else f"fill {of_gpu:.0%} of the GPU"


@dataclass(frozen=True)
class Share:
    """The share of a GPU that one run has.

    place: number of the share on its GPU, from 0.
    ops: operations of one training step of the run; 0 if unknown.
    """

    place: int
    reserved_gb: float
    ops: float


class Window(NamedTuple):
    """The throughput of a GPU in one time window.

    at_once: number of runs on the GPU.
    rates: run_id of each run that trains → its rate.
    in_tokens: whether all rates are in target tokens/s. If not, some are in steps/s, and the rates cannot be added.
    """

    at_once: int
    rates: Mapping[str, float]
    in_tokens: bool = False


@dataclass(frozen=True)
class Level:
    """The number of runs that may share a GPU according to measurements.

    limit: largest number of simultaneous runs.
    before: the window with which later windows are compared.
    settled: whether the limit is final.
    why: reason for the limit, for messages.
    """

    limit: int
    before: Window
    settled: bool = False
    why: str = ""


@dataclass(frozen=True)
class Card:
    """A GPU of `--devices auto` that is empty or shared by runs."""

    slot: Slot
    shares: tuple[Share, ...] = ()
    level: Level | None = None

    def limit(self, job: Waiting | None = None) -> int:
        """Return the number of runs that may share the GPU now, including `job`."""
        if self.level is not None:
            return self.level.limit
        ops = [share.ops for share in self.shares] + ([operations(job.cost, job.steps)] if job else [])
        return first_limit(ops, self.slot)

    @property
    def left_gb(self) -> float:
        """GB of memory that no run has reserved."""
        return (self.slot.free_gb or 0.0) - sum(share.reserved_gb for share in self.shares)

    def refuses(self, job: Waiting) -> str:
        """Return why a run cannot share the GPU now: "limit", "memory" or the text of `why_alone`; "" if it can."""
        if why := why_alone(job, self.slot):
            return why
        if len(self.shares) >= self.limit(job):
            return "limit"
        if reserved_gb(job) > self.left_gb:
            return "memory"
        return ""

    def with_run(self, job: Waiting) -> tuple["Card", Slot]:
        """Return the GPU with one more run, and the run's slot.

        The slot's `memory_gb` limits torch to the memory that the run has reserved.
        """
        taken = {share.place for share in self.shares}
        place = next(number for number in range(len(taken) + 1) if number not in taken)
        share = Share(place, reserved_gb(job), operations(job.cost, job.steps))
        gb = round(share.reserved_gb - CONTEXT_GB, 2)
        slot = replace(
            self.slot,
            name=f"{self.slot.name}/{place}",
            threads=max(1, self.slot.threads // SHARERS),
            memory_gb=max(0.01, gb),
            room_gb=max(0.01, gb),
            share=1 / max(2, self.limit(job)),
        )
        return replace(self, shares=(*self.shares, share)), slot


def first_limit(ops: Iterable[float], slot: Slot) -> int:
    """Return the number of runs that may share a GPU before its throughput is measured.

    ops: operations of each run's step.
    """
    ops = list(ops)
    if not ops or not all(ops):
        return 1
    largest = max(load(each, slot) for each in ops)
    return min(slot.most, next((count for count in FIRST if count * largest <= LARGE), 1))


def growth(before: Window, after: Window) -> float | None:
    """Return the throughput of `after` divided by that of `before`; None if they cannot be compared.

    If some runs trained in both windows, the result is the product of two ratios: the ratio of the numbers of runs, and
    the mean ratio of the rates of these runs. So windows can be compared even if the runs differ in size or the rates
    are in steps/s. If no run trained in both windows, the result is the ratio of the sums of the rates. In this case it
    is None unless all rates are in tokens/s.
    """
    common = [after.rates[run] / rate for run, rate in before.rates.items() if run in after.rates and rate > 0]
    if common:
        return after.at_once / before.at_once * statistics.fmean(common)
    if before.in_tokens and after.in_tokens and (total := sum(before.rates.values())):
        return sum(after.rates.values()) / total
    return None


def grow(level: Level | None, window: Window, limit: int, most: int) -> Level:
    """Return the new level after a measured window.

    limit: number of runs that were allowed to share the GPU in the window.
    """
    count = window.at_once
    if level is not None and (level.settled or count < level.before.at_once):
        return level
    if level is None or count == level.before.at_once:
        if level is not None:
            return replace(level, before=window)
        return _raised(window, limit, most, f"the throughput of {count} at once is measured")
    gain = growth(level.before, window)
    if gain is None:
        return Level(limit, window, why=f"{count} at once cannot be compared with {level.before.at_once}")
    measured = f"{count} at once gave {gain:.2f} × the throughput of {level.before.at_once}"
    if gain >= GAIN ** math.log2(count / level.before.at_once):
        return _raised(window, limit, most, measured)
    return Level(level.before.at_once, level.before, settled=True, why=measured)


def _raised(window: Window, limit: int, most: int, why: str) -> Level:
    """Return a level that allows twice as many runs as were measured, but at most `most`.

    If fewer runs were measured than the limit allows (because memory or waiting runs were lacking), the limit stays.
    """
    if window.at_once < limit:
        return Level(limit, window, why=why)
    raised = min(most, 2 * window.at_once)
    return Level(raised, window, settled=raised <= window.at_once, why=why)
