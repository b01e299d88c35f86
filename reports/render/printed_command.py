"""The command that printed a table, as part of the printed table, for `ablations verify FILE`."""

import csv
import io
import json
import re
import shlex
from collections.abc import Iterator

from reports.render.cells import plain
from reports.results.table import Table

COMMAND = "ablations report "
MADE_BY = f"made with: {COMMAND}"
FIELD = "made_with"  # field with the command in each record of JSON and CSV, which have no comments
FROM_BUNDLE = "From a bundle."  # start of the first line of a table that was printed from a bundle
BUNDLE_FIELD = "from_bundle"  # field with this line in each record of JSON and CSV
NOTES_FIELD = "notes"  # field of the first record of JSON


def comment(table: Table) -> Iterator[str]:
    """Yield the command as an HTML comment, for HTML and Markdown. Text that would end the comment is removed."""
    if table.asked:
        yield f"<!-- {MADE_BY}{re.sub(r'[<>]|--(?=-|>|!)', ' ', plain(table.asked))} -->"


def asked_for(text: str, format_: str) -> list[str]:
    """Return the arguments of the command that printed a file; [] if the file does not contain the command."""
    if format_ in ("csv", "json"):
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
