"""Tidy CSV: a line per row × seed × set × metric, for R, pandas and the like. Nothing is averaged or rounded.

All evaluations of the selection are in it, also of metrics that are no column. A seed without a value has a line with
an empty one and its state, so that a gap is no shorter table. Every setting that a row changes is on every line.
"""

import csv
import io
from collections.abc import Iterator, Mapping
from typing import Any

from reports.render.printed import BUNDLE_FIELD, COMMAND, FIELD
from reports.render.records import cell, text
from reports.results.results import Outcome
from reports.results.table import Row, Table

NAMES = (
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


def render(table: Table) -> str:
    """The lines, under one line of names; the settings stand behind these."""
    outcomes = [outcome for row in table.rows for outcome in row.outcomes]
    settings = list(dict.fromkeys([*table.settings, *(name for one in outcomes for name in one.run.overrides)]))
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    made = {BUNDLE_FIELD: table.bundle} if table.bundle else {}
    made |= {FIELD: f"{COMMAND}{table.asked}"} if table.asked else {}
    writer.writerow([*NAMES, *map(text, settings), *made])
    for row in table.rows:
        for outcome in row.outcomes:
            values = [cell(outcome.setting(name) if row.reads(name) else None) for name in settings]
            for line in _lines(table, row, outcome):
                writer.writerow([*(cell(line.get(name)) for name in NAMES), *values, *map(text, made.values())])
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
