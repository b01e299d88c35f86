"""Runs that were trained elsewhere become rows of a study: which number of theirs goes where.

Everything is decided and checked before anything is written. A row of theirs is a row of the study with
`imported = true`; without a study file one is made.
"""

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ablations.planning.planned import Plan, PlannedRun
from ablations.service.enqueue import member
from ablations.study.messages import number, suggestion
from ablations.study.overrides import toml
from experiments.config import flatten
from experiments.errors import Damaged, UserError, explain_os_errors
from experiments.exchange.external import External, ExternalRun, collect
from experiments.exchange.external import number as as_number
from experiments.exchange.logs import READERS
from experiments.jobs.queue.job import Member
from experiments.store.checksummed import write_json
from experiments.store.durable import whole_folder
from experiments.store.layout import CONFIG, Store, TableRow
from experiments.store.results import RESULT_FILE, EvaluationResult, TrainingResult, seed_value
from experiments.tasks.columns import Column

SETS = ("train", "dev", "val", "valid", "validation", "eval", "test")
SetAndMetric = tuple[str, str]  # set, metric


def read_source(source: str, row_by: str = "", seed_by: str = "") -> External:
    """The runs of runs.csv, mlflow:URI#EXPERIMENT, wandb:EXPORT, trackio:PROJECT, tensorboard:DIR and so on.

    Raises UserError.
    """
    kind, colon, place = source.partition(":")
    kinds = ("mlflow", *READERS)
    if not colon or kind not in kinds:
        kind, place = "csv", source
        if not Path(source).is_file():
            known = ", ".join(f"{name}:…" for name in kinds if name != "csv")
            raise UserError(f"There is no file {source}. Write the path of a CSV file, or one of {known}.")
    if kind == "mlflow":
        from experiments.tracking.external import read_mlflow  # with MLflow: it takes two seconds

        return collect(kind, place, read_mlflow, row_by, seed_by)
    return collect(kind, place, READERS[kind], row_by, seed_by)


@dataclass(frozen=True)
class Arrived:
    """A run of theirs with its scores sorted by set, and its row and seed in the study."""

    run: ExternalRun
    row: str
    seed: int
    scores: Mapping[SetAndMetric, float]
    settings: Mapping[str, Any]


def set_and_metric(name: str) -> SetAndMetric:
    """ "dev/bleu", "dev.bleu" and "dev_bleu" are bleu of dev; "bleu" is that of test."""
    set_, slash, metric = name.rpartition("/")
    if slash and metric:
        return set_.replace("/", "."), metric
    for mark in (".", "_"):
        first, found, rest = name.partition(mark)
        if found and rest and first in SETS:
            return first, rest
    return "test", name


def metrics_of_scores(foreign: External, metrics: Sequence[str], columns: Sequence[Column]) -> dict[str, SetAndMetric]:
    """Their names of scores → set and metric: those of `metrics`, else all that the study's columns print.

    Raises UserError where none is found, or where a name of `metrics` is not among theirs.
    """
    named = foreign.metrics or foreign.settings
    lacking = [name for name in metrics if name not in named]
    if lacking:
        raise UserError(
            f"--metric {lacking[0]}: {foreign.source} has no such metric. {suggestion(lacking[0], named, 'names')}"
        )
    if metrics:
        found = {name: set_and_metric(name) for name in metrics}
    elif columns:
        found = {name: score for column in columns for name, score in _spelt(column, columns, named)}
    else:
        found = {name: set_and_metric(name) for name in named if foreign.metrics or "/" in name}
    if not found:
        what = "has no metric that the study prints" if columns else "does not say which of its columns are metrics"
        raise UserError(f"{foreign.source} {what}. Name them with --metric A,B. Its columns: {', '.join(named[:40])}.")
    twice = [score for score in found.values() if list(found.values()).count(score) > 1]
    if twice:
        names = ", ".join(name for name, score in found.items() if score == twice[0])
        raise UserError(f"{names} are all {twice[0][1]} of {twice[0][0]}: name one with --metric.")
    return found


