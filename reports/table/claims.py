"""Check claims about numbers, in the published numbers and in the numbers of the table's runs.

A claim about runs holds if the whole 95 % interval of the table's test satisfies the claim, and does not hold if no
part of the interval does. A claim that a row is better or worse also needs the star of the table's test. In all other
cases, the claim cannot be shown with these seeds. Published numbers and costs are compared without a test.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from experiments.errors import UserError
from experiments.messages import number
from experiments.tasks.columns import Column, named
from reports.results.number_text import power, significant
from reports.results.table import CheckedClaim, Finding, Row, Table, change_digits, differing_code, with_changes
from reports.spec.sentences import Comparison, System, compared, parse
from reports.spec.table_spec import Note
from reports.table.cost import COSTS, Cost
from reports.table.provenance import corpus_name

HOLDS, FAILS, OPEN, UNKNOWN = "holds", "does not hold", "cannot be shown", "cannot be checked"
_LEAST = 1e-300  # replaces zero before a logarithm is taken
_EXACT = 9  # digits to which differences are rounded: 28.4 − 26.4 is 2, not 1.9999999999999982


class _Gap(NamedTuple):
    """The amount by which the first system of a pair is better than the second."""

    gain: float  # on the scale of Δ; for a factor, the logarithm of the ratio
    # The ends of the 95 % interval of `gain`: equal to `gain` for exact numbers, infinite if nothing is tested.
    low: float
    high: float
    marked: bool  # whether the difference is significant; for exact numbers, whether it is not zero
    words: str  # description of the difference


def checked(table: Table, retest: Callable[[Table], Table]) -> tuple[CheckedClaim, ...]:
    """Return the table's claims with the results of their checks. retest: a function that tests a table again."""
    known = _Differences(table, retest, {})
    return tuple(
        CheckedClaim(claim.text, claim.check, *_check(parse(claim.check), known)) for claim in table.spec.claims
    )


def _check(comparison: Comparison, known: "_Differences") -> tuple[Finding | None, Finding]:
    """Check a claim in the published numbers (None if the numbers are not published), and in the table's runs."""
    pairs = compared(comparison, known.table.spec.rows, known.table.spec.cited)
    try:
        of = _compared(comparison.number, known.table)
    except UserError as ambiguous:
        return None, Finding(UNKNOWN, str(ambiguous).rstrip("."))
    if isinstance(of, Column) and not of.better and not comparison.within:
        unknown = Finding(UNKNOWN, f"it is unknown whether lower or higher {of.metric} is better: declare `better`")
        return None, unknown
    return _published(comparison, pairs, of), _here(comparison, pairs, of, known)


def _compared(name: str, table: Table) -> Column | Cost | None:
    """Return the column or cost to which a name in a claim refers; None if the table has no such column or cost.

    The name of a published number refers to the first column that prints the number. Raises UserError for any other
    name that several columns have.
    """
    found = next((column for column in table.columns if column.paper == name), None) or named(name, table.columns)
    if found:
        return found
    return next((cost for cost in COSTS if cost.key == name), None)


def _published(
    comparison: Comparison, pairs: Sequence[tuple[System, System]], of: Column | Cost | None
) -> Finding | None:
    name = comparison.number
    there = [(a, b) for a, b in pairs if name in a.published and name in b.published]
    if not there:
        return None
    gaps = [_exact((a.name, a.published[name]), (b.name, b.published[name]), comparison, of) for a, b in there]
    return _judged(comparison, gaps, len(pairs), "published")


def _exact(
    first: tuple[str, float], second: tuple[str, float], comparison: Comparison, of: Column | Cost | None
) -> _Gap:
    logarithms = comparison.factor or (isinstance(of, Column) and of.logarithmic)
    values = [math.log(max(value, _LEAST)) if logarithms else value for _, value in (first, second)]
    lower = isinstance(of, Cost) or (of is not None and of.better == "lower")
    gain = round((values[1] - values[0]) if lower else (values[0] - values[1]), _EXACT)
    words = _words((first[0], _text(first[1], of)), (second[0], _text(second[1], of)), gain, comparison, of)
    return _Gap(gain, gain, gain, gain != 0, words)


