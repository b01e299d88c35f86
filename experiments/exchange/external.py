"""Runs of other programs: what every reader returns, what is made of it alike, and two readers.

A reader (READERS in logs.py) gives the runs of a source as they are there. `collect` finds their seeds and rows, and
keeps numbers and settings that a study can have. Here are the readers of CSV files and of exports of Weights & Biases.
"""

import csv
import hashlib
import io
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from experiments.errors import UserError
from experiments.masking import masked, masked_message, masked_value

SEED_NAMES = ("seed", "random_seed", "training.seed", "args.seed")


@dataclass(frozen=True)
class ExternalRun:
    """A run."""

    name: str = ""
    id: str = ""
    status: str = ""  # of a run that did not finish
    row: str = ""  # as the source names it; "": it does not
    group: str = ""
    seed: str = ""  # "": it has none
    text: bool = False  # whether all settings are text, so that numbers are to be found in it
    labels: Mapping[str, str] = field(default_factory=dict)  # that are no settings: MLflow's tags
    settings: Mapping[str, Any] = field(default_factory=dict)  # by dotted name
    metrics: Mapping[str, Any] = field(default_factory=dict)  # by the source's name: "bleu", "dev/bleu"
    examples: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)  # by set: each example's scores

    @property
    def where(self) -> str:
        """For messages: a name of any length and lines, in a few words."""
        name = " ".join(self.name.split())[:80]
        return name if name.startswith("line ") else f"run {name}"

    @property
    def unfinished(self) -> str:
        """Why it is left out; "": it is not."""
        no_score = "" if self.text or self.metrics else "it has no score"
        return f"its status is {self.status}" if self.status else no_score


@dataclass(frozen=True)
class External:
    """The runs of a source, and what of it is left out."""

    kind: str
    source: str
    runs: tuple[ExternalRun, ...]
    sha256: str | None = None  # of a file
    left_out: tuple[str, ...] = ()  # a sentence each
    t: float = field(default_factory=time.time)

    @property
    def settings(self) -> list[str]:
        """All names of settings, in their order."""
        return list(dict.fromkeys(name for run in self.runs for name in run.settings))

    @property
    def metrics(self) -> list[str]:
        """All names of metrics; none: the source does not say which of the settings are metrics."""
        return list(dict.fromkeys(name for run in self.runs for name in run.metrics))


Reader = Callable[[str], Iterator[ExternalRun]]


def collect(kind: str, place: str, read: Reader, row_by: str = "", seed_by: str = "") -> External:
    """The finished runs of a source, with their rows and seeds.

    row_by, seed_by: the settings or labels that have them, if other than usual. Raises UserError where there is no such
    run, or one cannot be read.
    """
    shown = masked(place)
    try:
        runs = list(read(place))
        kept = tuple(_found(run, row_by, seed_by) for run in runs if not run.unfinished)
        if seed_by and kept and not any(run.seed for run in kept):
            raise _lacks(kept[0], seed_by)
        json.dumps([run.settings for run in kept], ensure_ascii=False, default=str).encode()  # no half characters
    except UserError as error:
        raise UserError(masked_message(f"{kind}:{shown}: {error}")) from None
    except Exception as error:  # of csv, sqlite3, protocol buffers, MLflow …: whatever keeps it from being read
        why = masked_message(f"{type(error).__name__}: {' '.join(str(error).split())}")[:500]
        raise UserError(f"{kind}:{shown} cannot be read as such a source: {why}.") from None
    left_out = tuple(f"{run.where}: {run.unfinished}" for run in runs if run.unfinished)
    if not kept:
        raise UserError(f"{kind}:{shown}: there is no finished run in it{f' ({left_out[0]})' if left_out else ''}.")
    file = Path(place)
    digest = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None
    return External(kind, Path(shown).name, kept, digest, left_out)


def _found(run: ExternalRun, row_by: str, seed_by: str) -> ExternalRun:
    """The run with its row and seed, settings without a program's own (_name), and scores that are numbers."""
    settings = {name: masked_value(v) for name, v in flat(run.settings).items() if not name.startswith("_")}
    known = {**run.labels, **settings}
    row = str(known.get(row_by, "")) if row_by else run.row
    if row_by and not row:
        raise _lacks(run, row_by)
    seeds = [str(known[name]) for name in ([seed_by] if seed_by else SEED_NAMES) if known.get(name) not in (None, "")]
    settings = {
        name: as_value(v) if run.text else v
        for name, v in settings.items()
        if name not in (row_by, seed_by, *SEED_NAMES)
    }
    scores = {name: number(v) for name, v in flat(run.metrics).items() if not name.startswith("_")}
    metrics = {name: score for name, score in scores.items() if score is not None}
    whole = {name: of for name, of in run.examples.items() if of and all(None not in one.values() for one in of)}
    return replace(run, row=row, seed=[*seeds, run.seed][0], settings=settings, metrics=metrics, examples=whole)