def _spelt(column: Column, columns: Sequence[Column], named: Iterable[str]) -> list[tuple[str, SetAndMetric]]:
    """The name among theirs that means a column: with its set, else its key, else the metric alone."""
    sets = {other.set for other in columns if other.metric == column.metric}
    alone = [column.metric] if len(sets) == 1 else []
    wanted = [f"{column.set}{mark}{column.metric}" for mark in ("/", ".", "_")] + [column.key, *alone]
    known = list(named)
    name = next((one for one in wanted if one in known), "")
    return [(name, (column.set, column.metric))] if name else []


def arrive(
    foreign: External,
    found: Mapping[str, SetAndMetric],
    only: Sequence[str] | None,
    planned: Mapping[str, Sequence[int]] | None,
) -> list[Arrived]:
    """Every run with its row, seed and scores. Raises UserError.

    only: settings that count; None for all. planned: seeds of the study's imported rows; None: there is no study yet.
    """
    runs = _named([_sorted(run, bool(foreign.metrics), found, only) for run in foreign.runs])
    grouped: dict[str, list[ExternalRun]] = {}
    for run in runs:
        grouped.setdefault(run.row, []).append(run)
    arrived = []
    for row, members in grouped.items():
        _same_settings(row, members)
        for run, seed in zip(members, _seeds(row, members, planned), strict=True):
            scores = {found[name]: score for name, score in run.metrics.items()}
            arrived.append(Arrived(run, row, seed, scores, run.settings))
    return arrived


def _sorted(run: ExternalRun, told: bool, found: Mapping[str, SetAndMetric], only: Sequence[str] | None) -> ExternalRun:
    """The run's scores, and its settings. told: the source says which columns are metrics."""
    columns, scores = run.metrics if told else run.settings, {}
    for name in columns.keys() & found.keys():
        scores[name] = as_number(columns[name])
        if scores[name] is None:
            raise UserError(f"{run.where}: {name} = {columns[name]!r} is not a number.")
    taken = {*found, *(metric for _, metric in found.values())}
    settings = {n: v for n, v in run.settings.items() if told or not (n in taken or "/" in n)}
    return replace(run, metrics=scores, settings={n: v for n, v in settings.items() if only is None or n in only})


def _named(runs: Sequence[ExternalRun]) -> list[ExternalRun]:
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
                f"letters from A to Z, digits, dots, dashes and underscores. Rename one of them."
            )
    return [replace(run, row=as_key(name)) for run, name in zip(runs, theirs, strict=True)]


def _short(name: str, given: Any) -> str:
    return given if isinstance(given, str) and given else f"{name.rpartition('.')[2]}{'' if given is None else given}"


def as_key(text: str) -> str:
    """A key of a row or a group: letters, digits, dot, dash, underscore."""
    key = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")
    if not key or len(key) > 64:
        raise UserError(
            f"{text[:80]!r} cannot be a row's key or a group (letters, digits, dots, dashes, at most 64): name rows "
            f"with --row-by, or choose fewer settings with --settings A,B."
        )
    return key


def _same_settings(row: str, runs: Sequence[ExternalRun]) -> None:
    for run in runs[1:]:
        names = {*run.settings, *runs[0].settings}
        other = sorted(n for n in names if run.settings.get(n) != runs[0].settings.get(n))
        if other:
            raise UserError(
                f"{runs[0].where} and {run.where} are of the row {row}, and differ in {', '.join(other[:5])}: a row's "
                "runs differ in the seed alone. Give them different rows, or name the settings that count: "
                f"--settings A,B."
            )


