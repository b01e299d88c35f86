"""Runs of other programs, read from a CSV file or from exports of Weights & Biases, and what every reader returns."""

import csv
import hashlib
import io
import json
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from experiments.errors import UserError

SEED_NAMES = ("seed", "random_seed", "training.seed", "args.seed")


@dataclass(frozen=True)
class ExternalRun:
    """A run. `fields` are columns of a table that does not say which are settings and which are metrics."""

    where: str  # for messages: "line 3", "run sweet-sun-3"
    name: str = ""
    id: str = ""
    row: str = ""  # as the source names it; "": it does not
    group: str = ""
    seed: str = ""  # "": it has none
    fields: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)  # by dotted name
    metrics: Mapping[str, float] = field(default_factory=dict)  # by the source's name: "bleu", "dev/bleu"
    examples: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)  # by set: each example's scores


@dataclass(frozen=True)
class External:
    """The runs of a source, and what of it is left out."""

    kind: str
    source: str
    runs: tuple[ExternalRun, ...]
    sha256: str | None = None
    left_out: tuple[str, ...] = ()  # a sentence each
    t: float = field(default_factory=time.time)


def read_bytes(path: Path, option: str) -> tuple[bytes, str]:
    """A file's content and SHA-256. Raises UserError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{option} {path} cannot be read: {error.strerror}. Nothing was imported.") from None
    return data, hashlib.sha256(data).hexdigest()


def as_text(data: bytes, path: Path, option: str) -> str:
    """UTF-8, with or without a byte order mark. Raises UserError."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{option} {path} is not UTF-8 text ({error.reason} at byte {error.start}).") from None


def number(text: Any) -> float | None:
    """A finite or infinite number or NaN; None for anything else, also for Python's 1_000, a name elsewhere."""
    if isinstance(text, bool) or (isinstance(text, str) and "_" in text):
        return None
    try:
        return float(str(text))  # as text: a whole number without end is infinite, not an OverflowError
    except ValueError:
        return None


