"""Runs that were trained elsewhere become rows of a study: which number of theirs goes where.

Everything is decided and checked before anything is written (foreign_store.py writes). A row of theirs is a row of the
study with `imported = true`; without a study file one is made (foreign_study.py).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ablations.study.messages import number, suggestion
from experiments.errors import UserError
from experiments.exchange.foreign.runs import Foreign, ForeignRun, value
from experiments.exchange.foreign.runs import number as as_number
from experiments.tasks.columns import Column

SETS = ("train", "dev", "val", "valid", "validation", "eval", "test")
Place = tuple[str, str]  # set, metric
NOTHING = "Nothing was imported."


@dataclass(frozen=True)
class Arrived:
    """A run of theirs with its scores sorted by set, and its row and seed in the study."""

    run: ForeignRun
    row: str
    seed: int
    scores: Mapping[Place, float]
    settings: Mapping[str, Any]


def place_of(name: str) -> Place:
    """ "dev/bleu", "dev.bleu" and "dev_bleu" are bleu of dev; "bleu" is that of test."""
    set_, slash, metric = name.rpartition("/")
    if slash and metric:
        return set_.replace("/", "."), metric
    for mark in (".", "_"):
        first, found, rest = name.partition(mark)
        if found and rest and first in SETS:
            return first, rest
    return "test", name


def places(foreign: Foreign, metrics: Sequence[str], columns: Sequence[Column]) -> dict[str, Place]:
    """Their names of scores → set and metric: those of `metrics`, else all that the study's columns print.

    Raises UserError where none is found, or where a name of `metrics` is not among theirs.
    """
    named = list(dict.fromkeys(name for run in foreign.runs for name in (*run.metrics, *run.fields)))
    lacking = [name for name in metrics if name not in named]
    if lacking:
        raise UserError(
            f"--metrics {lacking[0]}: {foreign.source} has no such metric. "
            f"{suggestion(lacking[0], named, 'names')} {NOTHING}"
        )
    if metrics:
        found = {name: place_of(name) for name in metrics}
    elif columns:
        found = {name: place for column in columns for name, place in _spelt(column, columns, named)}
    else:
        found = {name: place_of(name) for run in foreign.runs for name in run.metrics}
        found |= {name: place_of(name) for run in foreign.runs for name in run.fields if "/" in name}
    if not found:
        what = "has no metric that the study prints" if columns else "does not say which of its columns are metrics"
        raise UserError(
            f"{foreign.source} {what}. Name them with --metrics A,B. Its columns: {', '.join(named[:40])}. {NOTHING}"
        )
    twice = [place for place in found.values() if list(found.values()).count(place) > 1]
    if twice:
        names = ", ".join(name for name, place in found.items() if place == twice[0])
        raise UserError(f"{names} are all {twice[0][1]} of {twice[0][0]}: name one with --metrics. {NOTHING}")
    return found


def _spelt(column: Column, columns: Sequence[Column], named: Iterable[str]) -> list[tuple[str, Place]]:
    """The name among theirs that means a column: with its set, else its key, else the metric alone."""
    sets = {other.set for other in columns if other.metric == column.metric}
    alone = [column.metric] if len(sets) == 1 else []
    wanted = [f"{column.set}{mark}{column.metric}" for mark in ("/", ".", "_")] + [column.key, *alone]
    known = list(named)
    name = next((one for one in wanted if one in known), "")
    return [(name, (column.set, column.metric))] if name else []


def arrive(
    foreign: Foreign,
    found: Mapping[str, Place],
    only: Sequence[str] | None,
    planned: Mapping[str, Sequence[int]] | None,
) -> list[Arrived]:
    """Every run with its row, seed and scores. Raises UserError.

    only: settings that count; None for all. planned: seeds of the study's imported rows; None: there is no study yet.
    """
    runs = [_sorted(run, found, only) for run in foreign.runs]
    runs = _named(runs)
    grouped: dict[str, list[ForeignRun]] = {}
    for run in runs:
        grouped.setdefault(run.row, []).append(run)
    arrived = []
    for row, members in grouped.items():
        _same_settings(row, members)
        for run, seed in zip(members, _seeds(row, members, planned), strict=True):
            scores = {found[name]: score for name, score in run.metrics.items()}
            arrived.append(Arrived(run, row, seed, scores, run.settings))
    return arrived


def _sorted(run: ForeignRun, found: Mapping[str, Place], only: Sequence[str] | None) -> ForeignRun:
    """The run's columns apart: scores, and settings."""
    scores = {name: score for name, score in run.metrics.items() if name in found}
    for name, text in run.fields.items():
        if name in found:
            score = as_number(text)
            if score is None:
                raise UserError(f"{run.where}: {name} = {text!r} is not a number. {NOTHING}")
            scores[name] = score
    bare = {place[1] for place in found.values()} | {name for name in found if "/" in name}
    rest = {n: value(t) for n, t in run.fields.items() if n not in found and n not in bare and "/" not in n}
    settings = {**run.settings, **rest}
    settings = {name: v for name, v in settings.items() if only is None or name in only}
    return replace(run, metrics=scores, settings=settings, fields={})


