"""Seeds by a rule fixed in advance: a group-sequential comparison of rows with one base.

After every seed from `start` to `most`, each undecided row is compared with base. It is decided, and gets no more
seeds, when its difference is proven (t beyond the look's upper bound), or proven to be smaller than the one that
matters (difference − |d| beyond the look's lower bound, in standard errors). The error of both is spent over the
looks by the power family of Kim & DeMets (1987, Biometrika 74:149): α(t) = α t^ρ of the share t of seeds spent (Lan &
DeMets 1983). Bounds come from simulated tables without effects, with the spread estimated as the table estimates it;
α is for all rows at once (the largest of their |t|, as in Dunnett's test), 1 − power for each row.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ablations.planning.planned import Plan
from ablations.study.messages import number, suggestion
from ablations.study.study import Study
from experiments.errors import UserError
from experiments.tasks.columns import Column, named
from reports.results.comparable import scale
from reports.results.results import Outcome, Results, collect
from reports.results.table import Note, Table

RHO_UPPER, RHO_LOWER = 1.0, 0.7  # of the power family; higher: more of the error is kept for the last looks
TABLES = 40_000  # simulated: α = 0.05 is met within 0.001 (one standard error)
DIFFERS, ALIKE, OPEN, UNDECIDED = "differs", "alike", "open", "undecided"
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Rule:
    """What is fixed in advance. `difference`: the smallest that matters, on the scale of the compared values."""

    start: int
    most: int
    alpha: float
    power: float
    difference: float

    @property
    def looks(self) -> range:
        """Seeds a row at each look."""
        return range(self.start, self.most + 1)


class Bounds(NamedTuple):
    """One value for each look, in standard errors of a difference; infinite: no row is decided there."""

    upper: tuple[float, ...]
    lower: tuple[float, ...]


class Decision(NamedTuple):
    """What is known of a row: DIFFERS, ALIKE, UNDECIDED (at the end) or OPEN (seeds are missing)."""

    verdict: str
    seeds: int  # that decided it, or that it needs next
    difference: float = math.nan  # of the means of so many seeds; not for OPEN
    half: float = math.nan  # of its interval, which holds at all looks and for all rows at once


def decide(
    base: Sequence[float], rows: Mapping[str, Sequence[float]], rule: Rule, compared: int | None = None
) -> dict[str, Decision]:
    """The decision of each row, from the values of seeds 1, 2, … as far as they are there.

    Values beyond those that the rule asks for are not looked at, so more seeds change no decision. compared: the rows
    of the whole table, if these are some of them.
    """
    bounds = bounds_of(rule, max(compared or 0, len(rows)))
    found: dict[str, Decision] = {}
    last: dict[str, Decision] = {}
    for look, seeds in enumerate(rule.looks):
        left = [key for key in rows if key not in found]
        if not left:
            break
        if min(len(base), *(len(rows[key]) for key in left)) < seeds:
            return {key: found.get(key, Decision(OPEN, seeds)) for key in rows}
        samples = [base[:seeds], *(values[: found[k].seeds if k in found else seeds] for k, values in rows.items())]
        error = _spread(samples) * math.sqrt(2 / seeds)
        for key in left:
            d = float(np.mean(rows[key][:seeds]) - np.mean(base[:seeds]))
            last[key] = Decision(UNDECIDED, seeds, d, bounds.upper[look] * error)
            if abs(d) > last[key].half:
                found[key] = last[key]._replace(verdict=DIFFERS)
            elif rule.difference - abs(d) > bounds.lower[look] * error:
                found[key] = last[key]._replace(verdict=ALIKE)
    return {key: found.get(key, last[key]) for key in rows}


def seeds_asked(decisions: Mapping[str, Decision]) -> tuple[int, dict[str, int]]:
    """Seeds of base, and of each row, that the rule asks for."""
    return max(one.seeds for one in decisions.values()), {key: one.seeds for key, one in decisions.items()}


@lru_cache(maxsize=32)
def bounds_of(rule: Rule, rows: int) -> Bounds:
    """The bounds of each look for so many rows, from TABLES simulated ones; the same at every call."""
    rng = np.random.default_rng(20_260_717)
    largest, one = _simulated(rng, rule, rows)
    upper = _spent(largest, [rule.alpha * share**RHO_UPPER for share in _shares(rule)])
    lower = _spent(one, [(1 - rule.power) * share**RHO_LOWER for share in _shares(rule)])
    return Bounds(tuple(upper), tuple(lower))


def _shares(rule: Rule) -> list[float]:
    return [seeds / rule.most for seeds in rule.looks]


def _spent(values_KT: Array, spent: Sequence[float]) -> list[float]:
    """For each look the bound that so much of all tables have passed by then, each at its first look."""
    tables, bounds = values_KT.shape[1], []
    inside = np.ones(tables, dtype=bool)
    for values, total in zip(values_KT, spent, strict=True):
        more = round(total * tables) - int((~inside).sum())
        left = np.sort(values[inside])
        bound = float(left[-more - 1]) if 0 < more < len(left) else math.inf
        bounds.append(bound)
        inside &= values <= bound
    return bounds


def _simulated(rng: np.random.Generator, rule: Rule, rows: int) -> tuple[Array, Array]:
    """Without effects, at each look: the largest |t| of a table's rows, and t of one row. (looks, tables) each."""
    largest, one = (np.empty((len(rule.looks), TABLES)) for _ in range(2))
    sums, squares = np.zeros((TABLES, rows + 1)), np.zeros(TABLES)
    for seeds in range(1, rule.most + 1):
        drawn = rng.standard_normal((TABLES, rows + 1))
        sums += drawn
        squares += (drawn**2).sum(axis=1)
        if seeds >= rule.start:
            within = squares - (sums**2).sum(axis=1) / seeds
            error = np.sqrt(within / ((rows + 1) * (seeds - 1)) * 2 / seeds)
            t = (sums[:, 1:] - sums[:, :1]) / seeds / error[:, None]
            largest[seeds - rule.start], one[seeds - rule.start] = np.abs(t).max(axis=1), t[:, 0]
    return largest, one


