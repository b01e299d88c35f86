"""What a crate has beside a bundle's files: the printed table, the statement, the corpora, and its description.

All of it is made from the bundle's files as its reader sees them, after what was left out.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ablations.plan.plan_file import plan_from_json
from ablations.plan.planned import Plan
from experiments.errors import UserError
from experiments.store.layout import Store
from experiments.store.sealed import read_json, write_json
from reports.render.formats import render
from reports.results.table import Table
from reports.table.build import build_table
from reports.trust.bundles.agreement import check
from reports.trust.bundles.archive import HEAD, STATEMENT, TABLES
from reports.trust.bundles.datasets import datasets
from reports.trust.bundles.described import as_text, describe
from reports.trust.bundles.graph import Times
from reports.trust.bundles.head import VERSION, columns_of, keep_spent
from reports.trust.stated import sentences
from reports.trust.statement import read_statement


def crate_files(
    head: Mapping[str, Any], files: Mapping[str, Path], statement: Mapping[str, Any], folder: Path
) -> dict[str, Path]:
    """Write the files that a crate adds into `folder`, beside links to the bundle's; returns those by name."""
    for name, path in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(path.resolve())
    keep_spent(head, folder)
    plan, store = plan_from_json(json.loads(json.dumps(head["plan"]))), Store.open(folder, create=False)
    columns = columns_of(head["columns"], plan.study, VERSION)
    made: dict[str, Path] = {}
    word = check(plan, columns, store, bool(head["names_can_be_checked"])).word
    for name, text in printed(replace(build_table(plan, store, columns), bundle=word)).items():
        made[name] = folder / name
        made[name].write_text(text, encoding="utf-8")
    made[STATEMENT] = folder / STATEMENT
    write_json(made[STATEMENT], statement, sealed=False)
    (folder / "datasets").mkdir()
    for dataset in datasets(plan, store).values():
        made[dataset.path] = folder / dataset.path
        write_json(made[dataset.path], dataset.croissant(Times(plan, store).last), sealed=False)
    return made


def printed(table: Table) -> dict[str, str]:
    """The table in the formats that a crate has it in, by file."""
    return {name: render(table, format_) for name, format_ in TABLES.items()}


def metadata_of(head: Mapping[str, Any], text: bytes, folder: Path) -> bytes:
    """The text of ro-crate-metadata.json. `text`: of bundle.json; `folder`: the crate's other files."""
    plan, store = plan_from_json(json.loads(json.dumps(head["plan"]))), Store.open(folder, create=False)
    return as_text(description(plan, store, {HEAD: facts_of(text), **head["files"]}))


def facts_of(text: bytes) -> dict[str, Any]:
    """Size and SHA-256, as a manifest lists them."""
    return {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}


def description(plan: Plan, store: Store, files: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What a crate says of itself, from its own files, which lie in `store`; `files`: size and SHA-256 of each."""
    statement = read_statement(read_json(store.root / STATEMENT) or {}, plan)
    return describe(plan, store, files, datasets(plan, store), sentences(statement))


def check_described(metadata: Mapping[str, Any], files: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises UserError if a description gives another checksum than the manifest, ValueError for no description."""
    graph = metadata.get("@graph")
    if not isinstance(graph, list) or not all(isinstance(entity, dict) for entity in graph):
        raise ValueError("its ro-crate-metadata.json has no @graph of entities")
    for entity in graph:
        name = entity.get("@id")
        listed = files.get(name) if isinstance(name, str) else None
        if listed is not None and entity.get("sha256", listed["sha256"]) != listed["sha256"]:
            raise UserError(f"ro-crate-metadata.json and bundle.json give different checksums of {name}.")
