"""Write event files of TensorBoard: STORE/sinks/tensorboard/STUDY/ROW/seed-N-RUN. Needs tensorboard, but not torch.

A sink process that begins to follow a run removes the event files of the run and writes them again from the first
event, so that the files never contain a point twice. After this, the process appends new points.
"""

import math
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.events.history import History, Point
from experiments.records import RUNNING
from experiments.store.layout import Store
from experiments.store.tracked_run import TrackedRun
from experiments.tracking.record import curve_name, final_points, members


@dataclass
class _Open:
    history: History
    begin: int
    writer: Any
    folder: Path
    written: set[tuple[str, int]] = field(default_factory=set)  # (name, step) of final points


class TensorBoard:
    """The sink `tensorboard` (experiments/tracking/sinks/serve.py)."""

    package = "tensorboard"

    def __init__(self, store: Store, folder: Path) -> None:
        self._store, self._folder = store, folder
        self._open: dict[str, _Open] = {}

    def sync(self, run: TrackedRun) -> None:
        """Append the new points of a run. If the run has ended, also write scores, times and costs."""
        one = self._open.get(run.run_id)
        if one is None or one.history.look() != one.begin:  # the history was restarted by another training
            one = self._open[run.run_id] = self._begin(run)
        self._write(one, ((curve_name(p.name), p) for p in one.history.read()))
        if run.status != RUNNING:
            found = final_points(self._store, run, one.history)
            fresh = [p for p in found if (p.name, p.step) not in one.written]
            one.written |= {(p.name, p.step) for p in fresh}
            self._write(one, ((f"final/{p.name}", p) for p in fresh))
            one.writer.close()
            del self._open[run.run_id]
        else:
            one.writer.flush()

    def close(self) -> None:
        for one in self._open.values():
            one.writer.close()

    def _begin(self, run: TrackedRun) -> _Open:
        from tensorboard.summary import Writer

        history = History(self._store, run.run_id)
        begin = history.look()
        study, _, _, row, _ = next(iter(members(self._store, run, history)), ("", "", "", run.run_id, ""))
        folder = self._folder / _name(study) / _name(row) / f"seed-{run.spec.seed}-{run.run_id[:8]}"
        shutil.rmtree(folder, ignore_errors=True)
        return _Open(history, begin, Writer(str(folder)), folder)

    def _write(self, one: _Open, points: Iterable[tuple[str, Point]]) -> None:
        for name, point in points:
            if math.isfinite(point.value):
                one.writer.add_scalar(name, point.value, point.step, wall_time=point.t)


def _name(text: str) -> str:
    """Return a safe name of a folder. Names are keys (experiments/labels.py), but a damaged store may have any text."""
    return re.sub(r"[^\w.-]", "_", text).lstrip(".") or "_"
