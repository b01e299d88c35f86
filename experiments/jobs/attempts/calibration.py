"""Predict the time of runs from results and short probes in this store.

Two numbers describe a device: the fixed time of a step, and the time of a floating-point operation. Both are fitted to
measurements on the same kind of device, with the same number of threads and in the same precision: without instructions
for bf16, a processor takes many times as long for it as for fp32.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from experiments.store.layout import Store
from experiments.store.results import FILE as RESULT
from experiments.store.results import EvaluationResult
from experiments.store.sealed import read_json, write_json

FILE = "measured.json"
SAME = 1e-3  # costs within this relative difference belong to the same model


@dataclass(frozen=True)
class Point:
    """A measurement: the steps of a training, or one evaluation (counted as one step)."""

    kind: str
    threads: int
    cost: float  # predicted operations of a training step of that model
    seconds: float  # of a step, or of the evaluation
    precision: str = ""  # as it was computed; "" of a task without, and of probes of older versions


def of_results(store: Store, cost_of: Mapping[str, float]) -> tuple[list[Point], list[Point]]:
    """(steps, evaluations) measured by the runs in `cost_of` (run_id → cost of a step)."""
    steps, evaluations = [], []
    for run_id, cost in cost_of.items():
        result = store.result(run_id)
        if result is None or result.device_kind is None or result.threads is None or not cost:
            continue
        where = (result.device_kind, result.threads)
        trained = (result.step or 0) - (result.resumed_from or 0)
        if trained > 0 and result.seconds:
            steps.append(Point(*where, cost, result.seconds / trained, result.precision or ""))
        home = store.run_folder(run_id) / "evaluations"
        for path in home.glob(f"*/{RESULT}"):
            made = EvaluationResult.load(path)
            if made and made.wall_s:
                evaluations.append(Point(*where, cost, made.wall_s, made.precision or ""))
    return steps, evaluations


def kept(store: Store) -> list[Point]:
    """Measurements of probes in this store."""
    return [Point(**point) for point in _kept(store).get("steps", [])]


def keep(store: Store, points: Iterable[Point]) -> None:
    """Add a probe's measurements, replacing those of the same model and device."""
    new = {(p.kind, p.threads, p.precision, p.cost): p for p in [*kept(store), *points]}
    write_json(store.root / FILE, {**_kept(store), "steps": [asdict(point) for point in new.values()]})


def kept_share(store: Store, key: str) -> int | None:
    """Best number of runs per device for `key`, as measured in this store; None if not measured."""
    count: int | None = _kept(store).get("shares", {}).get(key)
    return count


def keep_share(store: Store, key: str, count: int) -> None:
    """Record the best number of runs per device for `key`."""
    kept = _kept(store)
    write_json(store.root / FILE, {**kept, "shares": {**kept.get("shares", {}), key: count}})


def _kept(store: Store) -> dict[str, Any]:
    return read_json(store.root / FILE) or {}


class Speed:
    """Seconds per step on one kind of device in one precision, as a function of the step's cost. False: unknown.

    precision "auto", of a device that was not asked: bf16 if it was measured, else fp32.
    """

    def __init__(self, points: Iterable[Point], kind: str, threads: int, precision: str = "") -> None:
        here = [p for p in points if (p.kind, p.threads) == (kind, threads)]
        if precision == "auto":
            precision = "bf16" if any(p.precision == "bf16" for p in here) else "fp32"
        self._points = [(p.cost, p.seconds) for p in here if p.precision == precision]
        self._fixed, self._per_operation = _fit(self._points) if self._points else (0.0, 0.0)

    def __bool__(self) -> bool:
        return bool(self._points)

    def seconds(self, cost: float) -> float:
        """Seconds of one step: measured for a model of that cost, otherwise from the fit."""
        same = [seconds for known, seconds in self._points if abs(known - cost) <= SAME * cost]
        return statistics.median(same) if same else self._fixed + self._per_operation * cost


def _fit(points: list[tuple[float, float]]) -> tuple[float, float]:
    """(a, b) of seconds = a + b·cost, neither negative, by least squares of relative errors."""
    rows = [(1 / seconds, cost / seconds) for cost, seconds in points]  # a·u + b·v = 1
    uu, uv, vv, u, v = (sum(values) for values in zip(*_products(rows), strict=True))
    determinant = uu * vv - uv * uv
    if determinant > 1e-9 * uu * vv:
        a, b = (u * vv - v * uv) / determinant, (v * uu - u * uv) / determinant
        if a >= 0 and b >= 0:
            return a, b
        if b < 0:
            return u / uu, 0.0
    return 0.0, v / vv


def _products(rows: Iterable[tuple[float, float]]) -> Iterator[tuple[float, float, float, float, float]]:
    return ((u * u, u * v, v * v, u, v) for u, v in rows)
