"""From a plan and a store to the table, and the table as one flat record per row."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ablations.planning.planned import Plan
from ablations.study.study import Study
from experiments.errors import UserError
from experiments.records import FailureClass
from experiments.store import ledger
from experiments.store.layout import Store
from experiments.tasks.columns import MEASURED, Column
from reports.results import comparable, significance
from reports.results.accounting import RowSpent, last_change, spending
from reports.results.resampling import shares_in
from reports.results.results import Outcome, collect, counts_in
from reports.results.table import NOT_REPORTED, Measure, Row, Table
from reports.table import claims, notes, settings
from reports.table.cost import Cost, shown, spent_on
from reports.table.notes import cited
from reports.table.provenance import warnings


def build_table(
    plan: Plan, store: Store, columns: Sequence[Column], tests: str = "auto", *, provisional: bool = False
) -> Table:
    """The table of a plan's rows, from what the store holds now; `columns` are the task's.

    `tests`: which differences from base are marked (significance.MODES). `provisional`: see Table.
    """
    grouped: dict[str, list[Outcome]] = {}
    for outcome in collect(plan, store, columns):
        grouped.setdefault(outcome.run.row, []).append(outcome)
    resolved = _columns(columns, grouped)
    families = _families(plan.study, grouped)
    made = {r.key: r for base, family in families for r in _rows(family, base, resolved, plan.paper_keys)}
    of = {row.key: row for row in plan.study.variations}
    rows = tuple(replace(made[k], here=settings.here(made[k], of[k].declared), diff=of[k].diff) for k in grouped)
    bases = {base for base, _ in families}
    changed = [(row.label, row.settings) for row in rows if row.key not in bases]
    varying = dict.fromkeys(name for _, change in changed for name in change)  # in any group
    named = [name for name in plan.study.columns if not name.startswith(MEASURED)]
    tuned = tuple(dict.fromkeys(name for v in plan.study.variations for name in v.tuned))
    heads = settings.columns(changed, plan.study.factors, named, tuned)
    base_of = {key: made[base] if base else None for base, family in families for key in family}
    of_base = [*named, *varying]
    rows = tuple(
        replace(r, settings=settings.shown(r, base_of[r.key], of_base if r.key in bases else heads)) for r in rows
    )
    heads = {name: head for name, head in heads.items() if any(name in row.settings for row in rows)}
    measured = {name: head for name, head in plan.study.columns.items() if name.startswith(MEASURED)}
    table = Table(
        plan.study.name,
        plan.study.title,
        heads,
        resolved,
        rows,
        _base_key(plan.study, grouped),
        tuned=tuned,
        measured=measured,
        sustained_flops=plan.study.sustained_flops,
        pivot=plan.study.pivot,
        published=plan.study.published,
        groups=plan.study.families,
        bases={row.group: row.key for row in rows if plan.study.families and row.key in bases},
        provisional=provisional,
        choices=plan.study.table,
        bold=plan.study.bold,
        profile=plan.profile,
        papers_corpus=settings.on_corpus(rows, plan.study.table.paper_corpus),
    )
    table = replace(table, members=tuple(collect(replace(plan, runs=plan.members), store)))

    def tested(other: Table) -> Table:
        return significance.with_tests(other, tests, counts_in(store), shares_in(store))

    table = tested(table)
    table = replace(table, claims=claims.checked(table, plan.study, tested))
    table = replace(table, cited=cited(plan.study, resolved))
    found = spending(plan, store)
    table = replace(table, spent=spent_on(table, plan, found), last_change=last_change(found, plan))
    table = replace(table, not_shown=_not_shown(plan, store))
    return replace(table, footnotes=notes.footnotes(table, plan), warnings=warnings(table))


def _not_shown(plan: Plan, store: Store) -> int | None:
    """Rows of the study that got results in the store and are not in the table; None: the store's ledger is damaged."""
    shown = {pair for run in (*plan.runs, *plan.members) for pair in ledger.pairs(run.run_id, run.eval_ids)}
    try:
        found = None if ledger.damaged(store) else ledger.entries(store)
    except UserError:
        found = None
    if found is None:
        return None
    return sum(shown.isdisjoint(row) for row in ledger.rows_with_results(found, plan.study.name))


Outcomes = Mapping[str, list[Outcome]]  # by row


def _families(study: Study, grouped: Outcomes) -> list[tuple[str | None, Outcomes]]:
    """The rows that are compared with each other, with their base: all, or each of the study's families."""
    if not study.families:
        return [(_base_key(study, grouped), grouped)]
    families = {
        group: {k: o for k, o in grouped.items() if o[0].run.variation.group == group} for group in study.families
    }
    return [(_base_key(study, family, group), family) for group, family in families.items() if family]


def _base_key(study: Study, grouped: Outcomes, group: str | None = None) -> str | None:
    """The study's base row, else its first; None if that row is not among the planned: there is no change then.

    group: the same of the rows of one group.
    """
    rows = [row for row in study.variations if group in (None, row.group)]
    row = study.base_row if study.base_row in rows else rows[0]
    return row.key if row and row.key in grouped else None


