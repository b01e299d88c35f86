"""A few steps of runs, measured on a device and thrown away: for `plan --measure`, `--max-hours` and `probe`."""

import contextlib
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from experiments.config import PROBE_ID
from experiments.errors import UserError
from experiments.events.event_log import read_events
from experiments.jobs.attempts.attempt import SPEC
from experiments.jobs.devices.slots import Slot
from experiments.jobs.engines.base import CHILD, Engine, Launch, child_environment
from experiments.jobs.engines.local import LocalEngine
from experiments.processes.identity import identify
from experiments.store.durable import folder_beside
from experiments.store.layout import Store
from experiments.store.sealed import read_json, seal

PROBING = (sys.executable, "-m", "experiments.child.probing")  # a child that measures its device too
STEPS = 20  # the curve has points at 10 and at 20: the first ten warm the device up
LONG_S = 120.0  # a row whose steps are slow is measured from those that fit in
TOGETHER_S = 10.0  # runs side by side train so long, as they begin some seconds apart


@dataclass(frozen=True)
class Measured:
    """What a few steps took. Rates are of real pieces, padding left out; None where the task does not tell."""

    seconds_per_step: float
    source_tokens_per_s: float | None = None
    target_tokens_per_s: float | None = None
    padding: float | None = None
    flops_per_token: float | None = None  # of a training step, per target piece (model/cost.py)
    matrix_flops: float | None = None  # per second, in a large matrix product of the same precision
    peak_memory_bytes: int | None = None
    precision: str = ""
    device: str = ""

    @property
    def mfu(self) -> float | None:
        """flops_per_token · target_tokens_per_s / matrix_flops: the share of what the device's products reach."""
        if not (self.flops_per_token and self.target_tokens_per_s and self.matrix_flops):
            return None
        return self.flops_per_token * self.target_tokens_per_s / self.matrix_flops


def probe(
    store: Store,
    specs: Iterable[Mapping[str, Any]],
    slot: Slot,
    engine: Engine | None = None,
    child: Sequence[str] = CHILD,
    long_s: float = LONG_S,
) -> Generator[Measured, None, None]:
    """Train for a moment, one after the other. A spec names task, folder, config (with few steps), inputs.

    Raises UserError with what the child said if it fails, or if it shows no two points in `long_s`.
    """
    with contextlib.closing(engine or LocalEngine()) as engine:
        for spec in specs:
            yield _measured(*_trained(store, spec, slot, engine, child, long_s))


def steps_together(seconds_per_step: float) -> int:
    """Steps for `probe_together` of a run whose steps take so long."""
    return max(2 * STEPS, math.ceil(TOGETHER_S / seconds_per_step))


def probe_together(
    store: Store, spec: Mapping[str, Any], slots: Sequence[Slot], child: Sequence[str] = CHILD
) -> list[Measured]:
    """The same run at the same time on each of several slots, measured while all of them train."""

    def one(slot: Slot) -> tuple[list[dict[str, Any]], Mapping[str, Any]]:
        with contextlib.closing(LocalEngine(fork=False)) as engine:
            return _trained(store, spec, slot, engine, child, LONG_S)

    with ThreadPoolExecutor(len(slots)) as pool:
        found = list(pool.map(one, slots))
    times = [[event["t"] for event in events if _is_point(event)] or [math.inf] for events, _ in found]
    begin, end = max(map(min, times)), min(map(max, times))
    return [
        _measured([event for event in events if begin <= event["t"] <= end or not _is_point(event)], result)
        for events, result in found
    ]


def _trained(
    store: Store, spec: Mapping[str, Any], slot: Slot, engine: Engine, child: Sequence[str], long_s: float
) -> tuple[list[dict[str, Any]], Mapping[str, Any]]:
    """A child's events and result; its folder is gone."""
    whole = {
        **spec,
        "store": str(store.root),
        "run_id": PROBE_ID,
        "attempt": 1,
        "train": True,
        "evaluations": [],
        "device": slot.device_spec(slot.threads),
        "coordinator": identify(os.getpid()),
    }
    with folder_beside(store.root, ".probe-") as folder:
        (folder / SPEC).write_text(json.dumps(seal(whole)), encoding="utf-8")
        argv = [*child, str(folder / SPEC)]
        handle = engine.start(Launch(argv, child_environment(slot, slot.threads), folder / "log.txt", slot))
        began = time.monotonic()
        try:
            while engine.poll(handle) is None and time.monotonic() - began < long_s:
                engine.wait(0.1)
        finally:
            engine.kill(handle)
            while engine.poll(handle) is None:
                engine.wait(0.05)
        return read_events(folder), read_json(folder / "result.json") or {}


def _measured(events: Sequence[Mapping[str, Any]], result: Mapping[str, Any]) -> Measured:
    points = [(event["step"], event["t"]) for event in events if _is_point(event)]
    if len(points) >= 2 and points[-1][0] > points[0][0]:
        steps = float(points[-1][0] - points[0][0])
        warm = [event["metrics"] for event in events if event["kind"] == "metrics" and event["step"] > points[0][0]]
        matrix = [event["matrix_flops"] for event in events if event["kind"] == "probed"]
        return Measured(
            float(points[-1][1] - points[0][1]) / steps,
            source_tokens_per_s=_mean(warm, "source_tokens_per_s"),
            target_tokens_per_s=_mean(warm, "target_tokens_per_s"),
            padding=_mean(warm, "padding"),
            flops_per_token=result.get("flops_per_token"),
            matrix_flops=matrix[0] if matrix else None,
            peak_memory_bytes=result.get("peak_memory_bytes"),
            precision=str(result.get("precision", "")),
            device=str(result.get("device", "")),
        )
    failed = [event["message"] for event in events if event["kind"] == "failed"]
    why = failed[-1] if failed else "it showed fewer than two points of its curve"
    raise UserError(f"A row could not be measured: {why}")


def _is_point(event: Mapping[str, Any]) -> bool:
    """Of the training curve."""
    return event["kind"] == "metrics" and "loss" in event["metrics"]


def _mean(metrics: Sequence[Mapping[str, float]], name: str) -> float | None:
    values = [one[name] for one in metrics if name in one]
    return statistics.fmean(values) if values else None
