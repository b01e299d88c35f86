"""Measure a few steps of runs on a device, and predict from such measurements how long runs take.

`plan --measure` and `--max-hours` use this module. The measured runs are not stored.
"""

import contextlib
import os
import statistics
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from experiments.errors import UserError
from experiments.events.event_log import read_events
from experiments.jobs.devices.gpu_occupancy import GpuOccupancy
from experiments.jobs.devices.hardware import SMI_S
from experiments.jobs.devices.slots import Slot
from experiments.jobs.engines.engine import CHILD, Engine, Launch, child_environment
from experiments.jobs.engines.local import LocalEngine
from experiments.processes.process_identity import identify
from experiments.run_spec import RunSpec
from experiments.store.checksummed import read_json, write_json
from experiments.store.durable import folder_beside
from experiments.store.layout import Store
from experiments.store.results import RESULT_FILE, EvaluationResult, TrainingResult
from experiments.store.spec import AttemptSpec

PROBE_STEPS = 20  # the curve has points at steps 10 and 20; the first ten steps are warm-up
LONG_S = 120.0  # time limit in seconds; a slow row is measured on the steps that it has completed within this time


class Measured(NamedTuple):
    """The measured time of a training step, and the precision of the training."""

    seconds_per_step: float
    precision: str = ""


def probe(store: Store, specs: Iterable[RunSpec], slot: Slot) -> Generator[Measured, None, None]:
    """Train a few steps of each run, one run after the other, and yield the measurements.

    Raises UserError if the curve of a run has fewer than two points when its child ends or LONG_S have passed. If the
    child failed, the error contains the child's message. Also raises UserError if other programs use the GPU.
    """
    _refuse_others(slot)
    with contextlib.closing(LocalEngine()) as engine:
        for spec in specs:
            yield _measured(*_trained(store, spec, slot, engine))


def _refuse_others(slot: Slot) -> None:
    """Raise UserError if other programs use the GPU, because they would distort the measurement.

    A GPU that the user has named in --devices is measured in any case.
    """
    for name, why in GpuOccupancy().left_alone([slot], (), wait_s=SMI_S + 1).items():
        raise UserError(
            f"{name} is not measured, because others may use it ({why}). Wait for them, or name a free GPU, such as "
            "--devices cuda:1; a GPU that is named is measured in any case."
        )


def _trained(store: Store, spec: RunSpec, slot: Slot, engine: Engine) -> tuple[list[dict[str, Any]], TrainingResult]:
    """Train a run in a temporary folder, and return the events and the result of the child."""
    whole = AttemptSpec(
        spec=spec,
        store=str(store.root),
        attempt=1,
        device=slot.device_spec(slot.threads),
        coordinator=identify(os.getpid()),
    )
    with folder_beside(store.root, ".probe-") as folder:
        argv = [*CHILD, str(whole.write(folder))]
        handle = engine.start(Launch(argv, child_environment(slot, slot.threads), folder / "log.txt", slot))
        began = time.monotonic()
        try:
            while engine.poll(handle) is None and time.monotonic() - began < LONG_S:
                engine.wait(0.1)
        finally:
            engine.kill(handle)
            while engine.poll(handle) is None:
                engine.wait(0.05)
        return read_events(folder), TrainingResult.load(folder / RESULT_FILE) or TrainingResult()


def _measured(events: Sequence[Mapping[str, Any]], result: TrainingResult) -> Measured:
    curve = (event for event in events if event["kind"] == "metrics" and "loss" in event["metrics"])
    points = [(event["step"], event["t"]) for event in curve]
    if len(points) >= 2 and points[-1][0] > points[0][0]:
        steps = float(points[-1][0] - points[0][0])
        return Measured(float(points[-1][1] - points[0][1]) / steps, result.precision or "")
    failed = [event["message"] for event in events if event["kind"] == "failed"]
    why = failed[-1] if failed else "it reported fewer than two points of the training curve"
    raise UserError(f"A row could not be measured: {why}")


