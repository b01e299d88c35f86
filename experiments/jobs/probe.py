"""A few steps of runs, measured on a device and thrown away: for `ablations plan --measure` and `--max-hours`."""

import contextlib
import json
import tempfile
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.errors import UserError
from experiments.events import read_events
from experiments.jobs.attempts import myself
from experiments.jobs.engines.base import CHILD, Engine, Launch, child_environment
from experiments.jobs.engines.local import LocalEngine
from experiments.jobs.slots import Slot
from experiments.store import Store

STEPS = 20  # the curve has points at 10 and at 20: the first ten warm the device up
LONG_S = 120.0  # a row whose steps are slow is measured from those that fit in


def seconds_per_step(
    store: Store,
    specs: Iterable[Mapping[str, Any]],
    slot: Slot,
    engine: Engine | None = None,
    child: Sequence[str] = CHILD,
    long_s: float = LONG_S,
) -> Generator[float, None, None]:
    """Train for a moment, one after the other. A spec names task, folder, config (with few steps), inputs.

    Raises UserError with what the child said if it fails, or if it shows no two points in `long_s`.
    """
    with contextlib.closing(engine or LocalEngine()) as engine:
        for spec in specs:
            with tempfile.TemporaryDirectory(prefix="probe-", dir=store.root) as name:
                yield _measure(store, spec, slot, engine, child, long_s, Path(name))


def _measure(
    store: Store,
    spec: Mapping[str, Any],
    slot: Slot,
    engine: Engine,
    child: Sequence[str],
    long_s: float,
    folder: Path,
) -> float:
    whole = {
        **spec,
        "store": str(store.root),
        "run_id": "0" * 16,
        "attempt": 1,
        "train": True,
        "evaluations": [],
        "device": {"kind": slot.kind, "threads": slot.threads, "memory_gb": slot.memory_gb},
        "coordinator": myself(),
    }
    (folder / "spec.json").write_text(json.dumps(whole), encoding="utf-8")
    argv = [*child, str(folder / "spec.json")]
    handle = engine.start(Launch(argv, child_environment(slot, slot.threads), folder / "log.txt", slot))
    began = time.monotonic()
    try:
        while engine.poll(handle) is None and time.monotonic() - began < long_s:
            engine.wait(0.1)
    finally:
        engine.kill(handle)
        while engine.poll(handle) is None:
            engine.wait(0.05)
    return _measured(read_events(folder))


def _measured(events: Sequence[Mapping[str, Any]]) -> float:
    points = [(event["step"], event["t"]) for event in events if event["kind"] == "metrics" and "loss" in event]
    if len(points) >= 2 and points[-1][0] > points[0][0]:
        steps = float(points[-1][0] - points[0][0])
        return float(points[-1][1] - points[0][1]) / steps
    failed = [event["message"] for event in events if event["kind"] == "failed"]
    why = failed[-1] if failed else "it showed fewer than two points of its curve"
    raise UserError(f"A row could not be measured: {why}")
