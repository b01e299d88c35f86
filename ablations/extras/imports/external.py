"""Runs of other programs: the record that every reader returns, and the reader of W&B's exports.

A reader (extension point `readers`) yields the runs of a source unchanged. `collect` finds their seeds and rows, and
keeps the numbers and settings that a study can have.
"""

import hashlib
import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ablations.extras.imports.delimited import read_table, text_of
from experiments.errors import UserError
from experiments.masking import masked, masked_message, masked_value

SEED_NAMES = ("seed", "random_seed", "training.seed", "args.seed")


@dataclass(frozen=True)
class ExternalRun:
    """A run of another program."""

    name: str = ""
    id: str = ""
    status: str = ""  # "" if the run has finished
    row: str = ""  # name of the row in the source; "" if it has none
    group: str = ""
    seed: str = ""  # "" if the run has no seed
    text: bool = False  # True if all settings are text, so that numbers must be parsed
    labels: Mapping[str, str] = field(default_factory=dict)  # texts that are not settings, such as MLflow's tags
    settings: Mapping[str, Any] = field(default_factory=dict)  # dotted name → value
    metrics: Mapping[str, Any] = field(default_factory=dict)  # name in the source, such as "bleu" or "dev/bleu" → score
    examples: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)  # set → scores of each example
    places: Mapping[str, int] = field(default_factory=dict)  # name of column → its number, for a file
    better: Mapping[str, str] = field(default_factory=dict)  # metric → direction, if the source declares it

    def at(self, name: str) -> str:
        """Return the run, and the column of a file, for messages."""
        return f"{self.where}, column {self.places[name]}" if name in self.places else self.where

    @property
    def where(self) -> str:
        """The name of the run for messages, on one line and shortened."""
        name = " ".join(self.name.split())[:80]
        return name if name.startswith("line ") else f"run {name}"

    @property
    def unfinished(self) -> str:
        """The reason why the run is left out, or "" if it is used."""
        no_score = "" if self.text or self.metrics else "it has no score"
        return f"its status is {self.status}" if self.status else no_score


@dataclass(frozen=True)
class External:
    """The runs of a source that are used, and notes on what was left out."""

    kind: str
    source: str
    runs: tuple[ExternalRun, ...]
    sha256: str | None = None  # None if the source is not a file
    left_out: tuple[str, ...] = ()  # one sentence for each omission
    better: Mapping[str, str] = field(default_factory=dict)  # metric → "lower" or "higher", if the source declares it
    t: float = field(default_factory=time.time)  # time of the import

    @property
    def settings(self) -> list[str]:
        """All names of settings, in the order of the source."""
        return list(dict.fromkeys(name for run in self.runs for name in run.settings))

    @property
    def metrics(self) -> list[str]:
        """All names of metrics. Empty if the source does not declare which of its columns are metrics."""
        return list(dict.fromkeys(name for run in self.runs for name in run.metrics))


Reader = Callable[[str], Iterator[ExternalRun | str]]  # a text is a note on what the reader left out


def collect(kind: str, place: str, read: Reader, row_by: str = "", seed_by: str = "") -> External:
    """Return the finished runs of a source, with their rows and seeds.

    row_by, seed_by: the settings or labels that contain the row and the seed; "" for the usual ones. Raises UserError
    if there is no finished run, or if a run cannot be read.
    """
    shown = masked(place)
    try:
        read_all = list(read(place))
        runs = [_named(run) for run in read_all if isinstance(run, ExternalRun)]
        own = "_" if kind in ("wandb", "trackio") else ""
        kept = _equal_numbers([_found(run, row_by, seed_by, own) for run in runs if not run.unfinished])
        if seed_by and kept and not any(run.seed for run in kept):
            raise _lacks(kept[0], seed_by)
        words = [[run.row, run.group, run.seed, run.settings, list(run.metrics)] for run in kept]
        json.dumps(words, ensure_ascii=False, default=str).encode()  # raises for unpaired surrogates
    except UserError as error:
        raise UserError(masked_message(f"{kind}:{shown}: {error}")) from None
    except Exception as error:  # any error of csv, sqlite3, protocol buffers, MLflow …
        said = " ".join(str(error).split())
        if isinstance(error, OSError) and error.strerror:
            said = f"{error.filename or shown}: {error.strerror}"
        elif not isinstance(error, OSError):
            said = f"{type(error).__name__}: {said}"
        why = masked_message(said)[:500]
        raise UserError(f"{kind}:{shown} cannot be read: {why}.") from None
    left_out = (
        *(f"{run.where}: {run.unfinished}" for run in runs if run.unfinished),
        *(text for text in read_all if isinstance(text, str)),
    )
    if not kept:
        raise UserError(f"{kind}:{shown} has no finished run{f' ({left_out[0]})' if left_out else ''}.")
    file = Path(place)
    digest = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None
    better = {name: way for run in kept for name, way in run.better.items()}
    return External(kind, Path(shown).name, kept, digest, left_out, better)


