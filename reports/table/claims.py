"""What a paper says of its numbers, checked twice: in the numbers that it printed, and in those of this table's runs.

A missing run is named, and nothing is said instead of it. What runs of another size than the paper's show, says so.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ablations.planning.planned import Plan
from ablations.study.messages import number
from ablations.study.study import Claim
from experiments.tasks.columns import Column
from reports.results import comparable
from reports.results.table import Row, Table
from reports.table.cost import COSTS, Cost
from reports.table.provenance import corpus_name

DIGITS = 2  # of our numbers after the point: what a note compares is what it shows
HUGE = 1e6  # from here on numbers are written as 2.3e19


class _Number(NamedTuple):
    """One number of one system."""

    name: str
    value: float


def notes(table: Table, plan: Plan) -> Iterator[str]:
    """One note per claim."""
    for claim in plan.study.claims:
        of = _compared(claim, table)
        yield (
            f"The paper says: “{claim.text}”. In the paper's numbers this {_in_the_paper(claim, plan, of)} "
            f"Here it {_here(claim, table, plan, of)}"
        )


def _compared(claim: Claim, table: Table) -> Column | Cost | None:
    """What gives the claim's number of a row; None if the rows are not scored on such a set."""
    columns = (column for column in table.columns if column.paper == claim.number)
    return next(columns, None) or next((cost for cost in COSTS if cost.key == claim.number), None)


def _in_the_paper(claim: Claim, plan: Plan, of: Column | Cost | None) -> str:
    row = next(row for row in plan.study.variations if row.key == claim.row)
    cited = [e for e in plan.study.cited if e.group == row.group and e.label in (claim.published or (e.label,))]
    others = [_Number(e.label, e.values[claim.number]) for e in cited if claim.number in e.values]
    return f"{_verdict(claim, _Number(row.label or row.key, row.paper[claim.number]), others, of)}."


def _here(claim: Claim, table: Table, plan: Plan, of: Column | Cost | None) -> str:
    if not claim.here:
        return "cannot be checked: the study runs none of the other systems."
    if of is None:
        return "cannot be checked: the rows are not scored on such a set."
    known = {row.key: row for row in table.rows}
    numbers = {key: _value(known.get(key), table, of) for key in (claim.row, *claim.here)}
    missing = [key for key, value in numbers.items() if value is None]
    if missing:
        return f"cannot be checked: there is no result of {', '.join(missing)}."
    rows = [known[key] for key in numbers]
    if isinstance(of, Column) and not comparable.one_basis(rows, of):
        return "cannot be checked: the rows were measured over different tokens, sentences or signatures."
    first, *others = (_Number(key, value) for key, value in numbers.items() if value is not None)
    return f"{_verdict(claim, first, others, of)}; {_size(rows, plan)}."


def _value(row: Row | None, table: Table, of: Column | Cost) -> float | None:
    if row is None:
        return None
    mean = row.measures[of.key].mean if isinstance(of, Column) else of.value(row, table)
    return mean if mean is None or abs(mean) >= HUGE else round(mean, DIGITS)


def _size(rows: Sequence[Row], plan: Plan) -> str:
    """Which runs they are, so that a miniature is not read as the paper's experiment."""
    profile = plan.study.profiles[plan.profile]
    other = profile.set or profile.scale != type(profile.scale)()
    corpora = dict.fromkeys(corpus_name(outcome) for row in rows for outcome in row.outcomes)
    seeds = min(len(row.outcomes) for row in rows)
    where = f"profile {plan.profile}{', not the sizes of the paper' if other else ''}"
    return f"{where}, corpus {' and '.join(filter(None, corpora))}, {number(seeds, 'seed')} per row"


def _verdict(claim: Claim, first: _Number, others: Sequence[_Number], of: Column | Cost | None) -> str:
    """ "holds: 28.4 (big) − 26.36 (ConvS2S, best of 6) = 2.04, more than 2"."""
    costs = isinstance(of, Cost) or (of is not None and of.better == "lower")
    higher = claim.margin is not None and not costs
    best = (max if higher else min)(others, key=lambda other: other.value)
    named = _Number(f"{best.name}, best of {len(others)}" if len(others) > 1 else best.name, best.value)
    if claim.margin is not None:
        left, right = (first, named) if higher else (named, first)
        result = round(left.value - right.value, 9)  # 28.4 − 26.4 is 2, not 1.9999999999999982
        holds, sign, bound = result > claim.margin, "−", f"more than {claim.margin:g}"
    else:
        left, right, result = first, named, first.value / best.value if best.value else float("inf")
        holds, sign, bound = result < (claim.fraction or 0), "/", f"less than {claim.fraction:g}"
    equation = f" {sign} ".join(f"{_text(each.value)} ({each.name})" for each in (left, right))
    words = ("holds", bound) if holds else ("does not hold", f"not {bound}")
    shown = _text(result) if claim.margin is not None else f"{result:.3g}"
    return f"{words[0]}: {equation} = {shown}, {words[1]}"


def _text(value: float) -> str:
    return f"{value:.1e}".replace("e+", "e") if abs(value) >= HUGE else f"{value:.6g}".replace("-", "−")