def _columns(columns: Sequence[Column], grouped: Outcomes) -> tuple[Column, ...]:
    """Replace set "*" by one column per evaluated set that no other column names."""
    sets = dict.fromkeys(name for outcomes in grouped.values() for o in outcomes for name in o.scored)
    named = {column.set for column in columns}
    resolved = []
    for column in columns:
        if column.set == "*":
            resolved += [_for_set(column, name) for name in sets if name not in named]
        else:
            resolved.append(column)
    return tuple(resolved)


def _for_set(column: Column, name: str) -> Column:
    key = column.key.replace("*", name) if "*" in column.key else f"{column.key}_{name}"
    header = column.header.replace("*", name) if "*" in column.header else f"{column.header} ({name})"
    return replace(column, key=key, set=name, header=header)


def _rows(grouped: Outcomes, base: str | None, columns: Sequence[Column], paper_keys: Sequence[str]) -> tuple[Row, ...]:
    """Rows with changes from one base."""
    first = [outcomes[0].run for outcomes in grouped.values()]
    shown = settings.changes(first, grouped[base][0].run if base else None)
    rows = tuple(
        Row(
            key=run.row,
            group=run.variation.group,
            label=run.variation.label,
            settings=change,
            measures={column.key: _measure(outcomes, column) for column in columns},
            num_params=_num_params(outcomes),
            paper={key: run.variation.paper.get(key) for key in paper_keys},
            outcomes=tuple(outcomes),
        )
        for run, change, outcomes in zip(first, shown, grouped.values(), strict=True)
    )
    return comparable.with_changes(rows, base, columns)


def _num_params(outcomes: Sequence[Outcome]) -> int | None:
    """Computed from the configuration; where the task cannot, what a finished run counted."""
    counted = [outcome.record.num_params for outcome in outcomes if outcome.record]
    return next((n for n in (outcomes[0].run.spec.num_params, *counted) if n is not None), None)


def _measure(outcomes: Sequence[Outcome], column: Column) -> Measure:
    asked = [o for o in outcomes if column.set in o.scored]
    found = [(o, o.measured(column.set, column.metric)) for o in asked]
    return Measure(
        values=tuple(value for _, value in found if value is not None),
        requested=len(asked),
        lacking=tuple(_why(o, column) for o, value in found if value is None),
        reported=(outcomes[0].run.variation.paper).get(column.paper) if column.paper else None,
    )


def _why(outcome: Outcome, column: Column) -> str:
    facts = outcome.scored[column.set].record
    if outcome.record is not None and facts is not None:
        value = facts.metrics.get(column.metric)
        if value is not None:
            return "nan" if math.isnan(value) else "infinite"
        return "" if outcome.run.config.setting_roles.frozen_defaults else NOT_REPORTED
    if "" in outcome.harm or column.set in outcome.harm:
        return "damaged"
    state = outcome.run.state
    if state == "failed" and outcome.failure == FailureClass.DIVERGED:
        return str(outcome.failure)
    return state if state in ("failed", "running", "waiting") else ""


# --- One record per row in full precision: what JSON and CSV carry and what other programs read


SPENT = "cost"  # a part that grows with later attempts, also of other tables


def record(row: Row, table: Table, costs: Sequence[Cost] | None = None) -> dict[str, Any]:
    """The row of `report --json`. A number that is not complete is None; `n` counts the seeds that are there.

    costs: those that the table prints, the same for all of its rows; looked up if unset.
    """
    values: dict[str, Any] = {"row": row.key, "group": row.group, "label": row.label}
    values |= {"state": row.state, "stale": row.stale}
    if any(other.imported for other in table.rows):
        values["imported"] = row.imported
    for column in table.columns:
        measure = row.measures[column.key]
        values[column.key] = measure.mean
        values[f"{column.key}_sd"] = measure.sd
        values[f"{column.key}_change"] = measure.change
        values[f"{column.key}_paper_change"] = measure.reported_change
        if table.test:
            test = measure.test
            values[f"{column.key}_p"] = test and test.p
            values[f"{column.key}_marked"] = test and test.marked
            values[f"{column.key}_best"] = measure.best
            values[f"{column.key}_low"], values[f"{column.key}_high"] = (test.low, test.high) if test else (None, None)
    costs = shown(table, table.chosen.columns) if costs is None else costs
    values |= {cost.name: cost.value(row, table) for cost in costs}
    values |= {"n": row.n, "seeds": len(row.outcomes)}
    spent = table.spent.rows.get(row.key, RowSpent())  # so that the sum over rows is what the table cost
    values[SPENT] = {**spent.runs.as_json(), "counted_in": list(spent.counted_in)}
    values[SPENT]["tuning"] = spent.tuning.as_json() if spent.tuning.attempts else None
    values["paper"] = dict(row.paper)
    values["settings"] = dict(row.settings)
    values["run_ids"] = [outcome.run.run_id for outcome in row.outcomes]
    return values
