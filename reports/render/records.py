"""The records of a table for programs, as CSV and as JSON: whole, unless columns are chosen for that format."""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reports.render.cells import plain
from reports.render.grid import layout_of
from reports.render.printed import BUNDLE_FIELD, COMMAND, FIELD, NOTES_FIELD, choices_for, chosen
from reports.results.results import Outcome
from reports.results.table import Row, Table
from reports.table.build import SPENT, record
from reports.table.cost import COSTS, shown
from reports.table.settings import at


def records(table: Table, format_: str) -> tuple[list[dict[str, Any]], list[str]]:
    """One per row, and the settings that are columns. Raises UserError for a column that the table does not have.

    Names and states of rows and their runs always stay, so that a number leads back to these.
    """
    made = {FIELD: f"{COMMAND}{table.asked}"} if table.asked else {}
    first = {BUNDLE_FIELD: table.bundle} if table.bundle else {}
    choices = choices_for(table, format_)
    costs = shown(table, choices.columns)
    found = [first | record(row, table, costs) | made for row in table.rows]
    if not (choices.columns or choices.hide or choices.plain or choices.paper is not None):
        return found, list(table.settings)
    heads = [head for head, _ in chosen(layout_of(table, costs), table, choices, compact=False)[0]]
    settings = [head.key for head in heads if head.kind == "setting"]
    keys = {head.key for head in heads}
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


# --- CSV for spreadsheets and programs: one line per row, numbers in full, no text that would run as a formula


# Also the full-width forms, which some spreadsheets read as their ASCII counterparts.
_FORMULA = tuple("=+-@＝＋－＠")


def render_csv(table: Table) -> str:
    """The records of reports/table/build.py, one line each, under one line of names."""
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
    first, *others = records(table, "json")[0]
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
