"""The records of a table for programs (CSV, JSON): whole, unless columns are chosen for that format."""

from collections.abc import Mapping
from typing import Any

from reports.render.columns import chosen
from reports.render.grid import layout_of
from reports.render.made_by import BUNDLE_FIELD, COMMAND, FIELD
from reports.render.printed import choices_for
from reports.results.table import Row, Table
from reports.table.cost import COSTS
from reports.table.row_records import record
from reports.table.settings import at


def records(table: Table, format_: str) -> tuple[list[dict[str, Any]], list[str]]:
    """One per row, and the settings that are columns. Raises UserError for a column that the table does not have.

    Names and states of rows and their runs always stay, so that a number leads back to these.
    """
    made = {FIELD: f"{COMMAND}{table.asked}"} if table.asked else {}
    first = {BUNDLE_FIELD: table.bundle} if table.bundle else {}
    found = [first | record(row, table) | made for row in table.rows]
    choices = choices_for(table, format_)
    if not (choices.columns or choices.hide or choices.plain or choices.paper is not None):
        return found, list(table.settings)
    shown, _ = chosen(layout_of(table), table, choices, compact=False)
    settings = [head.key for head, _ in shown if head.kind == "setting"]
    keys = {head.key for head, _ in shown}
    return [_only(keys, settings, *pair, table) for pair in zip(found, table.rows, strict=True)], settings


def _only(keys: set[str], settings: list[str], values: Mapping[str, Any], row: Row, table: Table) -> dict[str, Any]:
    """A record with what stands in these columns."""
    place = {"n": "n", "seeds": "n"}  # name in the record → the column that prints it
    for key in (column.key for column in table.columns):
        place |= {key: f"{key}.ours", f"{key}_sd": f"{key}.ours", f"{key}_paper_change": f"{key}.paper_change"}
        place |= {f"{key}_{end}": f"{key}.change" for end in ("change", "p", "marked", "low", "high")}
    place |= {c.name: f"{c.key}.{c.sub.replace(' ', '_') if c.sub == 'by time' else 'ours'}" for c in COSTS}
    papers = {column.paper for column in table.columns if f"{column.key}.paper" in keys}
    papers |= {key.removesuffix(".paper") for key in keys}
    kept = {name: value for name, value in values.items() if place.get(name, name) in keys or name not in place}
    kept["settings"] = {}
    kept["paper"] = {name: value for name, value in values["paper"].items() if name in papers}
    for name in settings:
        if name in table.settings:
            kept["settings"] |= {name: row.settings[name]} if name in row.settings else {}
        else:
            kept["settings"] |= at(row, [name])
    return kept
