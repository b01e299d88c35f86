"""A run's config.json: its settings and the digests of its inputs, written when it was first queued or imported."""

from collections.abc import Mapping
from typing import Any

from experiments.errors import UserError
from experiments.store.layout import Store
from experiments.store.sealed import read_json

CONFIG = "config.json"


def description_of(store: Store, run_id: str, *, forgiving: bool = False) -> dict[str, Any]:
    """The record; {} if there is none. Raises UserError for a damaged one; forgiving: {} for that too."""
    try:
        return read_json(store.run_folder(run_id) / CONFIG) or {}
    except UserError:
        if not forgiving:
            raise
        return {}


def config_of(store: Store, run_id: str, *, forgiving: bool = False) -> Mapping[str, Any]:
    """The settings in the record, nested; {} if there are none. See `description_of`."""
    found = description_of(store, run_id, forgiving=forgiving).get("config")
    return found if isinstance(found, dict) else {}
