"""Write runs that were trained elsewhere into a store, as records marked `imported`. Called when all is checked."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from ablations.plan.planned import Plan, PlannedRun
from ablations.service.enqueue import member
from ablations.service.foreign import NOTHING, Arrived
from ablations.service.foreign_study import setting_name
from experiments.config import flatten
from experiments.errors import Damaged, UserError, explain_os_errors
from experiments.exchange.foreign.runs import Foreign
from experiments.jobs.queue.job import Member
from experiments.store.description import CONFIG, TableRow
from experiments.store.durable import whole_folder
from experiments.store.layout import Store
from experiments.store.results import FILE, EvaluationResult, TrainingResult
from experiments.store.sealed import write_json


class Written(NamedTuple):
    """What became of the runs: numbers of runs written, found there with the same numbers, and replaced."""

    new: int
    had: int
    replaced: int


class _Record(NamedTuple):
    run: PlannedRun
    arrived: Arrived
    training: TrainingResult
    evaluations: dict[str, EvaluationResult]  # by eval_id


def write_runs(plan: Plan, store: Store, foreign: Foreign, arrived: Sequence[Arrived], *, replace: bool) -> Written:
    """Write them; the caller holds the store's lock. Raises UserError, before the first is written, where a run is
    there already with other numbers and `replace` is not given."""
    planned = {(run.row, run.seed): run for run in plan.runs if run.imported}
    records = [_record(planned[one.row, one.seed], one, foreign) for one in arrived]
    before = [_there(store, record) for record in records]
    other = [record for record, how in zip(records, before, strict=True) if how == "other"]
    if other and not replace:
        named = ", ".join(record.run.name for record in other[:5])
        raise UserError(
            f"Imported before, with other numbers or settings: {named}{' …' if len(other) > 5 else ''}. Add --replace "
            f"to take those of {foreign.source} in their place. {NOTHING}"
        )
    changed = [record for record, how in zip(records, before, strict=True) if how != "same"]
    for record in changed:
        with explain_os_errors(f"write to the store {store.root}"):
            _write(store, record, member(plan, record.run))
    return Written(before.count(""), before.count("same"), before.count("other"))


def _record(run: PlannedRun, one: Arrived, foreign: Foreign) -> _Record:
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
                    "set": planned.spec.set,
                    "settings": dict(planned.spec.settings),
                    "inputs": {},
                    "attempt": 1,
                    "weights_attempt": 1,
                    "metrics": scores,
                }
            )
    return _Record(run, one, training, evaluations)


def _there(store: Store, record: _Record) -> str:
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


def _write(store: Store, record: _Record, of: Member) -> None:
    """The whole folder at once: a run is imported, or it is not."""
    place = store.run_folder(record.run.run_id)
    described: Mapping[str, Any] = {
        "run_id": record.run.run_id,
        "config": record.run.config.model_dump(mode="json"),
        "inputs": dict(record.run.inputs),
        "row": asdict(TableRow(of, {str(made.set): eval_id for eval_id, made in record.evaluations.items()})),
    }
    place.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(place, replace=True) as beside:
        write_json(beside / CONFIG, described)
        _in(beside, "attempts/0001", record.training.write)
        for eval_id, made in record.evaluations.items():
            _in(beside, f"evaluations/{eval_id}", made.write)
        record.training.write(beside / FILE)


def _in(folder: Any, inner: str, write: Any) -> None:
    (folder / inner).mkdir(parents=True)
    write(folder / inner / FILE)


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
                    f"Correct the row's `set`, or leave the column out with --settings. {NOTHING}"
                )
