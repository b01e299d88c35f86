"""The formats CSV and JSON: the full records of a table, for programs. Choosing or hiding columns removes no field."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from reports.render.cells import plain
from reports.render.layout import layout_of
from reports.render.printed import chosen
from reports.render.printed_command import BUNDLE_FIELD, COMMAND, FIELD, NOTES_FIELD
from reports.results.table import Table
from reports.table.build import SPENT, record
from reports.table.cost import shown


def records(table: Table) -> list[dict[str, Any]]:
    """Return one record per row. The record includes optional costs that the command's `columns` name.

    Raises UserError for a name that no column has.
    """
    costs = shown(table, table.chosen.columns)
    chosen(layout_of(table, costs), table, table.chosen, compact=False)
    made = {FIELD: f"{COMMAND}{table.asked}"} if table.asked else {}
    first = {BUNDLE_FIELD: table.bundle} if table.bundle else {}
    return [first | record(row, table, costs) | made for row in table.rows]


# Characters that start a formula. Some spreadsheets read the full-width forms like the ASCII characters.
_FORMULA = tuple("=+-@＝＋－＠")


def render_csv(table: Table) -> str:
    """Return the records as CSV: one line of names, then one line per row."""
    lines = [dict(_flat(values, table.settings)) for values in records(table)]
    names = list(dict.fromkeys(name for line in lines for name in line))
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([text(name) for name in names])
    writer.writerows([cell(line.get(name)) for name in names] for line in lines)
    return stream.getvalue()


def text(value: object) -> str:
    """Return one line of text. Text that looks like a formula gets a leading apostrophe.

    Without the apostrophe, spreadsheets would run the text as a formula (CSV injection).
    """
    clean = plain(value)
    return f"'{clean}" if clean.startswith(_FORMULA) else clean


def _flat(values: Mapping[str, Any], settings: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a record, with published numbers and the table's settings as separate columns."""
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
    """Return a value as text: numbers with all digits, "" for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return text(" ".join(map(str, value)))
    return text(value)


def render_json(table: Table) -> str:
    """Return the records as JSON: numbers with all digits, and null for a cell without a number.

    The first object has the table's notes and warnings, each with its kind. Lone surrogates become JSON escapes.
    """
    first, *others = records(table)
    notes = [("warning", text) for text in table.warnings] + [(note.kind, note.text) for note in table.footnotes]
    found = [first | {NOTES_FIELD: [{"kind": kind, "text": text} for kind, text in notes]}, *others]
    text = json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace").decode() + "\n"
