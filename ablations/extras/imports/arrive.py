"""Import runs that other programs trained: assign each run a row and a seed of a study, and write it to a store.

A row of the source becomes a row of the study that has `imported = true`. All runs are assigned and checked before the
first one is written.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ablations.extras.imports.external import External, ExternalRun, collect, is_gap, why_not
from ablations.extras.imports.external import number as as_number
from ablations.extras.imports.factors import FactorChoice
from ablations.extras.imports.names import as_key, names_in, row_keys
from ablations.planning.plan import Plan, PlannedRun
from ablations.service.enqueue import member
from experiments.dotted import flatten
from experiments.errors import Damaged, UserError, explain_os_errors
from experiments.jobs.queue.job import Member
from experiments.messages import number, suggestion
from experiments.store.checksummed import write_json
from experiments.store.durable import whole_folder
from experiments.store.layout import CONFIG, Store, TableRow
from experiments.store.results import RESULT_FILE, EvaluationResult, TrainingResult, seed_value
from experiments.tasks.columns import Column
from model.extensions import added, load

SETS = ("train", "dev", "val", "valid", "validation", "eval", "test")
SetAndMetric = tuple[str, str]  # name of the set, name of the metric


def read_source(source: str, row_by: str = "", seed_by: str = "") -> External:
    """Read the runs of a source: runs.csv, mlflow:URI#EXPERIMENT, wandb:EXPORT, trackio:PROJECT, tensorboard:DIR …

    row_by, seed_by: see `collect`. Raises UserError for an unknown source, and for one that cannot be read.
    """
    kind, colon, place = source.partition(":")
    readers = added("readers")
    if not colon or kind not in readers:
        kind, place = "csv", source
        if not Path(source).is_file():
            known = ", ".join(f"{name}:…" for name in readers if name != "csv")
            what = f"{source} is a folder" if Path(source).is_dir() else f"There is no file {source}"
            raise UserError(f"{what}. Name a CSV file, or one of {known}.")
    return collect(kind, place, load(readers[kind]), row_by, seed_by)


@dataclass(frozen=True)
class ImportedRun:
    """A run of a source, with its row and seed in the study and its scores per set and metric."""

    run: ExternalRun
    row: str
    seed: int
    scores: Mapping[SetAndMetric, float]
    settings: Mapping[str, Any]
    label: str = ""  # name of the row in the source if it differs from the key


def set_and_metric(name: str) -> SetAndMetric:
    """Split the name of a score into set and metric.

    "dev/bleu", "bleu/dev", "dev.bleu", "bleu.dev" and "dev_bleu" are bleu of the set dev; "bleu" is bleu of test.
    """
    set_, slash, metric = name.rpartition("/")
    if slash and metric:
        if metric.lower() in SETS and set_.lower() not in SETS:
            set_, metric = metric, set_
        return as_key(set_.replace("/", "."), "test"), metric
    before, dot, last = name.rpartition(".")
    if dot and before and last in SETS:
        return last, before
    for mark in (".", "_"):
        first, found, rest = name.partition(mark)
        if found and rest and first in SETS:
            return first, rest
    return "test", name


def metrics_of_scores(foreign: External, metrics: Sequence[str], columns: Sequence[Column]) -> dict[str, SetAndMetric]:
    """Return the set and the metric of each name of a score in the source.

    metrics: the names to use; if empty, all names that belong to a column of the study. Raises UserError if no name is
    found, if the source lacks a name of `metrics`, and if two names mean the same score.
    """
    named = foreign.metrics or foreign.settings
    lacking = [name for name in metrics if name not in named]
    if lacking:
        name, colon, _ = lacking[0].rpartition(":")
        if colon and name in named:
            raise UserError(
                f"--metric {lacking[0]}: write {name}:min if lower is better, or {name}:max if higher is better."
            )
        raise UserError(
            f"--metric {lacking[0]}: {foreign.source} has no such metric. {suggestion(lacking[0], named, 'names')}"
        )
    if metrics:
        found = {name: set_and_metric(name) for name in metrics}
    else:
        found = {name: score for column in columns for name, score in _spelt(column, columns, named)}
    if not found:
        what = "has no metric of the study" if columns else "has no columns that are known to be metrics"
        raise UserError(f"{foreign.source} {what}. Name them with --metric A,B. Its columns: {', '.join(named[:40])}.")
    twice = [score for score in found.values() if list(found.values()).count(score) > 1]
    if twice:
        names = ", ".join(name for name, score in found.items() if score == twice[0])
        raise UserError(f"{names} are all {twice[0][1]} of {twice[0][0]}: name one with --metric.")
    return found


def _spelt(column: Column, columns: Sequence[Column], named: Iterable[str]) -> list[tuple[str, SetAndMetric]]:
    """Return the name in the source that means a column, with the column's set and metric; [] if there is none.

    The name contains the set, or is the key of the column. It may be the metric alone if the metric has only one set.
    """
    sets = {other.set for other in columns if other.metric == column.metric}
    alone = [column.metric] if len(sets) == 1 else []
    wanted = [f"{column.set}{mark}{column.metric}" for mark in ("/", ".", "_")]
    wanted += [f"{column.metric}{mark}{column.set}" for mark in ("/", ".")] + [column.key, *alone]
    known = list(named)
    name = next((one for one in wanted if one in known), "")
    return [(name, (column.set, column.metric))] if name else []


@dataclass(frozen=True)
class Planned:
    """The imported rows of a study."""

    seeds: Mapping[str, Sequence[int]]  # key of row → seeds
    labels: Mapping[str, str]  # label of row → key
    settings: Mapping[str, Mapping[str, Any]]  # key of row → settings
    columns: Mapping[str, str]  # setting → heading

    @classmethod
    def of(cls, plan: Plan) -> "Planned":
        """Return the imported rows of a plan."""
        seeds: dict[str, list[int]] = {}
        for run in plan.runs:
            if run.spec.imported:
                seeds.setdefault(run.row, []).append(run.seed)
        labels = {run.variation.label: run.row for run in plan.runs if run.spec.imported and run.variation.label}
        settings = {run.row: dict(flatten(run.config)) for run in plan.runs if run.spec.imported}
        return cls(seeds, labels, settings, plan.study.columns)

    def with_settings(self, theirs: Mapping[str, Any]) -> str:
        """Return the key of the row with these settings, or "" if no row or several rows have them."""
        declared = {name for settings in self.settings.values() for name in settings}
        names = names_in(self.columns, declared, theirs)
        if not theirs or not declared.issuperset(names.values()):
            return ""
        wanted = {names[name]: repr(given) for name, given in theirs.items() if given not in (None, "")}
        unset = [names[name] for name, given in theirs.items() if given in (None, "")]
        found = [
            key
            for key, settings in self.settings.items()
            if all(repr(settings[name]) == text for name, text in wanted.items())
            and all(settings[name] in (None, "") for name in unset)
        ]
        return found[0] if len(found) == 1 else ""


def arrive(
    foreign: External,
    found: Mapping[str, SetAndMetric],
    choice: FactorChoice,
    planned: Planned | None,
) -> list[ImportedRun]:
    """Assign every run its row, seed and scores. Raises UserError for runs that cannot be assigned.

    choice: the settings that distinguish rows, and all settings to keep. planned: the imported rows of the study; None
    if there is no study yet.
    """
    runs = [_sorted(run, bool(foreign.metrics), found, choice.settings) for run in foreign.runs]
    names = _names_of_rows(runs, choice.rows)
    by_settings = {} if all(run.row for run in runs) else dict(zip(names, runs, strict=True))
    settings = {name: {one: run.settings.get(one) for one in choice.rows} for name, run in by_settings.items()}
    keys = _keys(names, settings, planned)
    grouped: dict[str, list[ExternalRun]] = {}
    for run, name in zip(runs, names, strict=True):
        grouped.setdefault(keys[name], []).append(replace(run, row=name))
    unseeded = not any(run.seed for run in runs)
    arrived = []
    for row, members in grouped.items():
        _same_settings(row, members)
        label = members[0].row if foreign.runs[0].row and members[0].row != row else ""
        for run, seed in zip(members, _seeds(row, members, planned, unseeded), strict=True):
            scores = {found[name]: score for name, score in run.metrics.items()}
            arrived.append(ImportedRun(run, row, seed, scores, run.settings, label))
    return arrived


def _sorted(run: ExternalRun, declared: bool, found: Mapping[str, SetAndMetric], only: Sequence[str]) -> ExternalRun:
    """Return the run with its columns separated into scores and settings.

    declared: True if the source declares which columns are metrics.
    """
    columns, scores = run.metrics if declared else run.settings, dict[str, float]()
    for name in columns.keys() & found.keys():
        score = as_number(columns[name])
        if score is not None:
            scores[name] = score
        elif not is_gap(columns[name]):
            given = columns[name]
            raise UserError(f"{run.at(name)}: {name} = {given!r} is not a number{why_not(given)}.")
    settings = {name: v for name, v in run.settings.items() if name in only and (declared or name not in found)}
    return replace(run, metrics=scores, settings=settings)


def _names_of_rows(runs: Sequence[ExternalRun], varying: Sequence[str]) -> list[str]:
    """Return the row name of each run: the name in the source, or a name made from the settings in `varying`."""
    theirs = [run.row for run in runs]
    if all(theirs):
        return theirs
    if any(theirs):
        without = next(run for run in runs if not run.row)
        raise UserError(f"{without.where} has no row name, but other runs do. Name the rows of all runs, or of none.")
    names: dict[tuple[str, ...], str] = {}  # settings → name of the row
    for run in runs:
        settings = tuple(repr(run.settings.get(name)) for name in varying)
        text = "-".join(_short(name, run.settings.get(name)) for name in varying) or "base"
        if settings not in names:
            taken = list(names.values()).count(text)
            names[settings] = f"{text} ({taken + 1})" if text in names.values() else text
    return [names[tuple(repr(run.settings.get(name)) for name in varying)] for run in runs]


def _short(name: str, given: Any) -> str:
    return given if isinstance(given, str) and given else f"{name.rpartition('.')[2]}{'' if given is None else given}"


def _keys(names: Sequence[str], settings: Mapping[str, Mapping[str, Any]], planned: Planned | None) -> dict[str, str]:
    """Return the key of each row name. With a study, its rows are found by label, by settings or by key.

    settings: the settings of rows that have no name in the source. Raises UserError if two rows get the same key.
    """
    if planned is None:
        return row_keys(names)
    of_settings = {name: planned.with_settings(theirs) for name, theirs in settings.items()}
    keys = {name: planned.labels.get(name) or of_settings.get(name) or as_key(name) for name in names}
    taken: dict[str, str] = {}
    for name, key in keys.items():
        if (other := taken.setdefault(key, name)) != name:
            raise UserError(
                f"The rows {other!r} and {name!r} would both get the key {key!r}, because a row's key has only "
                "letters from A to Z, digits, dots, dashes and underscores. Give the study's rows these names as "
                "`label`."
            )
    return keys


def _same_settings(row: str, runs: Sequence[ExternalRun]) -> None:
    for run in runs[1:]:
        names = {*run.settings, *runs[0].settings}
        other = sorted(n for n in names if run.settings.get(n) != runs[0].settings.get(n))
        if other:
            raise UserError(
                f"{runs[0].where} and {run.where} are of the row {row}, but differ in {', '.join(other[:5])}. Runs of "
                "a row may differ only in the seed. Give them different rows, or name the settings that count: "
                "--settings A,B (tabulate: --row A,B)."
            )


def _seeds(row: str, runs: Sequence[ExternalRun], planned: Planned | None, unseeded: bool) -> list[int]:
    """Return the seed in the study for each run of a row.

    A run keeps the seed of the source if the study has this seed. Other runs get free seeds in order. unseeded: whether
    no run of the source has a seed. If so, the runs of a row are repeats, which form no pairs with runs of other rows.
    """
    theirs = [seed_value(run.seed) for run in runs]
    if len(runs) > 1 and not unseeded and (len(set(theirs)) < len(runs) or "" in theirs):
        same = next((s for s in theirs if s != "" and theirs.count(s) > 1), "")
        what = f"{theirs.count(same)} runs have the seed {same}" if same != "" else "not every run has a seed"
        raise UserError(
            f"The row {row} has {number(len(runs), 'run')}, and {what} ({', '.join(run.where for run in runs[:4])}). "
            "Name the column of the seed, or more of what tells rows apart (import: --seed-by, --row-by; tabulate: "
            f"--seed, --row)."
        )
    ours = range(1, len(runs) + 1) if planned is None else planned.seeds.get(row, ())
    if planned is not None and row not in planned.seeds:
        raise UserError(
            f"The study has no imported row {row!r}. {suggestion(row, planned.seeds, 'imported rows')} Add it to the "
            f'study: [[variation]] with key = "{row}" and imported = true; or name the column of the row with '
            "--row-by NAME."
        )
    if len(runs) > len(ours):
        raise UserError(
            f"The row {row} has {number(len(runs), 'run')} there and {number(len(ours), 'seed')} in the study: write "
            f"seeds = {len(runs)} in the row."
        )
    return list(ours[: len(runs)]) if unseeded else _numbers(theirs, ours)


def _numbers(theirs: Sequence[int | str], ours: Sequence[int]) -> list[int]:
    """Return a seed of the study for each seed of the source: the same seed if the study has it, else a free one.

    Free seeds are assigned first to integer seeds in ascending order, then to seeds that are text. They only number the
    runs of a row. Paired tests use the original seeds (reports/results/significance.py).
    """
    found: dict[int | str, int] = {seed: seed for seed in theirs if isinstance(seed, int) and seed in ours}
    others = [seed for seed in theirs if seed not in found]
    free = iter([seed for seed in ours if seed not in found])
    numbers: dict[int | str, int] = dict(found.items())
    numbers |= {seed: next(free) for seed in sorted(one for one in others if isinstance(one, int))}
    numbers |= {seed: next(free) for seed in others if isinstance(seed, str)}
    return [numbers[seed] for seed in theirs]


class Written(NamedTuple):
    """The numbers of runs that were new, that the store already had with equal scores, and that were replaced."""

    new: int
    had: int
    replaced: int


class Record(NamedTuple):
    """The records of a run, as a store contains them."""

    run: PlannedRun
    arrived: ImportedRun
    training: TrainingResult
    evaluations: dict[str, EvaluationResult]  # eval_id → result


def write_runs(
    plan: Plan, store: Store, foreign: External, arrived: Sequence[ImportedRun], *, replace: bool
) -> Written:
    """Write the runs to the store. The caller holds the store's lock.

    Raises UserError before the first run is written if the store has a run with other numbers and `replace` is False.
    """
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


def records_of(plan: Plan, foreign: External, arrived: Sequence[ImportedRun]) -> list[Record]:
    """Return the records of the runs in the rows of the plan."""
    planned = {(run.row, run.seed): run for run in plan.runs if run.spec.imported}
    names = _ours(arrived, plan)
    return [_record(planned[one.row, one.seed], one, foreign, names) for one in arrived]


def _record(run: PlannedRun, one: ImportedRun, foreign: External, names: Mapping[str, str]) -> Record:
    declared = dict(flatten(run.config))
    rest = {n: v for n, v in one.settings.items() if names[n] not in declared}
    imported: dict[str, Any] = {"kind": foreign.kind, "source": foreign.source, "t": round(foreign.t, 3)}
    imported |= {"settings": rest} if rest else {}
    for name, text in (("sha256", foreign.sha256), ("name", one.run.name), ("id", one.run.id), ("seed", one.run.seed)):
        imported |= {name: text} if text else {}
    training = TrainingResult.read(
        {
            "spec": run.spec.portable.to_json(),
            "imported": imported,
            "attempt": 1,
        }
    )
    evaluations = {}
    for planned in run.evaluations:
        scores = {metric: score for (set_, metric), score in one.scores.items() if set_ == planned.set}
        if scores:
            evaluations[planned.eval_id] = EvaluationResult.read(
                {
                    "run_id": run.run_id,
                    **asdict(planned),
                    "attempt": 1,
                    "weights_attempt": 1,
                    "metrics": scores,
                }
            )
    return Record(run, one, training, evaluations)


def _there(store: Store, record: Record) -> str:
    """Return whether the store has the run: "" if not, "same" with equal numbers and settings, else "other"."""
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
    """Write the folder of a run completely or not at all."""
    folder = store.run_folder(record.run.run_id)
    described: Mapping[str, Any] = {
        **record.run.spec.portable.to_json(),
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


def _ours(arrived: Iterable[ImportedRun], plan: Plan) -> dict[str, str]:
    """Return the setting of the study for each name of a setting in the source."""
    declared = {name for run in plan.runs for name, _ in flatten(run.config)}
    theirs = dict.fromkeys(name for one in arrived for name in one.settings)
    return names_in(plan.study.columns, declared, theirs)


def unknown_settings(arrived: Sequence[ImportedRun], plan: Plan) -> list[str]:
    """Return the settings of the source that the study does not have.

    They are stored with the runs, and `ablations explain` prints them.
    """
    declared = {name for run in plan.runs for name, _ in flatten(run.config)}
    names = _ours(arrived, plan)
    return sorted({name for one in arrived for name in one.settings if names[name] not in declared})


def refuse_other_settings(arrived: Sequence[ImportedRun], plan: Plan) -> None:
    """Raise UserError if a setting of a run has another value in the run's row of the study."""
    configs = {run.row: dict(flatten(run.config)) for run in plan.runs if run.spec.imported}
    names = _ours(arrived, plan)
    for one in arrived:
        ours = configs[one.row]
        for name, given in one.settings.items():
            if (known := names[name]) in ours and ours[known] != given and not (ours[known] is None and given == ""):
                raise UserError(
                    f"{one.run.where}: {name} is {given!r}, and the row {one.row} of the study has {ours[known]!r}. "
                    f"Correct the row's `set`, or leave the column out with --settings."
                )
