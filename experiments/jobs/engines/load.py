"""Engines by name."""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from experiments.jobs.engines.base import Engine
from experiments.jobs.engines.cluster import ClusterEngine
from experiments.jobs.engines.crew import Crew
from experiments.jobs.engines.workers import NodeWorkers

ENGINES = {
    "local": "experiments.jobs.engines.local:LocalEngine",
    "slurm": "experiments.jobs.engines.slurm:SlurmEngine",
    "ray": "experiments.jobs.engines.ray:RayEngine",
}


def engine_class(name: str) -> type[Engine]:
    """The class of an engine in ENGINES; its module is imported only now."""
    module, _, attribute = ENGINES[name].partition(":")
    return cast("type[Engine]", getattr(importlib.import_module(module), attribute))


def load_engine(
    name: str,
    settings: Mapping[str, str],
    folder: Path,
    at_once: int,
    crew: Crew | None = None,
    setup: Sequence[str] = (),
) -> Engine:
    """An engine of ENGINES, ready to start children. Raises UserError (see `Engine.configured`).

    On a cluster, `crew` are node workers that take the runs; `setup`: shell lines before each run, without them.
    """
    engine = engine_class(name).configured(settings, folder, at_once)
    if not isinstance(engine, ClusterEngine):
        return engine
    engine.setup = setup
    return NodeWorkers(engine, folder, crew)
