"""Verify a printed table: find the cells that differ from the table that the store gives now."""

import csv
import html
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.errors import UserError
from experiments.messages import number
from reports.render.formats import render
from reports.render.html import GRID_JSON
from reports.render.printed import printed
from reports.render.printed_command import BUNDLE_FIELD, FIELD, FROM_BUNDLE, MADE_BY, NOTES_FIELD
from reports.results.table import Table
from reports.table.build import SPENT
from reports.table.total_cost import is_note

LEFT_OUT = (SPENT, FIELD, BUNDLE_FIELD, NOTES_FIELD)  # fields of JSON records that are not compared as cells
SUFFIXES = {".tex": "latex", ".md": "markdown", ".csv": "csv", ".json": "json", ".html": "html"}
FORMATS = tuple(SUFFIXES.values())


@dataclass(frozen=True)
class Verdict:
    """The differences between a printed table and the table that the store gives now."""

    cells: int  # number of cells of the table, without column heads
    changed: tuple[str, ...]  # one line of text for each difference

    @property
    def same(self) -> bool:
        """True if the file equals the table that the store gives now."""
        return not self.changed


def unchecked(table: Table) -> Iterator[str]:
    """Yield a line of text for numbers that a comparison with the store cannot check, because they were imported."""
    if table.bundle:
        yield table.bundle
    counts = {row.key: sum(o.record is not None for o in row.outcomes) for row in table.rows if row.imported}
    if count := sum(counts.values()):
        yield (
            f"{number(count, 'run')} {'was' if count == 1 else 'were'} trained elsewhere and imported "
            f"({', '.join(counts)}): their means, changes and tests were computed again, their numbers are as imported."
        )


def verify(text: str, table: Table, format_: str) -> Verdict:
    """Compare a file's text with the table as it is printed now. Raises UserError if the text contains no table."""
    now = render(table, format_)
    before, after = _cells(text, format_), _cells(now, format_)
    if len(before) < 2:
        raise UserError(f"The file contains no table in the format {format_}. Name its format with --format.")
    rows = [item.name for item in printed(table, format_).grid.lines]
    if format_ in ("csv", "json"):
        rows = [row.key for row in table.rows]
    cells = sum(len(line) for line in after[len(after) - len(rows) :])
    changed = list(_differences(before, after, rows)) + list(_notes(text, now, format_))
    # An HTML page also contains figures, which are not compared.
    if not changed and format_ != "html" and lasting(text, format_) != lasting(now, format_):
        changed.append("only spaces or the order of lines differ")
    return Verdict(cells, tuple(changed))


def lasting(text: str, format_: str) -> str:
    """Return the parts of a printed table that later commands do not change.

    Costs are left out, because attempts for other tables increase the costs. The line with the command that printed the
    table is left out. The line about a bundle is left out, because `unchecked` reports the bundle.
    """
    if format_ == "csv":
        return "\n".join(map(repr, _cells(text, "csv")))
    if format_ != "json":
        return "".join(line for line in text.splitlines(keepends=True) if _lasts(line)).strip("\n")
    rows = _parsed(text)
    if text.strip() != json.dumps(rows, indent=1, ensure_ascii=False):
        return text
    return json.dumps([{n: v for n, v in row.items() if n not in LEFT_OUT} for row in rows if isinstance(row, dict)])


def _lasts(line: str) -> bool:
    return not is_note(line) and MADE_BY not in line and FROM_BUNDLE not in line


def _differences(before: list[list[str]], after: list[list[str]], rows: list[str]) -> Iterator[str]:
    if len(before) != len(after):
        lines = number(len(before), "line")
        yield f"the file has {lines} of cells, the store gives {len(after)}: rows were added or left out"
        return
    if len(before[0]) != len(after[0]):
        yield f"the file has {number(len(before[0]), 'column')}, the store gives {len(after[0])}"
        return
    heads = len(after) - len(rows)
    names = [" ".join(filter(None, parts)).strip() for parts in zip(*after[:heads], strict=False)]
    keys = ["the heads"] * heads + rows
    for key, old, new in zip(keys, before, after, strict=True):
        for place, (was, is_) in enumerate(zip(old, new, strict=False)):
            if was != is_:
                name = names[place] if place < len(names) and names[place] else f"column {place + 1}"
                yield f"{key}, {name}: {was or 'blank'} in the file, {is_ or 'blank'} in the store"


def _notes(text: str, now: str, format_: str) -> Iterator[str]:
    old, new = (_other_lines(part, format_) for part in (text, now))
    if format_ == "json" and not old:  # an earlier version wrote no notes to JSON
        return
    yield from (f"only in the file: {line}" for line in old if line not in new)
    yield from (f"not in the file: {line}" for line in new if line not in old)


def _other_lines(text: str, format_: str) -> list[str]:
    """Return the notes under a table. For Markdown and LaTeX, also return all other lines that contain no cells.

    A CSV file has no notes.
    """
    if format_ == "csv":
        return []
    if format_ == "json":
        said = [row[NOTES_FIELD] for row in _parsed(text) if isinstance(row, dict) and NOTES_FIELD in row]
        notes = [note.get("text", "") for notes in said for note in notes if isinstance(note, dict)]
        return [note for note in notes if _lasts(note)]
    if format_ == "html":
        lists = re.findall(r'<ul class="notes">(.*?)</ul>', text, re.DOTALL)
        notes = [html.unescape(note) for found in lists for note in re.findall("<li>(.*?)</li>", found, re.DOTALL)]
        return [note for note in notes if _lasts(note)]
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if format_ == "latex":
        return [line for line in lines if not line.endswith(r"\\") and _lasts(line)]
    return [line for line in lines if not line.startswith("|") and _lasts(line)]


def _cells(text: str, format_: str) -> list[list[str]]:
    """Return the lines of cells, heads first. A cell that spans several columns is followed by empty cells."""
    if format_ == "csv":
        records = list(csv.reader(io.StringIO(text)))
        left_out = {i for i, name in enumerate(records[0]) if name in (FIELD, BUNDLE_FIELD)} if records else set()
        return [[cell for i, cell in enumerate(line) if i not in left_out] for line in records]
    if format_ == "json":
        rows = _parsed(text)
        names = dict.fromkeys(name for row in rows if isinstance(row, dict) for name in row if name not in LEFT_OUT)
        return [[*names], *([json.dumps(row.get(name), ensure_ascii=False) for name in names] for row in rows)]
    if format_ == "html":
        found = re.search(rf'<script type="application/json" id="{GRID_JSON}">(.*?)</script>', text, re.DOTALL)
        lines = _parsed(found[1]) if found else []
        return [[str(cell) for cell in line] for line in lines]
    if format_ == "latex":
        inside = text.partition(r"\toprule")[2].partition(r"\bottomrule")[0].split("\n")
        lines = [line.strip() for line in inside if line.strip().endswith(r"\\")]
        return [_spread(re.split(r"(?<!\\)&", line.removesuffix(r"\\"))) for line in lines]
    lines = [line.strip() for line in text.split("\n") if line.startswith("|")]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [row for row in rows if not all(re.fullmatch(r"-+:?", cell) for cell in row)]


def _spread(cells: Sequence[str]) -> list[str]:
    spread: list[str] = []
    for cell in cells:
        found = re.fullmatch(r"\\multicolumn\{(\d+)\}\{\w+\}\{(.*)\}", cell.strip())
        spread += [found[2], *[""] * (int(found[1]) - 1)] if found else [cell.strip()]
    return spread


def _parsed(text: str) -> list[Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return []
    return value if isinstance(value, list) else []
