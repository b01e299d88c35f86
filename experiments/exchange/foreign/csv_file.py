"""Runs in a CSV file of one's own, long (a line per score) or wide (a line per run or row):

    row,seed,set,metric,value          row,seed,lr,dev/bleu,test/bleu
    base,1,dev,bleu,26.1               base,1,0.1,26.1,25.3

`row` is required; `seed`, `set` and `group` may be left out. Every other column is a setting or, in a wide file, a
metric.
"""

import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from experiments.errors import UserError
from experiments.exchange.foreign.runs import Foreign, ForeignRun, as_text, number, read_bytes, value

LONG = ("metric", "value")
MOST_COLUMNS = 5_000
OWN = ("row", "seed", "set", "group", *LONG)


def read_csv(path: Path, row_by: str = "", seed_by: str = "") -> Foreign:
    """Raises UserError with the line for whatever cannot be read."""
    data, digest = read_bytes(path, "--csv")
    head, lines = table(as_text(data, path, "--csv"), f"--csv {path}")
    row, seed = row_by or "row", seed_by or "seed"
    if row not in head:
        raise UserError(
            f"--csv {path} has no column {row!r}, which names the table's row of each run. Its columns are: "
            f"{', '.join(head)}. Name the column with --row-by."
        )
    read = _long if set(LONG) <= set(head) else _wide
    own = (*OWN, row, seed) if read is _long else ("row", "seed", "set", "group", row, seed)
    runs = read(f"--csv {path}", head, lines, row, seed, own)
    return Foreign("csv", path.name, tuple(runs), digest)


def table(text: str, where: str) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """The head, and each line with its number. Raises UserError for a file that is no such table."""
    first = text.partition("\n")[0]
    separator = max(",;\t", key=first.count)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
        head = [name.strip() for name in next(reader, [])]
        lines = [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    except csv.Error as error:
        raise UserError(f"{where}, line {reader.line_num}: this is not CSV: {error}. Nothing was imported.") from None
    if "\0" in text:
        raise UserError(f"{where} has a NUL, so it is no text. Nothing was imported.")
    if len(head) > MOST_COLUMNS:
        raise UserError(f"{where} has {len(head):,} columns: at most {MOST_COLUMNS:,} are read. Nothing was imported.")
    twice = sorted(name for name, count in Counter(head).items() if count > 1)
    if len(head) < 2 or "" in head or twice:
        what = f"the column {twice[0]!r} is there twice" if twice else "expected names of columns, separated by commas"
        raise UserError(f"{where}, line 1: {what}. Nothing was imported.")
    for line, cells in lines:
        if len(cells) != len(head):
            raise UserError(
                f"{where}, line {line} has {len(cells)} cells, and the head has {len(head)}. Nothing was imported."
            )
    if not lines:
        raise UserError(f"{where} has a head and no line below it. Nothing was imported.")
    return head, [(line, {n: c.strip() for n, c in zip(head, cells, strict=True)}) for line, cells in lines]


Lines = Sequence[tuple[int, dict[str, str]]]


def _long(where: str, head: Sequence[str], lines: Lines, row: str, seed: str, own: Sequence[str]) -> list[ForeignRun]:
    found: dict[tuple[str, str], ForeignRun] = {}
    for line, cells in lines:
        key = _key(where, line, cells, row, seed)
        settings = {name: value(cells[name]) for name in head if name not in own and cells[name]}
        known = found.setdefault(
            key, ForeignRun(f"line {line}", row=key[0], group=cells.get("group", ""), seed=key[1], settings=settings)
        )
        if known.settings != settings:
            raise UserError(
                f"{where}, line {line}: other settings than {known.where} of the same row and seed. Nothing was "
                "imported."
            )
        name = f"{cells.get('set') or 'test'}/{cells['metric']}"
        if name in known.metrics:
            raise UserError(
                f"{where}, line {line}: {cells['metric']} of {key[0]}, seed {key[1] or 'unknown'}, stands there twice. "
                "Keep one line per row, seed, set and metric. Nothing was imported."
            )
        score = _score(where, line, "value", cells["value"])
        if score is not None:
            found[key] = replace(known, metrics={**known.metrics, name: score})
    return list(found.values())


def _wide(where: str, head: Sequence[str], lines: Lines, row: str, seed: str, own: Sequence[str]) -> list[ForeignRun]:
    found: dict[tuple[str, str], ForeignRun] = {}
    for line, cells in lines:
        key, set_ = _key(where, line, cells, row, seed), cells.get("set", "")
        prefix = f"{set_}/" if set_ else ""
        fields = {name: cells[name] for name in head if name not in own and cells[name]}
        if key in found and not set_:
            raise UserError(
                f"{where}, line {line}: {key[0]}, seed {key[1] or 'unknown'}, stands there twice (first in "
                f"{found[key].where}). Give each run its seed in a column. Nothing was imported."
            )
        known = found.get(key) or ForeignRun(f"line {line}", row=key[0], group=cells.get("group", ""), seed=key[1])
        of_set = {
            f"{prefix}{name}" if prefix and number(text) is not None else name: text for name, text in fields.items()
        }
        found[key] = replace(known, fields={**known.fields, **fields, **of_set})
    return list(found.values())


def _key(where: str, line: int, cells: dict[str, str], row: str, seed: str) -> tuple[str, str]:
    if not cells[row]:
        raise UserError(f"{where}, line {line}: the column {row} is empty. Nothing was imported.")
    return cells[row], cells.get(seed, "")


def _score(where: str, line: int, name: str, text: str) -> float | None:
    """None for an empty cell."""
    found = number(text)
    if found is None and text:
        raise UserError(f"{where}, line {line}: {name} = {text!r} is not a number. Nothing was imported.")
    return found