def as_value(text: Any) -> Any:
    """A setting's value from text: a whole number of 64 bits, a finite number, true or false, else the text itself."""
    if not isinstance(text, str):
        return text
    words = {"true": True, "false": False}
    if text.strip().lower() in words:
        return words[text.strip().lower()]
    for kind in (int, float) if "_" not in text else ():
        try:
            found = kind(text)
        except ValueError:
            continue
        if isinstance(found, int) and found.bit_length() > 63:
            return text
        if math.isfinite(found):
            return found
    return text


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted name, without null; a list with null or objects, which no study has, as JSON."""
    found: dict[str, Any] = {}
    for name, inner in settings.items():
        if isinstance(inner, Mapping):
            found |= flat(inner, f"{prefix}{name}.")
        elif inner is not None:
            odd = isinstance(inner, list) and any(one is None or isinstance(one, Mapping) for one in inner)
            found[f"{prefix}{name}"] = json.dumps(inner, ensure_ascii=False) if odd else inner
    return found


def run_called(name: str) -> str:
    """For messages: a name of any length and lines, in a few words."""
    return f"run {' '.join(name.split())[:80]}"


def seed_of(settings: Mapping[str, Any], name: str = "") -> tuple[str, dict[str, Any]]:
    """The seed, and the settings without it. `name`: the setting that holds it."""
    found = next((one for one in ([name] if name else SEED_NAMES) if settings.get(one) not in (None, "")), "")
    return (str(settings[found]) if found else ""), {key: v for key, v in settings.items() if key != found}


# --- A CSV file of one's own, long (a line per score) or wide (a line per run or row):
#     row,seed,set,metric,value          row,seed,lr,dev/bleu,test/bleu
#     base,1,dev,bleu,26.1               base,1,0.1,26.1,25.3
# `seed`, `set` and `group` may be left out. Every other column is a setting or, in a wide file, a metric. An import
# needs `row`; without it runs are told apart by their settings.


LONG = ("metric", "value")
MOST_COLUMNS = 5_000
OWN = ("row", "seed", "set", "group", *LONG)


def read_csv(path: Path, row_by: str = "", seed_by: str = "", *, rows: bool = True) -> External:
    """Raises UserError with the line for whatever cannot be read. rows: a column has to name the row of each run."""
    data, digest = read_bytes(path, "--csv")
    head, lines = table(as_text(data, path, "--csv"), f"--csv {path}")
    row, seed = row_by or "row", seed_by or next((name for name in SEED_NAMES if name in head), "seed")
    _known(f"--csv {path}", seed_by, head, "--seed-by")
    if row not in head and not rows:
        row = ""
    elif row not in head:
        raise UserError(
            f"--csv {path} has no column {row!r}, which names the table's row of each run. Its columns are: "
            f"{', '.join(head)[:1000]}. Name the column with --row-by."
        )
    read = _long if set(LONG) <= set(head) else _wide
    own = (*OWN, row, seed) if read is _long else ("row", "seed", "set", "group", row, seed)
    runs = read(f"--csv {path}", head, lines, row, seed, own)
    return External("csv", path.name, tuple(runs), digest)


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


def _long(where: str, head: Sequence[str], lines: Lines, row: str, seed: str, own: Sequence[str]) -> list[ExternalRun]:
    found: dict[tuple[str, str], ExternalRun] = {}
    for line, cells in lines:
        named, of_seed = _key(where, line, cells, row, seed)
        settings = {name: as_value(cells[name]) for name in head if name not in own and cells[name]}
        key = named or repr(settings), of_seed
        known = found.setdefault(
            key, ExternalRun(f"line {line}", row=named, group=cells.get("group", ""), seed=of_seed, settings=settings)
        )
        if known.settings != settings:
            raise UserError(
                f"{where}, line {line}: other settings than {known.where} of the same row and seed. Nothing was "
                "imported."
            )
        name = f"{cells.get('set') or 'test'}/{cells['metric']}"
        if name in known.metrics:
            raise UserError(
                f"{where}, line {line}: {cells['metric']} of {key[0]}, seed {of_seed or 'unknown'}, stands there twice."
                " Keep one line per row, seed, set and metric. Nothing was imported."
            )
        score = _score(where, line, "value", cells["value"])
        if score is not None:
            found[key] = replace(known, metrics={**known.metrics, name: score})
    return list(found.values())


def _wide(where: str, head: Sequence[str], lines: Lines, row: str, seed: str, own: Sequence[str]) -> list[ExternalRun]:
    found: dict[tuple[str, str], ExternalRun] = {}
    for line, cells in lines:
        named, of_seed = _key(where, line, cells, row, seed)
        key, set_ = (named or str(line), of_seed), cells.get("set", "")
        prefix = f"{set_}/" if set_ else ""
        fields = {name: cells[name] for name in head if name not in own and cells[name]}
        if key in found and not set_:
            raise UserError(
                f"{where}, line {line}: {key[0]}, seed {key[1] or 'unknown'}, stands there twice (first in "
                f"{found[key].where}). Give each run its seed in a column. Nothing was imported."
            )
        known = found.get(key) or ExternalRun(f"line {line}", row=named, group=cells.get("group", ""), seed=of_seed)
        of_set = {
            f"{prefix}{name}" if prefix and number(text) is not None else name: text for name, text in fields.items()
        }
        found[key] = replace(known, fields={**known.fields, **fields, **of_set})
    return list(found.values())


def _key(where: str, line: int, cells: dict[str, str], row: str, seed: str) -> tuple[str, str]:
    if row and not cells[row]:
        raise UserError(f"{where}, line {line}: the column {row} is empty. Nothing was imported.")
    return cells[row] if row else "", cells.get(seed, "")


def _score(where: str, line: int, name: str, text: str) -> float | None:
    """None for an empty cell."""
    found = number(text)
    if found is None and text:
        raise UserError(f"{where}, line {line}: {name} = {text!r} is not a number. Nothing was imported.")
    return found


# --- Weights & Biases: the CSV of its runs table, or JSON of its API's runs
# CSV: the columns that the table showed: Name, State, ID, Group, then config and summary without a difference between
# them. JSON: a list of runs, or one run per line, with `name`, `id`, `state`, `group`, `config` and `summary` (or
# `summary_metrics`, `summaryMetrics`); config values may be wrapped as {"value": …}. Such a file is written by
#     json.dump([{"id": r.id, "name": r.name, "state": r.state, "group": r.group, "config": r.config,
#                 "summary": dict(r.summary)} for r in wandb.Api().runs("ENTITY/PROJECT")], file, default=str)


_SUMMARIES = ("summary", "summary_metrics", "summaryMetrics")
_OF_WANDB = (
    "Name", "State", "ID", "Group", "Notes", "User", "Tags", "Created", "Runtime", "Sweep", "End Time", "Hostname",
    "Description", "Commit", "GitHub", "GPU Type", "Job Type", "Updated", "Host", "Command",
)  # fmt: skip


def read_wandb(path: Path, row_by: str = "", seed_by: str = "") -> External:
    """The finished runs; others are left out and named. Raises UserError."""
    data, digest = read_bytes(path, "--wandb-export")
    text, where = as_text(data, path, "--wandb-export"), f"--wandb-export {path}"
    runs = (
        _of_json(text, where, row_by, seed_by) if text.lstrip()[:1] in "[{" else _of_csv(text, where, row_by, seed_by)
    )
    kept = tuple(run for run, state in runs if state in ("", "finished"))
    left_out = tuple(f"{run.where}: its state is {state}" for run, state in runs if state not in ("", "finished"))
    if not kept:
        raise UserError(f"{where} has no finished run{f' ({left_out[0]})' if left_out else ''}. Nothing was imported.")
    return External("wandb", path.name, kept, digest, left_out)


def _of_csv(text: str, where: str, row_by: str, seed_by: str) -> list[tuple[ExternalRun, str]]:
    head, lines = table(text, where)
    if "Name" not in head:
        raise UserError(
            f"{where} has no column Name, so it is no export of a W&B runs table. Its columns are: "
            f"{', '.join(head)[:1000]}. A table of your own is imported with --csv. Nothing was imported."
        )
    _known(where, row_by, head, "--row-by")
    found = []
    for _, cells in lines:
        rest = {name: text for name, text in cells.items() if name not in (*_OF_WANDB, row_by) and text}
        seed, fields = seed_of(rest, seed_by)
        name, row = cells["Name"], cells.get(row_by, "") if row_by else ""
        run = ExternalRun(run_called(name), name, cells.get("ID", ""), row, seed=seed, fields=fields)
        found.append((run, cells.get("State", "").lower()))
    return found


def _of_json(text: str, where: str, row_by: str, seed_by: str) -> list[tuple[ExternalRun, str]]:
    found = []
    for run in _runs(text, where):
        name = str(run.get("display_name") or run.get("displayName") or run.get("name") or run.get("id") or "")
        config = flat(_plain(_object(run.get("config"), where, name)))
        summary: Any = next((run[key] for key in _SUMMARIES if run.get(key)), {})
        scores = {
            key: score for key, v in flat(_object(summary, where, name)).items() if (score := number(v)) is not None
        }
        metrics = {key: score for key, score in scores.items() if not key.startswith("_")}
        seed, settings = seed_of(config, seed_by)
        row = str(settings.pop(row_by) if row_by in settings else run.get(row_by) or "") if row_by else ""
        if row_by and not row:
            raise UserError(f"{where}, run {name}: it has no {row_by!r}, which --row-by names. Nothing was imported.")
        ours = ExternalRun(
            run_called(name), name, str(run.get("id") or ""), row, seed=seed, settings=settings, metrics=metrics
        )
        found.append((ours, str(run.get("state") or "").lower()))
    return found


def _runs(text: str, where: str) -> list[Mapping[str, Any]]:
    try:
        whole = _loads(text)
    except ValueError:
        try:
            whole = [_loads(line) for line in text.split("\n") if line.strip()]
        except ValueError as error:
            raise UserError(f"{where} is neither JSON nor JSON lines: {error}. Nothing was imported.") from None
    whole = whole.get("runs", [whole]) if isinstance(whole, Mapping) else whole
    if not isinstance(whole, list) or not whole or not all(isinstance(run, Mapping) for run in whole):
        raise UserError(f"{where}: expected a list of runs, each with config and summary. Nothing was imported.")
    return whole


def _loads(text: str) -> Any:
    """JSON. Raises ValueError, also for what nests without end, and for half a character (\\ud800), written nowhere."""
    try:
        found = json.loads(text)
        json.dumps(found, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    return found


def _object(part: Any, where: str, name: str) -> Mapping[str, Any]:
    """An object, also where it is text of its own (as the API's raw attributes have it)."""
    try:
        part = _loads(part) if isinstance(part, str) else part
    except ValueError:
        part = ()
    if part is not None and not isinstance(part, Mapping):
        raise UserError(f"{where}, run {name}: config and summary are JSON objects. Nothing was imported.")
    return part or {}


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Without W&B's own entries and wrappings."""
    own = {name: v for name, v in config.items() if not name.startswith("_")}
    return {n: v["value"] if isinstance(v, Mapping) and "value" in v and set(v) <= {"value", "desc"} else v
            for n, v in own.items()}  # fmt: skip


def _known(where: str, name: str, head: list[str], option: str) -> None:
    if name and name not in head:
        raise UserError(
            f"{where} has no column {name!r}, which {option} names. Its columns are: {', '.join(head)[:1000]}."
        )
