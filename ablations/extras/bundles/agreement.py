"""Check that the plan and the runs of a bundle agree, and that its numbers follow from its files.

A checksum inside a file proves nothing, because it can be recomputed after a change. So this module computes run_ids
and eval_ids from the settings, and scores from the stored counts. Other numbers cannot be recomputed (a perplexity
needs weights and corpus). The first line of the printed table lists them as the sender's numbers. These checks do not
detect invented counts.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ablations.planning.plan import Plan, PlannedRun
from experiments.config.evaluation import OF_SEARCH
from experiments.dotted import flatten
from experiments.errors import UserError
from experiments.identity import eval_identity, identity_of, run_identity, seed_in_words
from experiments.messages import number
from experiments.run_spec import EvaluationSpec, RunSpec
from experiments.store.ensembles import members, together
from experiments.store.layout import Store, description_of, spec_of
from experiments.store.results import EvaluationResult
from experiments.store.run_names import (
    compared_settings,
    name_given_by,
    planned_settings,
    recorded_settings,
    usual_settings,
)
from experiments.tasks.columns import Column
from experiments.tasks.load import is_built_in, load_task
from reports.render.printed_command import FROM_BUNDLE
from reports.results.evaluation_counts import differs, recomputed

_STATES = ("finished", "stale")
# Settings of an evaluation that are also in the configuration of a row. They are not part of run_id.
_OF_EVALUATIONS = ("checkpoint", "precision", *OF_SEARCH, "window", "stride")
_ALWAYS = ("times", "costs", "devices")  # numbers that can never be recomputed from a bundle


class Checked(NamedTuple):
    """Result of the successful check of a bundle."""

    runs: str  # number of checked runs, as text
    provenance: str  # first line of the printed table: the recomputed numbers and the sender's numbers


_Proofs = dict[tuple[str, str], dict[str, bool]]  # (metric, set) → row → True if all its values follow from counts


def check(plan: Plan, columns: Sequence[Column], store: Store, names_can_be_checked: bool = True) -> Checked:
    """Check each run of a plan against the store. Raises UserError at the first disagreement.

    names_can_be_checked: False if the bundle lacks settings from which run_ids were computed.
    """
    if not plan.runs:
        raise UserError("it holds no run.")
    built_in = is_built_in(plan.study.task)
    counted = built_in and not all(run.spec.imported for run in plan.trainings)
    names = names_can_be_checked or built_in  # a run_id of a built-in task depends on no path that a bundle leaves out
    proofs: _Proofs = {}
    for run in plan.trainings:
        where = f"row {run.row}, {seed_in_words(run.seed)}"
        _check_run(where, run, store, plan.study.task, names)
        if built_in and not run.spec.imported:
            counted = _check_parameters(where, run, plan.study.task) and counted
            _check_members(where, run, store)
        if len({evaluation.set for evaluation in run.evaluations}) < len(run.evaluations):
            raise UserError(f"{where}: it has two evaluations of one set.")
        for evaluation in run.evaluations:
            record = _check_evaluation(f"{where}, {evaluation.set}", run, evaluation, store, names)
            record.check(built_in)
            printed = {column.metric: column for column in columns if column.set in (evaluation.set, "*")}
            for name, column in printed.items():
                at = f"{where}, {evaluation.set}: {name}"
                computed = recomputed(column, store.evaluation_folder(run.run_id, evaluation.eval_id), record)
                kept = record.metrics.get(name)
                if computed is not None and differs(kept, computed):
                    raise UserError(f"{at} is recorded as {kept}, but its counts give {computed:.4f}.")
                if computed is None and column.counts is not None and built_in and not run.spec.imported:
                    raise UserError(f"{at} cannot be computed again, because {column.counts.file} is missing or empty.")
                if computed is not None or kept is not None:
                    rows = proofs.setdefault((name, evaluation.set), {})
                    rows[run.row] = rows.get(run.row, True) and computed is not None
    found = f"{number(len(plan.trainings), 'run')} as planned"
    if not names:
        found += ", by settings only (their names depend on parts that were left out)"
    return Checked(found, _provenance(proofs, counted))


def _provenance(proofs: _Proofs, counted: bool) -> str:
    """Return text such as "From a bundle. Recomputed: bleu (dev, test), parameters. The sender's numbers: times …".

    The text contains the names of metrics, not the headings of columns, because the sender may have written the
    headings.
    """
    parts: dict[bool, dict[tuple[str, str], list[str]]] = {True: {}, False: {}}  # proven → metric and rows → sets
    for (metric, set_), rows in proofs.items():
        for proven, found in parts.items():
            those = [row for row, is_ in rows.items() if is_ is proven]
            if those:
                of = "" if len(those) == len(rows) else f" of {', '.join(those)}"
                found.setdefault((_quoted(metric), of), []).append(_quoted(set_))
    checked, unchecked = ([f"{m} ({', '.join(sets)}){of}" for (m, of), sets in parts[p].items()] for p in (True, False))
    if not checked and not counted:
        return f"{FROM_BUNDLE} 0 cells recomputed: all numbers are the sender's."
    (checked if counted else unchecked).append("parameters")
    return f"{FROM_BUNDLE} Recomputed: {', '.join(checked)}. The sender's numbers: {', '.join([*unchecked, *_ALWAYS])}."


def _quoted(name: str) -> str:
    """Return a name from a bundle, in quotes unless it is a short identifier.

    Other text could be mistaken for a part of the printed sentence.
    """
    return name if re.fullmatch(r"[\w.+-]{1,40}", name) else repr(name[:40])


def _check_run(where: str, run: PlannedRun, store: Store, task: str, names: bool) -> None:
    result = store.result(run.run_id)
    if result is None or run.state not in _STATES:
        raise UserError(f"{where}: it has no result of the run {run.run_id}.")
    result.check(is_built_in(task))
    if result.spec is None:
        raise UserError(f"{where}: the record of its training does not describe the run.")
    _equal(where, "task", task, run.config.task, "its row has")
    description = description_of(store, run.run_id)
    about = spec_of(store, run.run_id) or result.spec
    named_by = _recorded(about, description or result.content)
    for record in (result.spec, about):
        _equal(where, "run_id", run.run_id, record.run_id, "the record has")
        theirs, ours = recorded_settings(record), planned_settings(run.config, run.spec.trainer)
        _equal(where, "task", task, theirs.get("task"), "the run recorded")
        theirs = compared_settings(run.config, theirs)
        # defaults of settings that did not exist when the run was recorded
        unrecorded = {**usual_settings(run.config, run.spec.trainer), **run.added}
        for name, value in ours.items():
            _equal(where, name, value, theirs.get(name, unrecorded.get(name)), "the run recorded")
        _equal(where, "inputs", dict(run.spec.inputs), dict(record.inputs), "the run recorded")
        _equal(where, "seed", run.seed, record.seed, "the run recorded")
    if run.spec.parent_run is not None:
        recorded = result.parent_run.run_id, result.parent_run.step
        _equal(where, "parent run and its steps", tuple(run.spec.parent_run), recorded, "the run recorded")
    if names:
        _equal(where, "run_id", run.run_id, _named(run, named_by), "its settings give")
    settings = dict(flatten(run.config))
    for name, value in run.planned_row.overrides.items():
        _equal(where, name, value, settings.get(name), "its settings have")
    _equal(
        where,
        "parameters",
        run.spec.num_params,
        result.content.get("num_params", run.spec.num_params),
        "the run recorded",
    )


def _recorded(spec: RunSpec, content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the nested settings of a record. Version 0.1.0 recorded the facts of the trainer among them."""
    given = content.get("spec") or content
    return spec.config if "trainer" in given else given["config"]


