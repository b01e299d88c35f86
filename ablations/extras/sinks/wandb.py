"""Write runs as files of Weights & Biases: STORE/sinks/wandb/wandb/offline-run-…, which `wandb sync` uploads.

Runs are offline unless WANDB_MODE is set. A run is written when it has ended. Its W&B project is the study, its group
is the row, and its id is the run_id. Writing a run again replaces its files.
"""

import math
import os
import shutil
from pathlib import Path
from typing import Any

from experiments.dotted import flatten
from experiments.events.history import History
from experiments.records import RUNNING
from experiments.store.layout import Store
from experiments.store.tracked_run import TrackedRun
from experiments.tracking.record import config, curve_name, final_points, members

STEP = "step"


class Wandb:
    """The sink `wandb` (experiments/tracking/sinks/serve.py)."""

    package = "wandb"

    def __init__(self, store: Store, folder: Path) -> None:
        self._store, self._folder = store, folder

    def sync(self, run: TrackedRun) -> None:
        """Write a run if it has ended."""
        if run.status == RUNNING:
            return
        os.environ.setdefault("WANDB_MODE", "offline")
        import wandb

        history = History(self._store, run.run_id)
        points = list(history.read())
        study, profile, corpus, row, group = next(
            iter(members(self._store, run, history)), ("ablations", "", "", run.run_id, "")
        )
        for old in self._folder.glob(f"wandb/*-run-*-{run.run_id}"):
            shutil.rmtree(old)
        quiet = wandb.Settings(silent=True, console="off", disable_git=True, save_code=False, x_disable_stats=True)
        one = wandb.init(
            project=study,
            id=run.run_id,
            name=f"{row}-seed{run.spec.seed}",
            group=row,
            tags=[tag for tag in (profile, corpus, group) if tag],
            config=dict(flatten(config(self._store, run))) | {"seed": run.spec.seed, "row": row, "status": run.status},
            dir=str(self._folder),
            resume="allow",
            reinit="create_new",
            settings=quiet,
        )
        try:
            one.define_metric("*", step_metric=STEP)
            for step, values in _by_step((p.step, curve_name(p.name), p.value) for p in points).items():
                one.log({STEP: step, **values})
            one.summary.update({p.name: p.value for p in final_points(self._store, run, history)})
        finally:
            one.finish(exit_code=0 if run.status == "FINISHED" else 1)

    def close(self) -> None:
        pass


def _by_step(points: Any) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for step, name, value in points:
        if math.isfinite(value):
            found.setdefault(step, {})[name] = value
    return dict(sorted(found.items()))
