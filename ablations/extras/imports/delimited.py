"""Read a file of lines and columns, as spreadsheets, R, pandas and loggers write it.

Cells stay text. An error names the line and the column. Comments, and a column that only numbers the lines, are left
out. Notes list what was left out.
"""

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from experiments.errors import UserError
from experiments.messages import plural
from experiments.store.durable import read_regular

MOST_COLUMNS = 5_000
_SEPARATORS = ",;\t|"
_BOMS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16", b"\xef\xbb\xbf": "utf-8-sig"}


@dataclass(frozen=True)
class Delimited:
    """A table whose cells are text."""

    head: tuple[str, ...]  # names of the columns
    lines: tuple[tuple[int, dict[str, str]], ...]  # number of each line, and its cells by name of column
    places: dict[str, int]  # number of each column
    notes: tuple[str, ...]  # comments and columns that were left out


def text_of(file: Path) -> str:
    """Return the text of a file in UTF-8, or in UTF-16 with a byte order mark.

    Raises UserError with the line for any other encoding.
    """
    data = read_regular(file)
    encoding = next((name for mark, name in _BOMS.items() if data.startswith(mark)), "utf-8")
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"line {line}: the text is not UTF-8 (byte 0x{data[error.start]:02X}). Save it as UTF-8, for instance "
            "with `iconv -f latin1 -t utf-8`."
        ) from None


def read_table(text: str) -> Delimited:
    """Return the table in a text. Raises UserError with line and column if the text is not a table."""
    if "\0" in text:
        raise UserError(
            f"line {text.count(chr(10), 0, text.index(chr(0))) + 1} contains a NUL byte, so the file is not text."
        )
    if text.lstrip()[:1] in ("{", "[") and _is_json(text):
        raise UserError("the file is JSON, not a table of lines and columns.")
    notes: list[str] = []
    separator, skipped = _begin(text)
    comments: list[tuple[int, list[str]]] = []
    records = list(_records(text, separator, skipped, comments))
    if comments:
        listed = ", ".join(str(number) for number, _ in comments[:5])
        notes.append(f"{plural(len(comments), 'line')} {listed}{' …' * (len(comments) > 5)}: a comment (#)")
    if not records:
        raise UserError("line 1: expected names of columns, separated by commas, semicolons or tabs.")
    (line, head), *lines = records
    head = [name.strip() for name in head]
    if not lines and len(head) < 2:
        raise UserError(f"line {line}: expected names of columns, separated by commas, semicolons or tabs.")
    if len(head) > MOST_COLUMNS:
        raise UserError(f"the file has {len(head):,} columns; at most {MOST_COLUMNS:,} can be read.")
    if not lines:
        raise UserError("the file has a head but no lines below it.")
    _refuse_numbers(line, head, notes)
    for number, cells in comments:
        if len(cells) == len(head):
            raise UserError(
                f"line {number} begins with # and has as many cells as the head, so it may be a comment or data. "
                "Remove the line, or the sign."
            )
    while head and not head[-1] and not any("".join(cells[len(head) - 1 :]).strip() for _, cells in lines):
        head.pop()
    lines = [(number, _without_end(cells, len(head))) for number, cells in lines]
    if all(len(cells) == len(head) + 1 for _, cells in lines):
        head.insert(0, "")  # R's write.table writes no heading for the names of lines
    for number, cells in lines:
        if len(cells) != len(head):
            raise UserError(f"line {number} has {len(cells)} cells, but the head has {len(head)}.")
    kept = [place for place, name in enumerate(head) if name or any(cells[place].strip() for _, cells in lines)]
    kept = _without_index(line, head, lines, kept, notes)
    if len(kept) < 2:
        raise UserError(f"line {line}: it names one column, {head[kept[0]] if kept else ''!r}: expected two or more.")
    places: dict[str, int] = {}
    for place in kept:
        if head[place] in places:
            raise UserError(
                f"line {line}: the columns {places[head[place]]} and {place + 1} are both called {head[place]!r}. "
                "Rename one of them."
            )
        places[head[place]] = place + 1
    found = tuple((number, {head[place]: cells[place].strip() for place in kept}) for number, cells in lines)
    return Delimited(tuple(places), found, places, tuple(notes))


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _begin(text: str) -> tuple[str, int]:
    """Return the separator, and the number of lines before the head (1 with Excel's "sep=;", else 0)."""
    first = text.partition("\n")[0].strip().strip('"')
    if named := re.fullmatch(r"sep=(.)", first, re.IGNORECASE):
        return named[1], 1
    if re.fullmatch(r"sep=", first, re.IGNORECASE):
        return "\t", 1
    head = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")
    outside = re.sub(r'"(?:[^"]|"")*"', "", head)
    return max(_SEPARATORS, key=outside.count), 0


def _records(
    text: str, separator: str, skipped: int, comments: list[tuple[int, list[str]]]
) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the cells of each record that is not empty. Comments are added to `comments`.

    The number of a record is that of its first line, because a quoted cell may contain line breaks.
    """
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    before = 0
    try:
        for cells in reader:
            number, before = before + 1, reader.line_num
            if number <= skipped or not any(cell.strip() for cell in cells):
                continue
            if cells[0].lstrip().startswith("#") and cells[0].strip().upper() != "#N/A":
                comments.append((number, cells))
                continue
            yield number, cells
    except csv.Error as error:
        raise UserError(f"line {before + 1}: {error}: a quote is not closed, or stands inside a cell.") from None


def _refuse_numbers(line: int, head: list[str], notes: list[str]) -> None:
    """Raise UserError if the first line contains only numbers, and so no names of columns."""
    if all(re.fullmatch(r"[-+]?\d*[.,]?\d+(e[-+]?\d+)?", name, re.IGNORECASE) for name in head):
        taken = f" ({notes[0]} is left out)" if notes else ""
        raise UserError(f"line {line}: expected names of columns, and found numbers alone{taken}. Write them above it.")


def _without_end(cells: list[str], width: int) -> list[str]:
    """Return the cells of a line without empty cells after the last column of the head."""
    while len(cells) > width and not cells[-1].strip():
        cells = cells[:-1]
    return cells


def _without_index(
    line: int, head: list[str], lines: list[tuple[int, list[str]]], kept: list[int], notes: list[str]
) -> list[int]:
    """Return the columns without an unnamed column that numbers the lines.

    Raises UserError for any other column without a name.
    """
    for place in kept:
        name = head[place]
        if name and not re.fullmatch(r"Unnamed: \d+", name):
            continue
        cells = [cells[place].strip() for _, cells in lines]
        if any(cells == [str(first + i) for i in range(len(cells))] for first in (0, 1)):
            notes.append(
                f"column {place + 1}, {name or 'without a name'}: it numbers the lines (an index of pandas or R)"
            )
            kept = [other for other in kept if other != place]
        elif not name:
            raise UserError(f"line {line}, column {place + 1} has no name. Give it one, or remove the column.")
    return kept