def _named(runs: Sequence[ForeignRun]) -> list[ForeignRun]:
    """The runs with their rows: as the source names them, else by the settings in which they differ."""
    theirs = [run.row for run in runs]
    if not all(theirs):
        names = dict.fromkeys(name for run in runs for name in run.settings)
        varying = [n for n in names if len({repr(run.settings.get(n)) for run in runs}) > 1]
        theirs = ["-".join(_short(n, run.settings.get(n)) for n in varying) or "base" for run in runs]
    meant: dict[str, str] = {}
    for name in theirs:
        if (other := meant.setdefault(as_key(name), name)) != name:
            raise UserError(
                f"The rows {other!r} and {name!r} would both be called {as_key(name)!r}, because a row's key has only "
                f"letters from A to Z, digits, dots, dashes and underscores. Rename one of them. {NOTHING}"
            )
    return [replace(run, row=as_key(name)) for run, name in zip(runs, theirs, strict=True)]


def _short(name: str, given: Any) -> str:
    return f"{name.rpartition('.')[2]}{'' if given is None else given}"


def as_key(text: str) -> str:
    """A key of a row or a group: letters, digits, dot, dash, underscore."""
    key = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")
    if not key or len(key) > 64:
        raise UserError(
            f"{text[:80]!r} cannot be a row's key or a group (letters, digits, dots, dashes, at most 64): name rows "
            f"with --row-by, or choose fewer settings with --settings A,B. {NOTHING}"
        )
    return key


def _same_settings(row: str, runs: Sequence[ForeignRun]) -> None:
    for run in runs[1:]:
        names = {*run.settings, *runs[0].settings}
        other = sorted(n for n in names if run.settings.get(n) != runs[0].settings.get(n))
        if other:
            raise UserError(
                f"{runs[0].where} and {run.where} are of the row {row}, and differ in {', '.join(other[:5])}: a row's "
                "runs differ in the seed alone. Give them different rows, or name the settings that count: "
                f"--settings A,B. {NOTHING}"
            )


def _seed(text: str) -> int | str:
    """A number, so that 1, 01 and 1.0 are the same seed; else the text."""
    if text.isdecimal() and len(text) < 100:
        return int(text)
    found = as_number(text)
    return int(found) if found is not None and abs(found) < 1 << 53 and found.is_integer() else text


def _seeds(row: str, runs: Sequence[ForeignRun], planned: Mapping[str, Sequence[int]] | None) -> list[int]:
    """The study's seeds of a row's runs: theirs where the study has these, else numbered in their order."""
    theirs = [_seed(run.seed) for run in runs]
    if len(runs) > 1 and (len(set(theirs)) < len(runs) or "" in theirs):
        same = next((s for s in theirs if s != "" and theirs.count(s) > 1), "")
        what = f"{theirs.count(same)} runs have the seed {same}" if same != "" else "not every run has a seed"
        raise UserError(
            f"The row {row} has {number(len(runs), 'run')}, and {what} ({', '.join(run.where for run in runs[:4])}). "
            f"Name the column of the seed with --seed-by, or give other rows with --row-by. {NOTHING}"
        )
    ours = range(1, len(runs) + 1) if planned is None else planned.get(row, ())
    if planned is not None and row not in planned:
        raise UserError(
            f"The study has no imported row {row!r}. {suggestion(row, planned, 'imported rows')} Add it to the study: "
            f'[[variation]] with key = "{row}" and imported = true. {NOTHING}'
        )
    if len(runs) > len(ours):
        raise UserError(
            f"The row {row} has {number(len(runs), 'run')} there and {number(len(ours), 'seed')} in the study: write "
            f"seeds = {len(runs)} in the row. {NOTHING}"
        )
    if all(seed in ours for seed in theirs):
        return [int(seed) for seed in theirs]
    order = sorted(range(len(runs)), key=lambda i: (True, i) if isinstance(one := theirs[i], str) else (False, one))
    return [ours[order.index(i)] for i in range(len(runs))]
