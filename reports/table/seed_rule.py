"""A study's rule for seeds on the results of a table: how many seeds it asks for by now, and what it decided."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ablations.planning.planned import Plan
from ablations.study.messages import number, suggestion
from ablations.study.study import Study
from experiments.errors import UserError
from experiments.tasks.columns import Column
from reports.results.comparable import scale
from reports.results.results import Outcome, Results, collect
from reports.results.rule import (
    ALIKE,
    DIFFERS,
    OPEN,
    RHO_LOWER,
    RHO_UPPER,
    UNDECIDED,
    Decision,
    Rule,
    decide,
    seeds_asked,
)
from reports.results.table import Table


def rule_of(study: Study, columns: Sequence[Column]) -> tuple[Rule, Column]:
    """The rule, and the column that decides. Raises UserError for an unknown one."""
    assert study.seed_rule is not None
    stop = study.seed_rule.stop
    by_key = {column.key: column for column in columns}
    if stop.metric and stop.metric not in by_key:
        raise UserError(
            f"{study.origin}: seeds, stop.metric = {stop.metric!r}: there is no such column. "
            f"{suggestion(stop.metric, by_key, 'columns')}"
        )
    plain = next((column for column in columns if not column.logarithmic), columns[0])
    rule = Rule(study.seed_rule.start, study.seed_rule.max, stop.alpha, stop.power, stop.difference)
    return rule, by_key.get(stop.metric, plain)


def seeds_by_rule(plan: Plan, store: Results, columns: Sequence[Column]) -> dict[str, int]:
    """row → seeds that the rule asks for by now. plan: of all seeds that it may ask for."""
    rule, column = rule_of(plan.study, columns)
    base, decisions = _decisions(plan.study, collect(plan, store, columns), rule, column)
    if not decisions:
        return {}
    most, of_rows = seeds_asked(decisions)
    return {base: most, **of_rows}


def decisions_of(table: Table, plan: Plan) -> dict[str, Decision]:
    """What the rule decided of each row of a table."""
    rule, column = rule_of(plan.study, table.columns)
    outcomes = [outcome for row in table.rows for outcome in row.outcomes]
    return _decisions(plan.study, outcomes, rule, column)[1]


def _decisions(
    study: Study, outcomes: Iterable[Outcome], rule: Rule, column: Column
) -> tuple[str, dict[str, Decision]]:
    """The base, and the decision of each row with seeds; a row with a failed run is left out while it has one."""
    assert study.base_row is not None
    values: dict[str, list[float]] = {}
    ended: set[str] = set()  # rows whose next seed is not there
    failed: set[str] = set()
    for outcome in outcomes:
        key = outcome.run.row
        if outcome.run.members:
            continue
        values.setdefault(key, [])
        value = outcome.measured(column.set, column.metric) if column.set in outcome.scored else None
        if value is None and key not in ended and outcome.run.state == "failed":
            failed.add(key)
        if value is None:
            ended.add(key)
        elif key not in ended:
            values[key].append(value)
    base = study.base_row.key
    rows = {key: scale(of, column) for key, of in values.items() if key != base and key not in failed}
    compared = sum(row.key != base and row.ensemble is None for row in study.variations)
    if base not in values or not rows:
        return base, {}
    return base, decide(scale(values[base], column), rows, rule, compared)


def notes(table: Table, plan: Plan, decisions: Mapping[str, Decision]) -> Iterator[str]:
    """The rule, what it decided, and what it spent."""
    if not plan.by_rule:
        return
    rule, column = rule_of(plan.study, table.columns)
    unit = " in ln" if column.logarithmic else ""
    yield (
        f"Seeds by a rule fixed in advance, on {column.header}: {rule.start} to {rule.most} for each row, until its "
        f"difference from {table.base} is shown (level {rule.alpha:g} over all rows) or shown to be less than "
        f"{rule.difference:g}{unit} (power {rule.power:g}); group-sequential, the errors spent as "
        f"α·t^{RHO_UPPER:g} and β·t^{RHO_LOWER:g} of the share t of seeds (Kim & DeMets 1987), bounds by simulation."
    )
    for verdict, words in (
        (DIFFERS, "differs (*)"),
        (ALIKE, f"differs by less than {rule.difference:g}{unit}"),
        (UNDECIDED, f"not decided by {rule.most} seeds"),
        (OPEN, "not decided yet"),
    ):
        rows = [f"{key} ({one.seeds})" for key, one in decisions.items() if one.verdict == verdict]
        if rows:
            yield f"By the rule, after so many seeds, {words}: {', '.join(rows)}."
    spent = sum(outcome.record is not None for row in table.rows for outcome in row.outcomes if not row.ensemble)
    rows_with_seeds = sum(not row.ensemble for row in table.rows)
    every = rows_with_seeds * rule.most
    yield f"The rule has spent {number(spent, 'run')}; {rule.most} seeds of every row are {every}."