def _seeds(row: str, runs: Sequence[ExternalRun], planned: Mapping[str, Sequence[int]] | None) -> list[int]:
    """The study's seeds of a row's runs: theirs where the study has these, else numbered in their order."""
    theirs = [seed_value(run.seed) for run in runs]
    if len(runs) > 1 and (len(set(theirs)) < len(runs) or "" in theirs):
        same = next((s for s in theirs if s != "" and theirs.count(s) > 1), "")
        what = f"{theirs.count(same)} runs have the seed {same}" if same != "" else "not every run has a seed"
        raise UserError(
            f"The row {row} has {number(len(runs), 'run')}, and {what} ({', '.join(run.where for run in runs[:4])}). "
            "Name the column of the seed, or more of what tells rows apart (import: --seed-by, --row-by; tabulate: "
            f"--seed, --row)."
        )
    ours = range(1, len(runs) + 1) if planned is None else planned.get(row, ())
    if planned is not None and row not in planned:
        raise UserError(
            f"The study has no imported row {row!r}. {suggestion(row, planned, 'imported rows')} Add it to the study: "
            f'[[variation]] with key = "{row}" and imported = true; or name the column of the row with --row-by NAME.'
        )
    if len(runs) > len(ours):
        raise UserError(
            f"The row {row} has {number(len(runs), 'run')} there and {number(len(ours), 'seed')} in the study: write "
            f"seeds = {len(runs)} in the row."
        )
    return _numbers(theirs, ours)


def _numbers(theirs: Sequence[int | str], ours: Sequence[int]) -> list[int]:
    """A number of the study for each of their seeds: the seed itself where the study has it, else a free number.

    Free numbers are given in rising order of the seeds, texts last, in their order. A number only counts a row's runs:
    pairs are found by the seeds' values (reports/results/significance.py).
    """
    found: dict[int | str, int] = {seed: seed for seed in theirs if isinstance(seed, int) and seed in ours}
    others = [seed for seed in theirs if seed not in found]
    free = iter([seed for seed in ours if seed not in found])
    numbers = dict(found)
    numbers |= {seed: next(free) for seed in sorted(one for one in others if isinstance(one, int))}
    numbers |= {seed: next(free) for seed in others if isinstance(seed, str)}
    return [numbers[seed] for seed in theirs]


# --- Write them into a store, as records marked `imported`. Called when all is checked


class Written(NamedTuple):
    """What became of the runs: numbers of runs written, found there with the same numbers, and replaced."""

    new: int
    had: int
    replaced: int


class Record(NamedTuple):
    """A run as the store has it."""

    run: PlannedRun
    arrived: Arrived
    training: TrainingResult
    evaluations: dict[str, EvaluationResult]  # by eval_id


def write_runs(plan: Plan, store: Store, foreign: External, arrived: Sequence[Arrived], *, replace: bool) -> Written:
    """Write them; the caller holds the store's lock. Raises UserError, before the first is written, where a run is
    there already with other numbers and `replace` is not given."""
    records = records_of(plan, foreign, arrived)
    before = [_there(store, record) for record in records]
    other = [record for record, how in zip(records, before, strict=True) if how == "other"]
    if other and not replace:
        named = ", ".join(record.run.name for record in other[:5])
        raise UserError(
            f"Imported before, with other numbers or settings: {named}{' …' if len(other) > 5 else ''}. Add --replace "
            f"to take those of {foreign.source} in their place."
        )
    changed = [record for record, how in zip(records, before, strict=True) if how != "same"]
    for record in changed:
        with explain_os_errors(f"write to the store {store.root}"):
            _write(store, record, member(plan, record.run))
    return Written(before.count(""), before.count("same"), before.count("other"))


def records_of(plan: Plan, foreign: External, arrived: Sequence[Arrived]) -> list[Record]:
    """The records of their runs in the plan's rows."""
    planned = {(run.row, run.seed): run for run in plan.runs if run.imported}
    return [_record(planned[one.row, one.seed], one, foreign) for one in arrived]