# Two numbers describe a device: the fixed time of a step, and the time of a floating-point operation. Both are fitted
# to measurements on the same kind of device, with the same number of threads and in the same precision. The precision
# matters, because a processor without bf16 instructions takes many times as long in bf16 as in fp32.


CALIBRATION_FILE = "measured.json"
SAME = 1e-3  # costs within this relative difference belong to the same model


@dataclass(frozen=True)
class ProbePoint:
    """A measurement of a training, or of one evaluation (counted as one step)."""

    kind: str
    threads: int
    cost: float  # predicted operations of a training step of the model
    seconds: float  # time of a training step, or of the evaluation
    precision: str = ""  # precision of the computation; "" for a task without a precision


def of_results(store: Store, cost_of: Mapping[str, float]) -> tuple[list[ProbePoint], list[ProbePoint]]:
    """Return the measurements in the results of runs, as (training steps, evaluations).

    cost_of: run_id → cost of a step.
    """
    steps, evaluations = [], []
    for run_id, cost in cost_of.items():
        result = store.result(run_id)
        if result is None or result.device_kind is None or result.threads is None or not cost:
            continue
        where = (result.device_kind, result.threads)
        trained = (result.step or 0) - (result.resumed_from or 0)
        if trained > 0 and result.seconds:
            steps.append(ProbePoint(*where, cost, result.seconds / trained, result.precision or ""))
        home = store.run_folder(run_id) / "evaluations"
        for path in home.glob(f"*/{RESULT_FILE}"):
            made = EvaluationResult.load(path)
            if made and made.wall_s:
                evaluations.append(ProbePoint(*where, cost, made.wall_s, made.precision or ""))
    return steps, evaluations


def kept(store: Store) -> list[ProbePoint]:
    """Return the measurements of probes that this store contains."""
    return [ProbePoint(**point) for point in (read_json(store.root / CALIBRATION_FILE) or {}).get("steps", [])]


def keep(store: Store, points: Iterable[ProbePoint]) -> None:
    """Add a probe's measurements to the store.

    The new measurements replace earlier ones with the same cost, kind of device, number of threads and precision.
    """
    new = {(p.kind, p.threads, p.precision, p.cost): p for p in [*kept(store), *points]}
    write_json(store.root / CALIBRATION_FILE, {"steps": [asdict(point) for point in new.values()]})


class Speed:
    """Seconds per step on one kind of device in one precision, as a function of the step's cost.

    An instance without measurements is false.

    precision: "auto" means bf16 if bf16 was measured, and otherwise fp32. Callers pass "auto" if they do not know
        whether the device supports bf16.
    """

    def __init__(self, points: Iterable[ProbePoint], kind: str, threads: int, precision: str = "") -> None:
        here = [p for p in points if (p.kind, p.threads) == (kind, threads)]
        if precision == "auto":
            precision = "bf16" if any(p.precision == "bf16" for p in here) else "fp32"
        self._points = [(p.cost, p.seconds) for p in here if p.precision == precision]
        self._fixed, self._per_operation = _fit(self._points) if self._points else (0.0, 0.0)

    def __bool__(self) -> bool:
        return bool(self._points)

    def seconds(self, cost: float) -> float:
        """Return the seconds of one step.

        Return the median of the measurements of models with this cost. If there are none, return the fitted value.
        """
        same = [seconds for known, seconds in self._points if abs(known - cost) <= SAME * cost]
        return statistics.median(same) if same else self._fixed + self._per_operation * cost


def _fit(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Return nonnegative a and b of seconds = a + b·cost, fitted by least squares of the relative errors."""
    costs, seconds = np.array(points).T
    u, v = 1 / seconds, costs / seconds  # a·u + b·v = 1
    (a, b), _, rank, _ = np.linalg.lstsq(np.stack([u, v / v.max()], axis=1), np.ones(len(u)))
    if rank == 2 and b < 0:
        return float(u.sum() / (u @ u)), 0.0
    return (float(a), float(b / v.max())) if rank == 2 and a >= 0 else (0.0, float(v.sum() / (v @ v)))
