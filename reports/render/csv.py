"""CSV for spreadsheets and programs: one line per row, numbers in full, no text that would run as a formula."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reports.render.records import records
from reports.render.text import plain
from reports.results.table import Table
from reports.table.row_records import SPENT

# Also the full-width forms, which some spreadsheets read as their ASCII counterparts.
_FORMULA = tuple("=+-@＝＋－＠")


def render(table: Table) -> str:
    """The records of reports/table/row_records.py, one line each, under one line of names."""
    found, settings = records(table, "csv")
    lines = [dict(_flat(values, settings)) for values in found]
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


def _flat(values: Mapping[str, Any], settings: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """The record's nested parts as columns of their own; settings only as in the table: blank where as in base."""
    for name, value in values.items():
        if name in SPENT:
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