def _record(run: PlannedRun, one: Arrived, foreign: External) -> Record:
    declared = dict(flatten(run.config))
    rest = {n: v for n, v in one.settings.items() if n not in declared}
    imported: dict[str, Any] = {"kind": foreign.kind, "source": foreign.source, "t": round(foreign.t, 3)}
    imported |= {"settings": rest} if rest else {}
    for name, text in (("sha256", foreign.sha256), ("name", one.run.name), ("id", one.run.id), ("seed", one.run.seed)):
        imported |= {name: text} if text else {}
    training = TrainingResult.read(
        {
            "run_id": run.run_id,
            "imported": imported,
            "attempt": 1,
            "task": run.config.task,
            "config": run.config.model_dump(mode="json"),
            "inputs": dict(run.inputs),
        }
    )
    evaluations = {}
    for planned in run.evaluations:
        scores = {metric: score for (set_, metric), score in one.scores.items() if set_ == planned.spec.set}
        if scores:
            evaluations[planned.eval_id] = EvaluationResult.read(
                {
                    "run_id": run.run_id,
                    "eval_id": planned.eval_id,
                    **asdict(planned.spec),
                    "attempt": 1,
                    "weights_attempt": 1,
                    "metrics": scores,
                }
            )
    return Record(run, one, training, evaluations)


def _there(store: Store, record: Record) -> str:
    """ "" if the run is not in the store, "same" if it is with the same numbers and settings, else "other"."""
    run_id = record.run.run_id
    try:
        known = store.result(run_id)
        if known is None or known.imported is None:
            return ""
        kept = {e.eval_id: store.evaluation(run_id, e.eval_id) for e in record.run.evaluations}
    except Damaged:
        return "other"
    scores = {eval_id: dict(made.metrics) for eval_id, made in kept.items() if made is not None}
    same = repr(scores) == repr({eval_id: dict(made.metrics) for eval_id, made in record.evaluations.items()})
    theirs = (record.training.imported.settings, record.training.imported.seed) if record.training.imported else None
    return "same" if same and (known.imported.settings, known.imported.seed) == theirs else "other"


