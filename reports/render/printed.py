"""What of a table a format prints, by the choices of the study and the command; and the command that printed it.

The choices are applied once, before any format.
"""

import csv
import io
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ablations.study.parts import Choices
from reports.render.cells import Grid, plain
from reports.render.columns import CHANGES, PAPERS, chosen, converted
from reports.render.grid import Layout, arranged, layout_of
from reports.results.table import Table
from reports.table.cost import cost_notes, shown

COMPACT = ("latex",)  # for a paper: without a choice, what varies, the metrics and the costs
OWN = {  # a format's choices, where neither study nor command has another
    "latex": Choices(plain=True, paper=False, notes="short"),
    "terminal": Choices(notes="none"),
}


@dataclass(frozen=True)
class Printed:
    """A table as a format prints it, and what it leaves out."""

    table: Table  # with the chosen title, digits and units
    choices: Choices
    grid: Grid
    hidden: Grid  # the same lines, in the columns that are not printed
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    left_out: tuple[str, ...]  # warnings and notes that are not printed


def choices_for(table: Table, format_: str) -> Choices:
    """The choices that hold in a format, each from the strongest layer that makes it."""
    choices = OWN.get(format_, Choices(notes="full"))
    for layer in (*table.choices.layers(format_), table.chosen):
        choices = layer.over(choices)
    return choices


def printed(table: Table, format_: str) -> Printed:
    """Apply the choices. Raises UserError for a column that the table does not have."""
    choices = choices_for(table, format_)
    if choices.caption is not None:
        table = replace(table, title=choices.caption)
    papers = table.papers_corpus if choices.paper is None else choices.paper
    if not (papers or table.papers_corpus):  # a number of another corpus has no place among ours
        table = replace(table, cited=())
    printed_costs = shown(table, choices.columns)
    of_named = [note for note in cost_notes(table, printed_costs) if note not in table.footnotes]
    table = replace(table, footnotes=(*table.footnotes, *of_named))
    table, costs = converted(table, printed_costs, choices.units, choices.digits)
    layout, others = chosen(layout_of(table, costs), table, choices, compact=format_ in COMPACT)
    fitting = [note for note in table.footnotes if table.legend.get(note, "") in ("", *_parts(layout))]
    notes = {"none": [], "short": [note for note in fitting if note in table.legend], "full": fitting}
    kept = notes[choices.notes or "full"]
    warnings = () if choices.notes == "none" else table.warnings
    return Printed(
        table,
        choices,
        arranged(table, layout),
        arranged(table, others),
        warnings,
        tuple(kept),
        (*(() if warnings else table.warnings), *(note for note in table.footnotes if note not in kept)),
    )


def _parts(shown: Layout) -> set[str]:
    """The parts of columns that notes speak of."""
    roles = {head.role for head, _ in shown if head.kind == "value"}
    return {
        *(["change"] if roles & {*CHANGES, "paper_change"} else []),
        *(["paper"] if roles & {*PAPERS} else []),
        *(["n"] if "n" in roles else []),
    }


# --- The command line of a printed table, in the table itself: `ablations verify FILE` reads it again


COMMAND = "ablations report "
MADE_BY = f"made with: {COMMAND}"
FIELD = "made_with"  # in each record of JSON and CSV, whose readers know no comments
FROM_BUNDLE = "From a bundle."  # begins the first line of a table that was printed from one
BUNDLE_FIELD = "from_bundle"  # that line in each record of JSON and CSV


def comment(table: Table) -> Iterator[str]:
    """A line for HTML and Markdown, which no reader sees. The words in it must not end the comment."""
    if table.asked:
        yield f"<!-- {MADE_BY}{re.sub(r'[<>]|--(?=-|>|!)', ' ', plain(table.asked))} -->"


def asked_for(text: str, format_: str) -> list[str]:
    """The words that selected the table of a printed file; empty if the file does not contain them."""
    if format_ in ("csv", "tidy-csv", "json"):
        words = _of_records(text, format_).removeprefix(COMMAND)
    else:
        found = re.search(rf"^(?:% |<!-- ){re.escape(MADE_BY)}([^\n]*?)(?: -->)?$", text, re.MULTILINE)
        words = found[1] if found else ""
    try:
        return shlex.split(words)
    except ValueError:
        return []


def _of_records(text: str, format_: str) -> str:
    try:
        rows = json.loads(text) if format_ == "json" else [next(csv.DictReader(io.StringIO(text)), {})]
    except (ValueError, csv.Error):
        return ""
    first = rows[0] if isinstance(rows, list) and rows else {}
    return str(first.get(FIELD) or "") if isinstance(first, dict) else ""
