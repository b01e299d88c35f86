"""A study's rule: each row by itself, the mean over its seeds against a target chosen before the rows were trained.

"speedrun" is the rule for records of modded-nanogpt (github.com/KellerJordan/modded-nanogpt, "Submission rules"): as
many trainings as show at p < 0.01 that their mean loss is below 3.28; Student's t test of one sample, one-sided.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ablations.plan.planned import Plan
from ablations.plan.published import target_column
from ablations.study.messages import number
from ablations.study.target import Target
from experiments.tasks.columns import Column
from reports.results import comparable
from reports.results.table import Measure, Row, RuleTest, Table


@dataclass(frozen=True)
class _Rule:
    name: str
    target: Target
    column: Column

    @property
    def better(self) -> str:
        return "below" if self.column.better == "lower" else "above"


def with_rule(table: Table, plan: Plan) -> Table:
    """The table with the rule's test of every row and with notes on it; as it is if the study has no rule."""
    name, target = plan.study.rule, plan.study.target_in(plan.profile)
    if name is None:
        return table
    if target is None:
        note = f"Rule {name}: no row is tested, the profile {plan.profile} has no target."
        return replace(table, test_notes=(*table.test_notes, note))
    column = target_column(target, table.columns)
    if column is None:
        note = f"Rule {name}: no row is tested, none is scored on {target.set}."
        return replace(table, test_notes=(*table.test_notes, note))
    rule = _Rule(name, target, column)
    tests = {row.key: _tested(row, rule) for row in table.rows}
    notes = [_about(rule), *(f"{name}, {row.key}: {_verdict(row, tests[row.key], rule)}." for row in table.rows)]
    return replace(table, rule=tests, test_notes=(*table.test_notes, *notes))


def p_better(values: Sequence[float], target: float, *, lower: bool) -> float | None:
    """P(a mean as good as this | the true mean is `target`), by Student's t; None without spread between values."""
    from scipy.special import stdtr

    if len(values) < 2 or (spread := statistics.stdev(values)) <= 1e-12 * max(map(abs, values)):
        return None
    t = (statistics.fmean(values) - target) / (spread / math.sqrt(len(values)))
    return float(stdtr(len(values) - 1, t if lower else -t))


def _tested(row: Row, rule: _Rule) -> RuleTest:
    measure, column = row.measures[rule.column.key], rule.column
    if _why_not(row, measure):
        return RuleTest()
    (target,) = comparable.scale([rule.target.value], column)
    p = p_better(comparable.scale(measure.values, column), target, lower=column.better == "lower")
    return RuleTest(p, None if p is None else p < rule.target.alpha)


def _why_not(row: Row, measure: Measure) -> str:
    if row.ensemble:
        return "an ensemble has no seeds"
    if not measure.requested:
        return "not scored on this set"
    if measure.missing:
        return f"{len(measure.values)} of {number(measure.requested, 'seed')} done"
    return "one seed shows no spread between seeds" if measure.requested == 1 else ""


def _about(rule: _Rule) -> str:
    target, column = rule.target, rule.column
    logarithmic = ", in natural logarithms" if column.logarithmic else ""
    source = f" Target: {target.source.rstrip('.')}." if target.source else ""
    return (
        f"Rule {rule.name}: it holds for a row whose mean {column.header} over seeds is {rule.better} {target.value:g} "
        f"at p < {target.alpha:g} (Student's t of one sample, one-sided{logarithmic}; each row by itself, without a "
        f"correction for several rows).{source}"
    )


def _verdict(row: Row, test: RuleTest, rule: _Rule) -> str:
    measure = row.measures[rule.column.key]
    why = _why_not(row, measure)
    if why or test.p is None:
        return f"not tested, {why or 'its values do not vary between seeds'}"
    shown = "p < 0.0001" if test.p < 0.0001 else f"p = {test.p:.4f}"
    words = "holds" if test.holds else "does not hold"
    return f"{words}, mean {measure.mean:.{rule.column.digits + 1}f} of {number(measure.requested, 'seed')}, {shown}"
