"""Build the table with its numbers from a table specification and a store, and convert rows to flat records."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from experiments.errors import UserError
from experiments.records import FailureClass
from experiments.store import ledger
from experiments.store.layout import Store
from experiments.tasks.columns import MEASURED, Column
from reports.results import significance
from reports.results.accounting import RowSpent, last_change, spending
from reports.results.evaluation_readers import counts_in
from reports.results.resampling import shares_in
from reports.results.run_outcomes import Outcome, collect
from reports.results.table import NOT_IMPORTED, NOT_MEASURED, NOT_REPORTED, Measure, Row, Table, with_changes
from reports.spec.table_spec import RowSpec, TableSpec
from reports.table import claims, notes, settings
from reports.table.cited_rows import cited
from reports.table.cost import Cost, shown
from reports.table.table_warnings import warnings
from reports.table.total_cost import spent_on


def build_table(spec: TableSpec, store: Store, tests: str = "auto", *, provisional: bool = False) -> Table:
    """Return the table that `spec` declares, with the numbers that the store has now.

    tests: the mode of the significance tests (significance.MODES). provisional: see `Table`.
    """
    outcomes: dict[str, list[Outcome]] = {}
    for outcome in collect(spec.runs, store, spec.metrics):
        outcomes.setdefault(outcome.run.row, []).append(outcome)
    columns = _columns(spec.metrics, outcomes)
    families = _families(spec)
    made = {row.key: row for base, family in families for row in _rows(family, base, columns, spec, outcomes)}
    rows = tuple(made[key] for key in outcomes)
    bases = {base.key for base, _ in families if base}
    changed = [(row.label, row.settings) for row in rows if row.key not in bases]
    varying = dict.fromkeys(name for _, change in changed for name in change)  # settings that vary in any group
    named = [name for name in spec.heads if not name.startswith(MEASURED)]
    heads = settings.columns(changed, spec.factors, named, spec.tuned)
    base_of = {row.key: made[base.key] if base else None for base, family in families for row in family}
    of_base = [*named, *varying]
    rows = tuple(
        replace(
            row,
            here=settings.here(row),
            settings=settings.shown(row, base_of[row.key], of_base if row.key in bases else heads),
        )
        for row in rows
    )
    heads = {name: head for name, head in heads.items() if any(name in row.settings for row in rows)}
    first = _base(spec, spec.rows)
    table = Table(
        spec,
        spec.title,
        heads,
        columns,
        rows,
        first.key if first else None,
        measured={name: head for name, head in spec.heads.items() if name.startswith(MEASURED)},
        pivot=spec.pivot,
        groups=spec.groups,
        bases={row.group: row.key for row in rows if spec.groups and row.key in bases},
        provisional=provisional,
        papers_corpus=settings.on_corpus(rows, spec.choices.paper_corpus),
    )
    table = replace(table, members=tuple(collect(spec.members, store)))

    def tested(other: Table) -> Table:
        return significance.with_tests(other, tests, counts_in(store), shares_in(store))

    table = tested(table)
    table = replace(table, claims=claims.checked(table, tested))
    table = replace(table, cited=cited(spec, columns))
    run_ids = [run.run_id for run in spec.trainings]
    found = spending(run_ids, store)
    table = replace(table, spent=spent_on(table, found), last_change=last_change(found, run_ids))
    table = replace(table, not_shown=_not_shown(spec, store))
    return replace(table, footnotes=notes.footnotes(table), warnings=warnings(table))


def _not_shown(spec: TableSpec, store: Store) -> int | None:
    """Return the number of the study's rows that have results in the store and are not in the table.

    Return None if the store's ledger is damaged.
    """
    runs = (*spec.runs, *spec.members)
    shown = {pair for run in runs for pair in ledger.pairs(run.run_id, [e.eval_id for e in run.evaluations])}
    try:
        found = None if ledger.damaged(store) else ledger.entries(store)
    except UserError:
        found = None
    if found is None:
        return None
    return sum(shown.isdisjoint(row) for row in ledger.rows_with_results(found, spec.name))


Outcomes = Mapping[str, Sequence[Outcome]]  # key of a row → outcomes


def _families(spec: TableSpec) -> list[tuple[RowSpec | None, list[RowSpec]]]:
    """Return the sets of selected rows that are compared with each other, each set with its base.

    There is one set per group if the spec has groups, and otherwise one set with all rows. The base is None if it is
    not selected.
    """
    if not spec.groups:
        return [(_base(spec, spec.rows), [row for row in spec.rows if row.runs])]
    families = []
    for group in spec.groups:
        of_group = [row for row in spec.rows if row.group == group]
        if selected := [row for row in of_group if row.runs]:
            families.append((_base(spec, of_group), selected))
    return families


def _base(spec: TableSpec, rows: Sequence[RowSpec]) -> RowSpec | None:
    """Return the study's base row, or the first row if base is not in `rows`. Return None if it is not selected."""
    row = next((row for row in rows if row.key == spec.base), rows[0])
    return row if row.runs else None


