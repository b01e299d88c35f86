"""Find engines by name."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from experiments.errors import UserError
from experiments.jobs.engines.cluster import ClusterEngine
from experiments.jobs.engines.engine import Engine
from experiments.jobs.engines.worker_pool import WorkerPool
from experiments.jobs.engines.workers import NodeWorkers
from model.extensions import added, load

ENGINES = {
    "local": "experiments.jobs.engines.local:LocalEngine",
    "slurm": "experiments.jobs.engines.slurm:SlurmEngine",
}


def engines() -> dict[str, str]:
    """Return a dict from engine names to "module:CLASS". Built-in engines come before those of extras and packages."""
    return {**ENGINES, **{name: place for name, place in added("engines").items() if name not in ENGINES}}


def engine_class(name: str) -> type[Engine]:
    """Import the module of an engine and return the engine's class. Raise UserError for an unknown name."""
    if name not in engines():
        raise UserError(f"There is no engine {name!r}. The engines are: {', '.join(engines())}.")
    return cast("type[Engine]", load(engines()[name]))


def load_engine(
    name: str,
    settings: Mapping[str, str],
    folder: Path,
    at_once: int,
    pool: WorkerPool | None = None,
    setup: Sequence[str] = (),
) -> Engine:
    """Return an engine by name, ready to start children.

    Raises UserError if the engine cannot be used (see `Engine.configured`).

    pool: the node workers of a cluster that run the attempts. If it is None, each attempt is one job of the cluster.
    setup: shell lines that run on a cluster's node before each run.
    """
    engine = engine_class(name).configured(settings, folder, at_once)
    if not isinstance(engine, ClusterEngine):
        return engine
    engine.setup = setup
    return NodeWorkers(engine, folder, pool)
