"""Check that a bundle's plan and its runs agree, and that its numbers follow from its files.

A checksum inside a file proves nothing, because it can be recomputed after a change. So names are computed from
settings, and scores from counts. What cannot be computed again (a perplexity needs weights and corpus) stays as its
maker recorded it; a sentence names these numbers to the reader.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ablations.plan.planned import Plan, PlannedEvaluation, PlannedRun
from experiments.config import TaskConfig, flatten
from experiments.errors import UserError
from experiments.identity import eval_identity, identity_settings, recorded_identity, run_identity, seed_in_words
from experiments.store.description import description_of
from experiments.store.ensembles import members, together
from experiments.store.layout import Store
from experiments.store.results import EvaluationResult
from experiments.tasks.columns import Column
from experiments.tasks.load import BUILTIN, OF_STUDIES, load_task
from reports.results.recomputed import differs, recomputed

_STATES = ("finished", "stale")


def check(plan: Plan, columns: Sequence[Column], store: Store, names_can_be_checked: bool = True) -> str:
    """A sentence on what was computed again and what was not. Raises UserError at the first disagreement."""
    if not plan.runs:
        raise UserError("it holds no run.")
    built_in = plan.study.task in BUILTIN and plan.study.task not in OF_STUDIES
    num_params = load_task(plan.study.task).num_params if built_in else None
    again: list[str] = ["num_params"] if num_params is not None else []
    recorded: list[str] = []
    for run in plan.trainings:
        where = f"row {run.row}, {seed_in_words(run.seed)}"
        _check_run(where, run, store, names_can_be_checked, built_in)
        if num_params is not None and not run.imported:
            count = num_params(run.config)
            whole = None if count is None else count * max(1, len(run.members))
            _equal(where, "parameters", run.num_params, whole, "those settings have")
            _check_members(where, run, store)
        for evaluation in run.evaluations:
            record = _check_evaluation(f"{where}, {evaluation.spec.set}", run, evaluation, store, names_can_be_checked)
            record.check(built_in)
            for name, column in _printed(columns, evaluation.spec.set).items():
                computed = recomputed(column, store.evaluation_folder(run.run_id, evaluation.eval_id), record)
                (recorded if computed is None else again).append(name)
                kept = record.metrics.get(name)
                if computed is not None and differs(kept, computed):
                    raise UserError(
                        f"{where}, {evaluation.spec.set}: {name} is recorded as {kept}, and its counts give "
                        f"{computed:.4f}."
                    )
    return _sentence(len(plan.trainings), again, recorded, names_can_be_checked)


def _check_run(where: str, run: PlannedRun, store: Store, names: bool, built_in: bool) -> None:
    result = store.result(run.run_id)
    if result is None or run.state not in _STATES:
        raise UserError(f"{where}: it has no result of the run {run.run_id}.")
    result.check(built_in)
    if result.config is None:
        raise UserError(f"{where}: the record of its training has no configuration.")
    about = description_of(store, run.run_id)
    for record in (result.content, about):
        _equal(where, "run_id", run.run_id, record.get("run_id", run.run_id), "the record has")
        if "config" in record:
            theirs, ours = dict(flatten(record["config"])), identity_settings(run.config)
            _equal(where, "task", run.config.task, theirs.get("task", run.config.task), "the run recorded")
            theirs = run.adopted.applied(theirs, ours) if run.adopted else theirs
            for name, value in ours.items():
                _equal(where, name, value, theirs.get(name, _default(run.config, name)), "the run recorded")
    _equal(where, "inputs", dict(run.inputs), about.get("inputs", dict(run.inputs)), "the run recorded")
    _equal(where, "seed", run.seed, result.config.get("seed", run.seed), "the run recorded")
    if run.trunk is not None:
        recorded = result.trunk.run_id, result.trunk.step
        _equal(where, "trunk and its steps", tuple(run.trunk), recorded, "the run recorded")
    if names:
        _equal(where, "run_id", run.run_id, _named(run, about), "its settings give")
    settings = dict(flatten(run.config))
    for name, value in run.overrides.items():
        _equal(where, name, value, settings.get(name), "its settings have")
    _equal(where, "parameters", run.num_params, result.content.get("num_params", run.num_params), "the run recorded")


def _named(run: PlannedRun, about: Mapping[str, Any]) -> str:
    """The name that a run's settings give: of an own task those that it recorded, without any that were added later."""
    roles, recorded = run.config.roles(), about.get("config")
    if roles.frozen_defaults or not isinstance(recorded, Mapping):
        return run_identity(run.config, run.inputs)
    return recorded_identity(recorded, run.inputs, roles.not_in_run_id)


def _check_members(where: str, run: PlannedRun, store: Store) -> None:
    """The sums of an ensemble are those of its members."""
    if run.members:
        record, sums = store.result(run.run_id), together(members(store, run.members))
        for name in ("num_params", "flops", "target_tokens", "train_s"):
            _equal(where, name, getattr(record, name), sums.get(name), "its members have together")


def _default(config: TaskConfig, name: str) -> Any:
    """The value of a setting that the run does not record: it was added later, with this default."""
    return dict(flatten(type(config)())).get(name)


def _check_evaluation(
    where: str, run: PlannedRun, evaluation: PlannedEvaluation, store: Store, names: bool
) -> EvaluationResult:
    record = store.evaluation(run.run_id, evaluation.eval_id)
    if record is None or "metrics" not in record.model_fields_set:
        raise UserError(f"{where}: it has no scores of the evaluation {evaluation.eval_id}.")
    spec = evaluation.spec
    for name, value in (("set", spec.set), ("settings", dict(spec.settings)), ("inputs", dict(spec.inputs))):
        _equal(where, name, value, record.content.get(name, value), "the evaluation recorded")
    if names:
        named = eval_identity(run.run_id, spec.settings, spec.inputs)
        _equal(where, "eval_id", evaluation.eval_id, named, "its settings give")
    return record


def _printed(columns: Sequence[Column], set_: str) -> dict[str, Column]:
    """The metrics of a set that the table prints, each with one of its columns."""
    return {column.metric: column for column in columns if column.set in (set_, "*")}


def _equal(where: str, what: str, planned: Any, found: Any, by: str) -> None:
    if planned != found:
        raise UserError(f"{where}: the plan says {what} = {planned}, {by} {found}.")


def _sentence(runs: int, again: Sequence[str], recorded: Sequence[str], names: bool) -> str:
    found = f"{runs} run{'s' * (runs > 1)} as planned"
    if not names:
        found += ", by settings alone (what was left out names them)"
    found += f"; computed again: {', '.join(dict.fromkeys(again)) or 'nothing'}"
    return f"{found}; as recorded by its maker: {', '.join([*dict.fromkeys(recorded), 'times', 'devices'])}"