def _lacks(run: ExternalRun, name: str) -> UserError:
    return UserError(f"{run.where} has no {name!r}. It has: {', '.join([*run.settings, *run.labels])[:1000]}.")


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


# --- A CSV file of one's own, long (a line per score) or wide (a line per run):
#     row,seed,set,metric,value          row,seed,lr,dev/bleu,test/bleu
#     base,1,dev,bleu,26.1               base,1,0.1,26.1,25.3
# All but metric and value may be left out. Every other column is a setting or, in a wide file, a metric.


MOST_COLUMNS = 5_000


def read_csv(place: str) -> Iterator[ExternalRun]:
    """The runs of a CSV file. Raises UserError with the line for whatever cannot be read."""
    head, lines = _table(Path(place).read_text(encoding="utf-8-sig"))
    long = {"metric", "value"} <= set(head)
    found: dict[tuple[str, ...], tuple[int, dict[str, str], dict[str, float]]] = {}
    for line, cells in lines:
        if not long:
            found[(str(line),)] = line, cells, {}
            continue
        name, text = f"{cells.pop('set', '') or 'test'}/{cells.pop('metric')}", cells.pop("value")
        first, _, scores = found.setdefault(tuple(cells.values()), (line, cells, {}))
        if name in scores:
            raise UserError(
                f"line {line}: {name} stands there twice for the run of line {first}. Give runs their seeds."
            )
        if (score := number(text)) is None and text:
            raise UserError(f"line {line}: value = {text!r} is not a number.")
        scores |= {} if score is None else {name: score}
    for line, cells, scores in found.values():
        labels = {name: cells.pop(name, "") for name in ("row", "group")}
        settings = {name: text for name, text in cells.items() if text}
        run = ExternalRun(f"line {line}", text=True, labels=labels, settings=settings, metrics=scores)
        yield replace(run, row=labels["row"], group=labels["group"])


def _table(text: str) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """The head, and each line with its number. Raises UserError for a file that is no such table."""
    first = text.partition("\n")[0]
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=first.count), strict=True)
    head = [name.strip() for name in next(reader, [])]
    lines = [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    if "\0" in text:
        raise UserError("it has a NUL, so it is no text.")
    if len(head) > MOST_COLUMNS:
        raise UserError(f"it has {len(head):,} columns: at most {MOST_COLUMNS:,} are read.")
    if len(head) < 2 or "" in head or len(set(head)) < len(head):
        raise UserError("line 1: expected names of columns, separated by commas, each once.")
    for line, cells in lines:
        if len(cells) != len(head):
            raise UserError(f"line {line} has {len(cells)} cells, and the head has {len(head)}.")
    if not lines:
        raise UserError("it has a head and no line below it.")
    return head, [(line, {n: c.strip() for n, c in zip(head, cells, strict=True)}) for line, cells in lines]


# --- Weights & Biases: the CSV of its runs table, or JSON of its API's runs
# CSV: the columns that the table showed: Name, State, ID, Group, then config and summary without a difference between
# them. JSON: a list of runs, which is written by
#     json.dump([{"id": r.id, "name": r.name, "state": r.state, "group": r.group, "config": r.config,
#                 "summary": dict(r.summary)} for r in wandb.Api().runs("ENTITY/PROJECT")], file, default=str)


_OF_WANDB = (
    "Name", "State", "ID", "Group", "Notes", "User", "Tags", "Created", "Runtime", "Sweep", "End Time", "Hostname",
    "Description", "Commit", "GitHub", "GPU Type", "Job Type", "Updated", "Host", "Command",
)  # fmt: skip


def read_wandb_export(place: str) -> Iterator[ExternalRun]:
    """The runs of an export. Raises UserError."""
    text = Path(place).read_text(encoding="utf-8-sig")
    if text.lstrip()[:1] == "[":
        for run in json.loads(text):
            labels = {key: given for key, given in run.items() if isinstance(given, str)}
            about = run.get("name", ""), run.get("id", ""), _unfinished(run.get("state"))
            settings, metrics = run.get("config") or {}, run.get("summary") or {}
            yield ExternalRun(*about, labels=labels, settings=settings, metrics=metrics)
        return
    head, lines = _table(text)
    if "Name" not in head:
        columns = ", ".join(head)[:1000]
        raise UserError(f"it has no column Name, so it is no export of a W&B runs table. Its columns: {columns}.")
    for _, cells in lines:
        own = {name: cells.pop(name, "") for name in _OF_WANDB}
        settings = {name: text for name, text in cells.items() if text}
        yield ExternalRun(own["Name"], own["ID"], _unfinished(own["State"]), text=True, labels=own, settings=settings)


def _unfinished(state: Any) -> str:
    return "" if str(state or "").lower() in ("", "finished") else str(state).lower()
