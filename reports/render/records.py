"""The records of a table for programs, as CSV and as JSON: whole, whatever columns are chosen."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from reports.render.cells import layout_of, plain
from reports.render.printed import BUNDLE_FIELD, COMMAND, FIELD, NOTES_FIELD, chosen
from reports.results.table import Table
from reports.table.build import SPENT, record
from reports.table.cost import shown


def records(table: Table) -> list[dict[str, Any]]:
    """One per row. A cost that no table prints by itself is there if the command's columns name it.

    Raises UserError for a name that no column has.
    """
    costs = shown(table, table.chosen.columns)
    chosen(layout_of(table, costs), table, table.chosen, compact=False)
    made = {FIELD: f"{COMMAND}{table.asked}"} if table.asked else {}
    first = {BUNDLE_FIELD: table.bundle} if table.bundle else {}
    return [first | record(row, table, costs) | made for row in table.rows]


# --- CSV for spreadsheets and programs: one line per row, numbers in full, no text that would run as a formula


# Also the full-width forms, which some spreadsheets read as their ASCII counterparts.
_FORMULA = tuple("=+-@＝＋－＠")


def render_csv(table: Table) -> str:
    """The records of reports/table/build.py, one line each, under one line of names."""
    lines = [dict(_flat(values, table.settings)) for values in records(table)]
    names = list(dict.fromkeys(name for line in lines for name in line))
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([text(name) for name in names])
    writer.writerows([cell(line.get(name)) for name in names] for line in lines)
    return stream.getvalue()


def text(value: object) -> str:
    """One line of text; a leading apostrophe keeps spreadsheets from running it (CSV injection)."""
    clean = plain(value)
    return f"'{clean}" if clean.startswith(_FORMULA) else clean


def _flat(values: Mapping[str, Any], settings: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """The record's nested parts as columns of their own; settings only as in the table: blank where as in base."""
    for name, value in values.items():
        if name == SPENT:
            continue
        if name == "paper":
            yield from ((f"paper_{key}", number) for key, number in value.items())
        elif name == "settings":
            yield from ((key, value[key]) for key in settings if key in value)
        else:
            yield name, value


def cell(value: Any) -> str:
    """A value as text: numbers in full, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return text(" ".join(map(str, value)))
    return text(value)


# --- JSON: a list with one object per row (see reports/table/build.py)


def render_json(table: Table) -> str:
    """Numbers in full; a cell without a number is null. Readable UTF-8, a lone surrogate as its JSON escape.

    The first object has the table's notes and warnings, each with its kind.
    """
    first, *others = records(table)
    notes = [("warning", text) for text in table.warnings] + [(note.kind, note.text) for note in table.footnotes]
    found = [first | {NOTES_FIELD: [{"kind": kind, "text": text} for kind, text in notes]}, *others]
    text = json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace").decode() + "\n"
