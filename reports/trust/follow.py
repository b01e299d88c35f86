"""Which cells of a bundle's table follow from its files, and which are as their author recorded them."""

from collections.abc import Iterator, Mapping
from typing import Any

from ablations.study.messages import number
from experiments.tasks.columns import Column
from reports.results.recomputed import recomputed
from reports.results.table import Row, Table
from reports.trust import verify as verifying
from reports.trust.bundles.archive import TABLES
from reports.trust.bundles.in_crate import description
from reports.trust.bundles.read import Bundle
from reports.trust.bundles.zipped import METADATA
from reports.trust.stated import sentences

FOLLOWS = "follow from the files: computed again from what is kept of each sentence"
RECORDED = "as the author recorded them for each run: only means, changes and tests are computed again"
LACKING = "have no value"
_EDITED = ("./", METADATA)  # entities to which anyone may add authors, a licence, a publisher


def lines(bundle: Bundle, table: Table) -> Iterator[str]:
    """What to tell the reader of a bundle that was read and checked."""
    found = follow(bundle, table)
    yield bundle.checked.word
    yield f"{number(len(found), 'cell')} of metrics:"
    for how in (FOLLOWS, RECORDED, LACKING):
        cells = {cell: by for cell, by in found.items() if by == how}
        if cells:
            yield f"- {len(cells)} {how}: {_by_column(cells, found, table)}"
    for name, format_ in TABLES.items() if bundle.metadata is not None else ():
        cells_of = verifying.verify(_printed(bundle, name), table, format_).cells
        yield f"- {name}: {number(cells_of, 'cell')} compared with what the files give"
    if bundle.statement is not None:
        yield "Its author's store, as stated:"
        yield from (f"- {sentence}" for sentence in sentences(bundle.statement))


def follow(bundle: Bundle, table: Table) -> dict[tuple[str, str], str]:
    """(row, column) → FOLLOWS, RECORDED or LACKING, for each cell that the plan asks for."""
    return {
        (row.key, column.key): _of_cell(bundle, row, column)
        for row in table.rows
        for column in table.columns
        if row.measures[column.key].requested
    }


def _of_cell(bundle: Bundle, row: Row, column: Column) -> str:
    if row.measures[column.key].mean is None:
        return LACKING
    for outcome in row.outcomes:
        scored = outcome.scored.get(column.set)
        if scored is None or scored.record is None:
            return RECORDED
        folder = bundle.store.evaluation_folder(outcome.run.run_id, scored.eval_id)
        if recomputed(column, folder, scored.record) is None:
            return RECORDED
    return FOLLOWS


def _by_column(cells: Mapping[tuple[str, str], str], every: Mapping[tuple[str, str], str], table: Table) -> str:
    """ "BLEU (dev): all rows; BLEU (test): base, big"."""
    parts = []
    for column in table.columns:
        rows = [row for row, key in cells if key == column.key]
        asked = sum(key == column.key for _, key in every)
        if rows:
            parts.append(f"{column.header}: {'all rows' if len(rows) == asked else ', '.join(rows)}")
    return "; ".join(parts)


def differences(bundle: Bundle, table: Table) -> Iterator[str]:
    """What a crate prints or says of itself, and its files do not give; none for a bundle that is no crate."""
    if bundle.metadata is None:
        return
    for name, format_ in TABLES.items():
        for line in verifying.verify(_printed(bundle, name), table, format_).changed:
            yield f"{name}: {line}"
    yield from _described_otherwise(bundle)


def _described_otherwise(bundle: Bundle) -> Iterator[str]:
    """Entities of the description that the files do not give, if this version of the program made it."""
    theirs, ours = _entities(bundle.metadata or {}), _entities(description(bundle.plan, bundle.store, bundle.files))
    if theirs.get("#engine") != ours["#engine"]:  # another version describes otherwise
        return
    for id_, entity in ours.items():
        if id_ not in _EDITED and theirs.get(id_) != entity:
            yield f"{METADATA}: {id_} is not what the files give"


def _entities(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {entity["@id"]: entity for entity in metadata["@graph"] if isinstance(entity.get("@id"), str)}


def _printed(bundle: Bundle, name: str) -> str:
    return (bundle.store.root / name).read_text(encoding="utf-8", errors="replace")
