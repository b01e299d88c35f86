"""The records of a table for programs, as CSV and as JSON: whole, whatever columns are chosen."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from reports.render.cells import plain
from reports.render.grid import layout_of
from reports.render.printed import BUNDLE_FIELD, COMMAND, FIELD, NOTES_FIELD, chosen
from reports.results.results import Outcome
from reports.results.table import Row, Table
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


# --- Tidy CSV: a line per row × seed × set × metric, for R, pandas and the like. Nothing is averaged or rounded


TIDY_NAMES = (
    "study",
    "row",
    "group",
    "label",
    "seed",
    "run_id",
    "state",
    "imported",
    "set",
    "metric",
    "value",
    "eval_id",
    "signature",
)


def render_tidy(table: Table) -> str:
    """The lines, under one line of names; the settings stand behind these."""
    settings = list(dict.fromkeys([*table.settings, *(name for one in table.outcomes for name in one.run.overrides)]))
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    made = {BUNDLE_FIELD: table.bundle} if table.bundle else {}
    made |= {FIELD: f"{COMMAND}{table.asked}"} if table.asked else {}
    writer.writerow([*TIDY_NAMES, *map(text, settings), *made])
    for row in table.rows:
        for outcome in row.outcomes:
            values = [cell(outcome.setting(name) if row.reads(name) else None) for name in settings]
            for line in _lines(table, row, outcome):
                writer.writerow([*(cell(line.get(name)) for name in TIDY_NAMES), *values, *map(text, made.values())])
    return stream.getvalue()


def _lines(table: Table, row: Row, outcome: Outcome) -> Iterator[Mapping[str, Any]]:
    run = outcome.run
    own: dict[str, Any] = {"study": table.name, "row": row.key, "group": row.group, "label": row.label}
    own |= {"seed": run.seed or None, "run_id": run.run_id, "state": run.state}
    own["imported"] = run.imported
    for set_, scored in outcome.scored.items():
        asked = [column.metric for column in table.columns if column.set == set_]
        found = list(scored.record.metrics) if scored.record else []
        for metric in dict.fromkeys([*asked, *found]):
            made = {"set": set_, "metric": metric, "value": outcome.measured(set_, metric)}
            yield own | made | {"eval_id": scored.eval_id, "signature": scored.signature(metric)}