def _named(run: ExternalRun) -> ExternalRun:
    """Return the run with name and id as text. A source may have null, numbers or unpaired surrogates there."""
    name, id_ = _text(run.name), _text(run.id)
    return replace(run, name=name or id_ or "without a name", id=id_)


def _text(given: Any) -> str:
    if given is None:
        return ""
    text = given.decode(errors="replace") if isinstance(given, bytes) else str(given)
    return text.encode(errors="replace").decode()


def _equal_numbers(runs: Sequence[ExternalRun]) -> tuple[ExternalRun, ...]:
    """Return the runs with an integer setting as a float if another run has the same value as a float.

    So 1 and 1.0 are equal settings.
    """
    whole: dict[str, set[Any]] = {}
    for run in runs:
        for name, given in run.settings.items():
            if isinstance(given, float) and given.is_integer():
                whole.setdefault(name, set()).add(given)
    return tuple(
        replace(
            run,
            settings={
                name: float(given) if type(given) is int and given in whole.get(name, ()) else given
                for name, given in run.settings.items()
            },
        )
        for run in runs
    )


def _found(run: ExternalRun, row_by: str, seed_by: str, own: str) -> ExternalRun:
    """Return the run with its row, its seed, its scores, and its settings as values.

    own: prefix of settings and metrics that the other program adds itself, or "". Names with this prefix are dropped.
    """
    settings = {name: v for name, v in flat(run.settings).items() if not (own and name.startswith(own))}
    settings = {name: masked_value(v) for name, v in settings.items()}
    settings = {name: str(v) if isinstance(v, float) and not math.isfinite(v) else v for name, v in settings.items()}
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
    scores = {name: number(v) for name, v in flat(run.metrics).items() if not (own and name.startswith(own))}
    metrics = {name: score for name, score in scores.items() if score is not None}
    whole = {name: of for name, of in run.examples.items() if of and all(None not in one.values() for one in of)}
    return replace(run, row=row, seed=[*seeds, run.seed][0], settings=settings, metrics=metrics, examples=whole)


def _lacks(run: ExternalRun, name: str) -> UserError:
    return UserError(f"{run.where} has no {name!r}. It has: {', '.join([*run.settings, *run.labels])[:1000]}.")


def number(text: Any) -> float | None:
    """Return a number, which may be infinite or NaN. Return None for anything else, also for Python's 1_000."""
    if isinstance(text, bool) or (isinstance(text, str) and "_" in text):
        return None
    try:
        return float(str(text))  # via text, because float() of a huge integer raises OverflowError
    except ValueError:
        return None


_GAPS = {"", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "-", "–", "—", "?"}


def is_gap(cell: Any) -> bool:
    """Return whether a cell means "no number", such as NA, N/A, #N/A, nan, null, None, a dash or nothing."""
    return cell is None or (isinstance(cell, str) and cell.strip().lower() in _GAPS)


