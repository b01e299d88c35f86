"""Engines by name."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from experiments.jobs.engines.base import Engine

ENGINES = {
    "local": "experiments.jobs.engines.local:LocalEngine",
    "slurm": "experiments.jobs.engines.slurm:SlurmEngine",
    "ray": "experiments.jobs.engines.ray:RayEngine",
}


def engine_class(name: str) -> type[Engine]:
    """The class of an engine in ENGINES; its module is imported only now."""
    module, _, attribute = ENGINES[name].partition(":")
    return cast("type[Engine]", getattr(importlib.import_module(module), attribute))


def load_engine(name: str, settings: Mapping[str, str], folder: Path, at_once: int) -> Engine:
    """An engine of ENGINES, ready to start children. Raises UserError (see `Engine.configured`)."""
    return engine_class(name).configured(settings, folder, at_once)