def _words(
    first: tuple[str, str], second: tuple[str, str], gain: float, comparison: Comparison, of: Column | Cost | None
) -> str:
    """Return a comparison such as "28.4 (big) against 26.36 (ConvS2S): better by 2.04", with the subject first."""
    if comparison.worse:  # the subject is the second system of the pair
        first, second, gain = second, first, -gain
    digits = max(change_digits(of), 2) if isinstance(of, Column) else 4
    amount = f"a factor of {math.exp(abs(gain)):.3g}" if comparison.factor else _text(round(abs(gain), digits), of)
    unit = " in ln" if isinstance(of, Column) and of.logarithmic and not comparison.factor else ""
    how = f"{'better' if gain > 0 else 'worse'} by {amount}{unit}" if gain else "equal"
    return f"{' against '.join(f'{value} ({name})' for name, value in (first, second))}: {how}"


def _text(value: float, of: Column | Cost | None) -> str:
    """Return a number of a claim: FLOPs like 2.3e19, other costs with six digits, values of metrics with all digits."""
    if isinstance(of, Cost):
        return power(value) if of.power else significant(value, 6)
    return significant(value, 15)


def _here(
    comparison: Comparison, pairs: Sequence[tuple[System, System]], of: Column | Cost | None, known: "_Differences"
) -> Finding:
    every, pairs = len(pairs), [(a, b) for a, b in pairs if a.row and b.row]
    if not pairs:
        return Finding(UNKNOWN, "the study does not run the other systems")
    if of is None:
        return Finding(UNKNOWN, "the rows are not scored on this set")
    rows = {row.key: row for row in known.table.rows}
    keys = list(dict.fromkeys(system.row for pair in pairs for system in pair))
    values = {key: _value(rows.get(key), of, known.table) for key in keys}
    if missing := [key for key, value in values.items() if value is None]:
        return Finding(UNKNOWN, f"there is no result of {', '.join(missing)}")
    gaps = []
    for first, second in ((rows[a.row], rows[b.row]) for a, b in pairs):
        if isinstance(of, Cost):
            numbers = [(row.key, values[row.key] or 0.0) for row in (first, second)]
            gaps.append(_exact(numbers[0], numbers[1], comparison, of))
        elif (gap := known.gap(first, second, comparison, of)) is not None:
            gaps.append(gap)
        else:
            files = differing_code((first, second), of)
            how = (
                f"made by different code ({', '.join(name.removeprefix('/') for name in files)})"
                if files
                else "measured over different tokens or sentences"
            )
            return Finding(UNKNOWN, f"{first.key} and {second.key} were {how}")
    found = _judged(comparison, gaps, every, "run")
    if found.state == HOLDS and len(gaps) < every:
        closest = _judged(comparison, gaps, len(gaps), "run").words
        not_run = f"{every - len(gaps)} of {every} comparisons need rows that the study does not run"
        return Finding(UNKNOWN, f"{not_run}; in the other {len(gaps)} the claim holds: {closest}")
    seeds = min(len(rows[key].outcomes) for key in keys)
    return replace(found, state=f"{OPEN} with {number(seeds, 'seed')}") if found.state == OPEN else found


def _value(row: Row | None, of: Column | Cost, table: Table) -> float | None:
    value = None if row is None else row.measures[of.key].mean if isinstance(of, Column) else of.value(row, table)
    return value / of.unit if value is not None and isinstance(of, Cost) else value


