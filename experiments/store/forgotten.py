"""Runs that are put aside: moved to STORE/forgotten, where nothing reads them, and from where they can come back."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from experiments.errors import UserError
from experiments.store.durable import fsync_folder
from experiments.store.layout import Store
from experiments.store.sealed import read_json, write_json

FOLDER = "forgotten"
FILE = "forgotten.json"  # in the run's folder
VERSION = 1


def folder_of(store: Store, run_id: str) -> Path:
    """Where a forgotten run lies. Raises ValueError for text that is no identity."""
    return store.root / FOLDER / store.run_folder(run_id).name


def forgotten(store: Store) -> dict[str, list[list[str]]]:
    """run_id → the tables that it belonged to (see AttemptSpec.members), of all runs that are put aside.

    Also of those that a killed command has moved back without completing it.
    """
    found: dict[str, list[list[str]]] = {}
    for file in sorted(path for home in (store.runs, store.root / FOLDER) for path in home.glob(f"*/{FILE}")):
        try:
            record: dict[str, Any] = read_json(file) or {}
        except UserError:
            record = {}
        found[file.parent.name] = [list(map(str, member)) for member in record.get("members", ())]
    return found


def put_aside(store: Store, run_id: str, members: Iterable[Iterable[str]]) -> None:
    """Move a run's folder away, in one step. The caller holds the store's coordinator lock."""
    source, target = store.run_folder(run_id), folder_of(store, run_id)
    if not source.is_dir():
        return
    when = time.strftime("%Y-%m-%d %H:%M:%S")
    write_json(source / FILE, {"version": VERSION, "when": when, "members": [list(member) for member in members]})
    target.parent.mkdir(exist_ok=True)
    number = 0
    while target.exists():  # put aside before, and trained again since
        number += 1
        target = target.with_name(f"{run_id}.{number}")
    source.rename(target)
    _settle(source, target)


def bring_back(store: Store, name: str) -> bool:
    """Move a run back; false if a run of its name was begun since, which stays. The caller holds the lock.

    The run is remembered as forgotten until `was_brought_back`.
    """
    source, target = store.root / FOLDER / name, _back(store, name)
    if not source.exists():
        return (target / FILE).exists()
    if target.exists():
        return False
    source.rename(target)
    _settle(source, target)
    return True


def was_brought_back(store: Store, name: str) -> None:
    """Note that nothing is left to be done for a run that was moved back."""
    (_back(store, name) / FILE).unlink(missing_ok=True)


def _back(store: Store, name: str) -> Path:
    return store.run_folder(name.partition(".")[0])


def _settle(source: Path, target: Path) -> None:
    fsync_folder(source.parent)
    fsync_folder(target.parent)
