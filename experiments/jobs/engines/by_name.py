"""Engines by name."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from experiments.errors import UserError
from experiments.jobs.engines.cluster import ClusterEngine
from experiments.jobs.engines.engine import Engine
from experiments.jobs.engines.workers import NodeWorkers, WorkerPool
from model.extensions import added, load

ENGINES = {
    "local": "experiments.jobs.engines.local:LocalEngine",
    "slurm": "experiments.jobs.engines.slurm:SlurmEngine",
}


def engines() -> dict[str, str]:
    """Name → module:CLASS of the core's engines, then of those that extras and installed packages add."""
    return {**ENGINES, **{name: place for name, place in added("engines").items() if name not in ENGINES}}


def engine_class(name: str) -> type[Engine]:
    """The class of an engine; its module is imported only now. Raises UserError for an unknown name."""
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
    """An engine by name, ready to start children. Raises UserError (see `Engine.configured`).

    On a cluster, `pool` are node workers that take the runs; `setup`: shell lines before each run.
    """
    engine = engine_class(name).configured(settings, folder, at_once)
    if not isinstance(engine, ClusterEngine):
        return engine
    engine.setup = setup
    return NodeWorkers(engine, folder, pool)