@dataclass
class _Differences:
    """Differences between any two rows of a table, tested like the table's changes. Tested tables are cached."""

    table: Table
    retest: Callable[[Table], Table]
    made: dict[tuple[str | None, str, bool], Table]  # cache: (base, column, whether logarithms are compared) → table

    def gap(self, first: Row, second: Row, comparison: Comparison, column: Column) -> _Gap | None:
        """Return the amount by which the first row is better; None if the two rows cannot be compared."""
        if comparison.factor and not column.logarithmic:
            column = replace(column, logarithmic=True)
        base, other = (first, second) if self.table.base_of(second) == first.key else (second, first)
        table = self._from(base, other, column)
        measure = next(row for row in table.rows if row.key == other.key).measures[column.key]
        if measure.change is None:
            return None
        sign = 1 if (other is first) == (column.better == "higher") else -1
        gain, test = sign * measure.change, measure.test
        numbers = [(row.key, f"{row.measures[column.key].mean:.{column.digits}f}") for row in (first, second)]
        words = _words(numbers[0], numbers[1], gain, comparison, column)
        if test is None:
            return _Gap(gain, -math.inf, math.inf, False, f"{words}; no significance test")
        low, high = sorted((sign * test.low, sign * test.high))
        shown = (significant(math.exp(end) if comparison.factor else end, 3) for end in (low, high))
        return _Gap(gain, low, high, test.marked, f"{words} (95 % interval {' to '.join(shown)})")

    def _from(self, base: Row, other: Row, column: Column) -> Table:
        """Return the table with changes from `base`. Return the present table if its changes are from `base`."""
        own = next((own for own in self.table.columns if own.key == column.key), None)
        if self.table.base_of(other) == base.key and own == column:
            return self.table
        key = (base.key, column.key, column.logarithmic)
        if key not in self.made:
            family = next(of for of in self.table.families if base in of.rows)
            rows = family.rows if other in family.rows else self.table.rows
            rows = with_changes(rows, base.key, [column])
            apart = replace(self.table, rows=rows, base=base.key, columns=(column,), pivot={}, groups=(), test="")
            self.made[key] = self.retest(apart)
        return self.made[key]


def _judged(comparison: Comparison, gaps: Sequence[_Gap], every: int, done: str) -> Finding:
    """Return the state of a claim, and the pair that decides the state: the pair that agrees least with the claim.

    every: the number of all pairs of the claim. gaps: only the pairs that are `done` ("published" or "run").
    """
    bound = round(math.log(comparison.bound), _EXACT) if comparison.factor else comparison.bound
    gaps = sorted(gaps, key=lambda gap: -abs(gap.gain) if comparison.within else gap.gain)
    states = [_state(gap, bound, comparison) for gap in gaps]
    state = min(states, key=(FAILS, OPEN, HOLDS).index)
    words, left = gaps[states.index(state)].words, every - len(gaps)
    of = f" (of {number(every, 'comparison')}{f', {left} not {done}' if left else ''})" if every > 1 else ""
    return Finding(state, words + of)


def _state(gap: _Gap, bound: float, comparison: Comparison) -> str:
    low, high = gap.low, gap.high
    if low == high:
        gain = abs(gap.gain) if comparison.within else gap.gain
        holds = gain <= bound if comparison.within else gain > bound or (gain == bound and not comparison.strict)
        return HOLDS if holds else FAILS
    if comparison.within:
        return HOLDS if -bound <= low and high <= bound else FAILS if low >= bound or high <= -bound else OPEN
    if low >= bound and (gap.marked or bound < 0):
        return HOLDS
    return FAILS if high <= bound and (gap.marked or bound > 0) else OPEN


def notes(table: Table) -> Iterator[Note]:
    """Yield a note on the runs in which the claims are checked, then one note per claim."""
    if table.claims:
        yield Note(f"Claims checked with {_size(table)}.", "study")
    for claim in table.claims:
        said = f"“{claim.text}”: {claim.check}" if claim.text else claim.check
        paper = f"In the published numbers it {claim.paper.state}: {claim.paper.words}. " if claim.paper else ""
        yield Note(f"Claim: {said}. {paper}Here it {claim.here.state}: {claim.here.words}.", "study")


def _size(table: Table) -> str:
    """Return a description of the table's runs, so that no reader mistakes small runs for the paper's experiment."""
    corpora = dict.fromkeys(corpus_name(outcome) for row in table.rows for outcome in row.outcomes)
    counts = sorted(len(row.outcomes) for row in table.rows)
    seeds = number(counts[-1], "seed") if counts[0] == counts[-1] else f"{counts[0]} to {number(counts[-1], 'seed')}"
    known = [name for name in corpora if name]
    where = [f"profile {table.spec.profile}"]
    where += [] if table.spec.paper_sizes else ["not the sizes of the paper"]
    where += [f"corpus {' and '.join(known)}"] if known else []
    return f"{seeds} per row ({', '.join(where)})"