def _named(run: PlannedRun, recorded: Mapping[str, Any]) -> str:
    """Compute the run_id of a run from its settings. For a user's trainer, the record lists the settings to use.

    recorded: the result of `_recorded`.
    """
    roles = run.config.roles()
    if roles.frozen_defaults:
        return run_identity(run.config, run.spec.inputs)
    if run.spec.named_by is not None:
        return name_given_by(run.spec.named_by, recorded, run.spec.inputs)
    kept = {n: v for n, v in flatten(recorded) if n not in ("task", "seed", *roles.not_in_run_id)}  # version 0.1.0
    return identity_of(recorded.get("task"), recorded.get("seed"), kept, run.spec.inputs)


def _check_parameters(where: str, run: PlannedRun, task: str) -> bool:
    """Raise UserError if the number of parameters is wrong. Return whether the parameters could be counted.

    They cannot be counted if a corpus that is not available determines the size of the vocabulary.
    """
    try:
        count = load_task(task).num_params(run.config)
    except UserError:
        return False
    whole = None if count is None else count * max(1, len(run.spec.members))
    _equal(where, "parameters", run.spec.num_params, whole, "those settings have")
    return True


def _check_members(where: str, run: PlannedRun, store: Store) -> None:
    """Raise UserError unless the totals of an ensemble are the sums over its members."""
    if run.spec.members:
        record, sums = store.result(run.run_id), together(members(store, run.spec.members))
        for name in ("num_params", "flops", "target_tokens", "train_s"):
            _equal(where, name, getattr(record, name), sums.get(name), "its members have together")


def _check_evaluation(where: str, run: PlannedRun, spec: EvaluationSpec, store: Store, names: bool) -> EvaluationResult:
    record = store.evaluation(run.run_id, spec.eval_id)
    if record is None or "metrics" not in record.model_fields_set:
        raise UserError(f"{where}: it has no scores of the evaluation {spec.eval_id}.")
    asked: dict[str, Any] = {"settings": dict(spec.settings), "inputs": dict(spec.inputs)}
    for name, value in (asked if "set" in spec.inputs else {"set": spec.set, **asked}).items():  # as in results.py
        _equal(where, name, value, record.content.get(name, value), "the evaluation recorded")
    settings = dict(flatten(run.config))
    for name in _OF_EVALUATIONS:
        ours = settings.get(f"evaluation.{name}")
        if ours is not None and name in spec.settings:
            _equal(where, name, ours, spec.settings[name], "the evaluation has")
    if names:
        named = eval_identity(run.run_id, spec.settings, spec.inputs)
        _equal(where, "eval_id", spec.eval_id, named, "its settings give")
    return record


def _equal(where: str, what: str, planned: Any, found: Any, by: str) -> None:
    if planned != found:
        raise UserError(f"{where}: the plan says {what} = {planned}, {by} {found}.")