def _spread(samples: Sequence[Sequence[float]]) -> float:
    """The standard deviation within rows, pooled over all of them."""
    arrays = [np.asarray(values, dtype=float) for values in samples]
    within = math.fsum(((values - values.mean()) ** 2).sum() for values in arrays)
    return math.sqrt(within / sum(len(values) - 1 for values in arrays))


# --- The study's rule for seeds on its results: how many seeds it asks for by now, and what it decided


def rule_of(study: Study, columns: Sequence[Column]) -> tuple[Rule, Column]:
    """The rule, and the column that decides. Raises UserError for an unknown one."""
    assert study.seed_rule is not None
    stop = study.seed_rule.stop
    asked = named(stop.metric, columns)
    if stop.metric and asked is None:
        raise UserError(
            f"{study.origin}: seeds, stop.metric = {stop.metric!r}: there is no such column. "
            f"{suggestion(stop.metric, [column.key for column in columns], 'columns')}"
        )
    plain = next((column for column in columns if not column.logarithmic), columns[0])
    rule = Rule(study.seed_rule.start, study.seed_rule.max, stop.alpha, stop.power, stop.difference)
    return rule, asked or plain


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
    return _decisions(plan.study, table.outcomes, rule, column)[1]


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


def seed_notes(table: Table, plan: Plan, decisions: Mapping[str, Decision]) -> Iterator[Note]:
    """The rule, what it decided, and what it spent."""
    if not plan.by_rule:
        return
    rule, column = rule_of(plan.study, table.columns)
    unit = " in ln" if column.logarithmic else ""
    yield Note(
        f"Seeds by a rule fixed in advance, on {column.header}: {rule.start} to {rule.most} for each row, until its "
        f"difference from {table.base} is shown (level {rule.alpha:g} over all rows) or shown to be less than "
        f"{rule.difference:g}{unit} (power {rule.power:g}); group-sequential, the errors spent as "
        f"α·t^{RHO_UPPER:g} and β·t^{RHO_LOWER:g} of the share t of seeds (Kim & DeMets 1987), bounds by simulation.",
        "test",
    )
    for verdict, words in (
        (DIFFERS, "differs (*)"),
        (ALIKE, f"differs by less than {rule.difference:g}{unit}"),
        (UNDECIDED, f"not decided by {rule.most} seeds"),
        (OPEN, "not decided yet"),
    ):
        rows = [f"{key} ({one.seeds})" for key, one in decisions.items() if one.verdict == verdict]
        if rows:
            yield Note(f"By the rule, after so many seeds, {words}: {', '.join(rows)}.", "sign")
    spent = sum(outcome.record is not None for row in table.rows for outcome in row.outcomes if not row.ensemble)
    rows_with_seeds = sum(not row.ensemble for row in table.rows)
    every = rows_with_seeds * rule.most
    yield Note(f"The rule has spent {number(spent, 'run')}; {rule.most} seeds of every row are {every}.", "cost")