def _columns(columns: Sequence[Column], grouped: Outcomes) -> tuple[Column, ...]:
    """Replace each column of the set "*" by one column per evaluated set that no other column names."""
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


def _rows(
    family: Sequence[RowSpec], base: RowSpec | None, columns: Sequence[Column], spec: TableSpec, outcomes: Outcomes
) -> tuple[Row, ...]:
    """Return the rows of a family with their changes from its base."""
    rows = tuple(
        Row(
            row,
            settings=settings.changes(row, base),
            measures={column.key: _measure(row, outcomes[row.key], column) for column in columns},
            num_params=_num_params(outcomes[row.key]),
            paper={key: row.paper.get(key) for key in spec.paper_keys},
            outcomes=tuple(outcomes[row.key]),
        )
        for row in family
    )
    return with_changes(rows, base.key if base else None, columns)


def _num_params(outcomes: Sequence[Outcome]) -> int | None:
    """Return the number of parameters, computed from the configuration, or else as a finished run counted it."""
    counted = [outcome.record.num_params for outcome in outcomes if outcome.record]
    return next((n for n in (outcomes[0].run.spec.num_params, *counted) if n is not None), None)


def _measure(row: RowSpec, outcomes: Sequence[Outcome], column: Column) -> Measure:
    asked = [o for o in outcomes if column.set in o.scored]
    found = [(o, o.measured(column.set, column.metric)) for o in asked]
    return Measure(
        values=tuple(value for _, value in found if value is not None),
        requested=len(asked),
        lacking=tuple(_why(o, column) for o, value in found if value is None),
        reported=row.paper.get(column.paper) if column.paper else None,
    )


def _why(outcome: Outcome, column: Column) -> str:
    facts = outcome.scored[column.set].record
    state = outcome.run.state
    if outcome.record is not None and facts is not None:
        value = facts.metrics.get(column.metric)
        if value is not None:
            return "nan" if math.isnan(value) else "infinite"
        if outcome.run.spec.imported:
            return NOT_IMPORTED
        if outcome.run.config.setting_roles.frozen_defaults:
            return "" if column.metric in facts.metrics else NOT_MEASURED
        if state != "failed":  # of a failed run, `facts` may have the metrics that could be read from its log
            return NOT_REPORTED
    if "" in outcome.harm or column.set in outcome.harm:
        return "damaged"
    if outcome.record is not None and outcome.run.spec.imported:
        return NOT_IMPORTED
    if state == "failed" and outcome.failure == FailureClass.DIVERGED:
        return str(outcome.failure)
    return state if state in ("failed", "interrupted", "running", "waiting") else ""


SPENT = "cost"  # field whose values grow with later attempts, also with attempts for other tables


def record(row: Row, table: Table, costs: Sequence[Cost] | None = None) -> dict[str, Any]:
    """Return the record of a row in `report --json`. A number is None if a seed is missing; `n` is `Row.n`.

    costs: the costs that the table prints; if None, the function looks them up.
    """
    values: dict[str, Any] = {"row": row.key, "group": row.group, "label": row.label}
    values |= {"state": row.state, "stale": row.stale}
    if any(other.imported for other in table.rows):
        values["imported"] = row.imported
    for column in table.listed:
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
    spent = table.spent.rows.get(row.key, RowSpent())  # the sum over rows is the table's cost
    values[SPENT] = {**spent.runs.as_json(), "counted_in": list(spent.counted_in)}
    values[SPENT]["tuning"] = spent.tuning.as_json() if spent.tuning.attempts else None
    values["paper"] = dict(row.paper)
    values["settings"] = dict(row.settings)
    values["run_ids"] = [outcome.run.run_id for outcome in row.outcomes]
    return values
