"""Describe the table of a plan as a `TableSpec`, because the package `reports` imports neither studies nor plans."""

from collections.abc import Iterator, Sequence
from typing import Any

from ablations.planning.plan import Plan, PlannedRun
from ablations.planning.resolve import PlannedRow
from ablations.study.overrides import setting_names
from ablations.study.study import Study
from experiments.tasks.columns import Column
from reports.spec.table_spec import CODE_LINES, Note, RowSpec, TableRun, TableSpec


def table_spec(plan: Plan, metrics: Sequence[Column] = ()) -> TableSpec:
    """Return the specification of a plan's table. metrics: the columns of the task, or those declared by the study."""
    study, profile = plan.study, plan.study.profiles[plan.profile]
    planned = {row.variation.key: row for row in plan.rows}
    runs: dict[str, list[TableRun]] = {}
    for run in plan.runs:
        runs.setdefault(run.row, []).append(_run(run))
    rows = tuple(
        RowSpec(
            key=row.key,
            group=row.group,
            label=row.label,
            paper=row.paper,
            declared=row.declared,
            overrides=planned[row.key].overrides if row.key in planned else {},
            facts=_facts(planned[row.key], study) if row.key in planned else {},
            changes_code=row.key in planned and plan.changes_code(planned[row.key]),
            diff=row.diff,
            runs=tuple(runs.get(row.key, ())),
        )
        for row in study.variations
    )
    return TableSpec(
        name=study.name,
        title=study.title,
        task=study.task,
        profile=plan.profile,
        rows=rows,
        members=tuple(map(_run, plan.members)),
        metrics=tuple(metrics),
        heads=study.columns,
        factors=study.factors,
        tuned=tuple(dict.fromkeys(name for row in study.variations for name in row.tuned)),
        paper_keys=plan.paper_keys,
        base=study.base_row.key if study.base_row else None,
        groups=study.families,
        pivot=study.pivot,
        published=study.published,
        sustained_flops=study.sustained_flops,
        choices=study.table,
        bold=study.bold,
        cited=study.cited,
        claims=study.claims,
        notes=tuple(_notes(plan)),
        sections=study.sections,
        paper_sizes=not profile.set and profile.scale == type(profile.scale)(),
    )


def _facts(row: PlannedRow, study: Study) -> dict[str, Any]:
    """Return the values that the study prints as columns of this row and that are not settings."""
    printed = CODE_LINES in study.columns and CODE_LINES not in setting_names(type(row.config))
    return {CODE_LINES: row.trainer.lines} if printed else {}


def _run(run: PlannedRun) -> TableRun:
    return TableRun(run.row, run.spec, run.config, run.store_state, run.evaluations, run.added)


def _notes(plan: Plan) -> Iterator[Note]:
    """Yield the notes of the study, of its rows and of the plan, except the study's `code_note`.

    `code_note` describes the present code of base. The table's numbers belong to the code that the runs recorded.
    """
    of_profile = plan.study.profiles[plan.profile].notes
    yield from (Note(text, "study") for text in plan.study.notes)
    for row in plan.rows:
        if row.variation.note:
            yield Note(f"{row.variation.key}: {row.variation.note}", "study")
    for text in plan.notes:
        if text != plan.study.code_note:
            yield Note(text, "study" if text in of_profile else "gap")