def _write(store: Store, record: Record, of: Member) -> None:
    """The whole folder at once: a run is imported, or it is not."""
    folder = store.run_folder(record.run.run_id)
    described: Mapping[str, Any] = {
        "run_id": record.run.run_id,
        "config": record.run.config.model_dump(mode="json"),
        "inputs": dict(record.run.inputs),
        "row": asdict(TableRow(of, {str(made.set): eval_id for eval_id, made in record.evaluations.items()})),
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(folder, replace=True) as beside:
        write_json(beside / CONFIG, described)
        parts: dict[str, TrainingResult | EvaluationResult] = {"attempts/0001": record.training}
        parts |= {f"evaluations/{eval_id}": made for eval_id, made in record.evaluations.items()}
        for inner, result in parts.items():
            (beside / inner).mkdir(parents=True)
            result.write(beside / inner / RESULT_FILE)
        record.training.write(beside / RESULT_FILE)


def unknown_settings(arrived: Iterable[Arrived], plan: Plan) -> list[str]:
    """Settings of theirs that the study's task does not have; they are kept with the runs (`ablations explain`)."""
    declared = {name for run in plan.runs for name, _ in flatten(run.config)}
    return sorted({name for one in arrived for name in one.settings if setting_name(name) not in declared})


def refuse_other_settings(arrived: Iterable[Arrived], plan: Plan) -> None:
    """Raises UserError where a setting of theirs is another one in the study's row."""
    configs = {run.row: dict(flatten(run.config)) for run in plan.runs if run.imported}
    for one in arrived:
        ours = configs[one.row]
        for name, given in one.settings.items():
            if (known := setting_name(name)) in ours and ours[known] != given:
                raise UserError(
                    f"{one.run.where}: {name} is {given!r}, and the row {one.row} of the study has {ours[known]!r}. "
                    f"Correct the row's `set`, or leave the column out with --settings."
                )


# --- A study file for them, where there is none yet: its rows, settings and metrics


LOWER = re.compile(
    r"(^|[_.])(loss|perplexity|ppl|nll|error|err|wer|cer|mse|mae|rmse|bpc|bpb|fid)($|[_.])", re.IGNORECASE
)
_NAME = re.compile(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*")


def study_text(
    name: str,
    source: str,
    arrived: Sequence[Arrived],
    metrics: Mapping[str, SetAndMetric],
    better: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """The file. The first row is the one that changes are from. Raises UserError for a name that TOML cannot have.

    better: "lower" or "higher", by their names of the metrics; by what the names mean where it is not said.
    """
    first: dict[str, Arrived] = {}  # of each row, in their order
    for one in arrived:
        first.setdefault(one.row, one)
    names = dict.fromkeys(name for one in first.values() for name in one.settings)
    varying = [n for n in names if len({repr(one.settings.get(n)) for one in first.values()}) > 1]
    base = next(iter(first))
    seeds = {row: sum(one.row == row for one in arrived) for row in first}
    known = {n: next(v for one in first.values() if (v := one.settings.get(n)) is not None) for n in names}
    head = [f"name = {_text(name)}", f"title = {_text(f'Runs of {source}')}", 'task = "imported"', ""]
    settings = [f"{_setting(n)} = {_value(first[base].settings.get(n, _unset(known[n])))}" for n in names]
    parts = [*head, *(["[base]", *settings, ""] if settings else [])]
    for theirs, (set_, metric) in {score: (name, score) for name, score in metrics.items()}.values():
        direction = better.get(theirs) or ("lower" if LOWER.search(metric) else "higher")
        parts += ["[[metric]]", f"name = {_text(metric)}", f"set = {_text(set_)}"]
        parts += [f"head = {_text(metric)}"] if theirs == metric else []  # they name no set
        values = [[one.scores.get((set_, metric), math.nan) for one in arrived if one.row == row] for row in first]
        parts += [f'better = "{direction}"', f"digits = {digits(values)}", ""]
    for row, one in first.items():
        parts += ["[[variation]]", f"key = {_text(row)}", "imported = true"]
        parts += [f"group = {_text(as_key(one.run.group))}"] if one.run.group else []
        parts += [f"seeds = {seeds[row]}"] if seeds[row] > 1 else []
        changed = {n: one.settings.get(n, _unset(known[n])) for n in varying}
        changed = {n: v for n, v in changed.items() if v != first[base].settings.get(n, _unset(known[n]))}
        inner = ", ".join(f"{_setting(n)} = {_value(v)}" for n, v in changed.items())
        parts += [f"set = {{{inner}}}", ""] if inner else [""]
    return "\n".join(parts).rstrip() + "\n"


def digits(rows: Sequence[Sequence[float]]) -> int:
    """Digits after the point: two of the spread within rows; of single values as many as they have, up to 4."""
    spreads = [statistics.stdev(values) for values in rows if len(values) > 1 and all(map(math.isfinite, values))]
    if spreads and (spread := statistics.median(spreads)) > 0:
        return min(max(1 - math.floor(math.log10(spread)), 0), 6)
    finite = [value for values in rows for value in values if math.isfinite(value)]
    written = (f"{value:.10g}".partition(".")[2] for value in finite)
    return min(max(map(len, written), default=2), 4)


def _unset(like: Any) -> Any:
    """What stands for a setting that a run does not have: of the same kind as others have it."""
    return {bool: False, int: 0, float: 0, list: []}.get(type(like), "")


def setting_name(name: str) -> str:
    """Their name of a setting as a study has it: signs other than letters, digits, . _ - become underscores."""
    return re.sub(r"[^\w.-]", "_", name)


def _setting(name: str) -> str:
    clean = setting_name(name)
    if not _NAME.fullmatch(clean) or not clean.isascii():
        raise UserError(f"The setting {name!r} cannot stand in a study: choose others with --settings A,B.")
    return clean


def _value(given: Any) -> str:
    if isinstance(given, float) and not math.isfinite(given):
        raise UserError(f"A setting is {given}: choose others with --settings A,B.")
    return toml(given)


def _text(words: str) -> str:
    return toml("".join(c for c in words if c.isprintable()))
