"""The command line that a printed table was made with, in the table itself: `ablations verify FILE` reads it again."""

import csv
import io
import json
import re
import shlex
from collections.abc import Iterator

from reports.render.text import plain
from reports.results.table import Table

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