def why_not(cell: Any) -> str:
    """Return the reason why a cell is not a number, in parentheses; "" if it is unknown."""
    text = str(cell).strip()
    if re.fullmatch(r"[-+]?\d+,\d+", text):
        return " (a comma may be a decimal point or separate thousands: write 1234.5)"
    if re.fullmatch(r"[-+]?\d{1,3}([,.' ]\d{3})+([,.]\d+)?", text):
        return " (write it without separators of thousands: 1234.5)"
    if re.fullmatch(r"[-+−]?[\d.]+\s*%", text):
        return " (write it without %)"
    if "±" in text or "+-" in text or "+/-" in text:
        return " (a mean with a deviation is not a run: write one line per run)"
    if re.fullmatch(r"[-+]?[\d.]+\s*[^\W\d_]+", text):
        return " (write the unit into the column's name)"
    return ""


def as_value(text: Any) -> Any:
    """Return the value of a setting from text: a 64-bit integer, a finite number, true or false, else the text."""
    if not isinstance(text, str):
        return text
    words = {"true": True, "false": False}
    if text.strip().lower() in words:
        return words[text.strip().lower()]
    if re.fullmatch(r"[-+]?0\d+", text.strip()):  # 007 is not a number
        return text
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
    """Return nested settings by dotted name, without null values.

    A list that contains null or objects becomes JSON text, because a study cannot have such a list.
    """
    found: dict[str, Any] = {}
    for name, inner in settings.items():
        if isinstance(inner, Mapping):
            found |= flat(inner, f"{prefix}{name}.")
        elif inner is not None:
            odd = isinstance(inner, list) and any(one is None or isinstance(one, Mapping) for one in inner)
            found[f"{prefix}{name}"] = json.dumps(inner, ensure_ascii=False) if odd else inner
    return found


# Exports of Weights & Biases. The CSV file has the visible columns of the table: Name, State, ID, Group, then config
# and summary. It does not distinguish config and summary. The JSON file has a list of runs. This code writes it:
#     json.dump([{"id": r.id, "name": r.name, "state": r.state, "group": r.group, "config": r.config,
#                 "summary": dict(r.summary)} for r in wandb.Api().runs("ENTITY/PROJECT")], file, default=str)


_OF_WANDB = (
    "Name", "State", "ID", "Group", "Notes", "User", "Tags", "Created", "Runtime", "Sweep", "End Time", "Hostname",
    "Description", "Commit", "GitHub", "GPU Type", "Job Type", "Updated", "Host", "Command",
)  # fmt: skip


def read_wandb_export(place: str) -> Iterator[ExternalRun | str]:
    """Yield the runs of an export. Raises UserError for other content."""
    text = text_of(Path(place))
    if text.lstrip()[:1] == "[":
        for number_, run in enumerate(json.loads(text), 1):
            if not isinstance(run, Mapping):
                raise UserError(f"entry {number_} of its list is {str(run)[:60]!r}, and not a run (an object).")
            labels = {key: given for key, given in run.items() if isinstance(given, str)}
            parts = [run.get(name) or {} for name in ("config", "summary")]
            for name, part in zip(("config", "summary"), parts, strict=True):
                if not isinstance(part, Mapping):
                    raise UserError(f"entry {number_} of its list: {name} is {str(part)[:60]!r}, and not an object.")
            about = run.get("name") or "", run.get("id") or "", _unfinished(run.get("state"))
            yield ExternalRun(*about, labels=labels, settings=parts[0], metrics=parts[1])
        return
    table = read_table(text)
    if "Name" not in table.head:
        columns = ", ".join(table.head)[:1000]
        raise UserError(
            f"the file has no column Name, so it is not an export of a W&B runs table. Its columns: {columns}."
        )
    yield from table.notes
    for _, cells in table.lines:
        own = {name: cells.pop(name, "") for name in _OF_WANDB}
        settings = {name: text for name, text in cells.items() if text}
        state = _unfinished(own["State"])
        yield ExternalRun(own["Name"], own["ID"], state, text=True, labels=own, settings=settings, places=table.places)


def _unfinished(state: Any) -> str:
    return "" if str(state or "").lower() in ("", "finished") else str(state).lower()
