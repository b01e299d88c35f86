"""Significance tests of changes from base: between seeds or between sentences, never mixed in one table.

The mode "seeds" tests whether other trainings would differ. It compares every row with base over the seeds' values by
Dunnett's test and by Dunnett's T3, which does not assume equal variances. The larger of the two p-values decides.
Dunnett's test alone marks too many rows if one row varies more than the others, and T3 alone marks too many rows if
many rows have three seeds (benchmarks/levels.py). Rows that share steps with another row are paired by seed. The mode
"paired" pairs all rows by seed.

The mode "sentences" tests whether the same weights would differ on other sentences. It uses paired approximate
randomisation of the stored counts or shares (resampling.py), with Holm's correction over a column's rows. It does not
consider the noise between trainings.

The mode "auto" tests between seeds if base and at least one other row have three seeds or more. Rows with fewer seeds
are not tested or counted in the correction, and a note names them. The mode "none" tests nothing.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from experiments.errors import UserError
from experiments.messages import number
from experiments.store.results import seed_value
from experiments.tasks.columns import Column
from reports.results import dunnett, power, resampling
from reports.results.evaluation_readers import CountsOf
from reports.results.resampling import SharesOf, by_counts, by_shares
from reports.results.run_outcomes import Outcome
from reports.results.table import Row, Table, Test, change_digits, compared_values, one_basis
from reports.spec.table_spec import Note

MODES = ("auto", "seeds", "paired", "sentences", "none")
ALPHA, POWER = dunnett.ALPHA, power.POWER
ENOUGH_SEEDS = 3  # minimum number of seeds of a row that "auto" tests


def with_tests(table: Table, mode: str, counts_of: CountsOf, shares_of: SharesOf | None = None) -> Table:
    """Return the table with a Test on every measure that was tested. Raises UserError for a mode that is not in MODES.

    If rows are compared only within groups, as in a pivoted table, each group is tested separately.
    """
    if mode not in MODES:
        raise UserError(f"--significance {mode}: write one of {', '.join(MODES)}.")
    apart = len(table.families) > 1
    tested = [_tested(family, mode, counts_of, shares_of, apart) for family in table.families]
    rows = {row.key: row for family in tested for row in family.rows}
    return replace(
        table,
        rows=tuple(rows[row.key] for row in table.rows),
        test=next((family.test for family in tested if family.test), ""),
        test_notes=tuple(dict.fromkeys(note for family in tested for note in family.test_notes)),
    )


def _tested(table: Table, mode: str, counts_of: CountsOf, shares_of: SharesOf | None, apart: bool) -> Table:
    """Return the tested table of one family of rows.

    apart: whether there are several families, so that notes must name the family.
    """
    chosen = _chosen(table) if mode == "auto" else mode
    least = ENOUGH_SEEDS if mode == "auto" else 1
    if chosen == "none" or table.base_row is None:
        return replace(table, test_notes=tuple(_untested(table, mode)))
    tests: dict[tuple[str, str], Test] = {}
    notes: list[Note] = []
    listed = table.listed
    base = "the base of its group" if apart else table.base
    for column in table.columns:
        if chosen == "seeds":
            found, note = _seeds(table, column, least)
            of_branches, more = paired(table, column, least=least)
            found, note = found | of_branches, " ".join(filter(None, (note, more)))
            table, of_pairs = _with_changes_of_pairs(table, column, every=False)
            notes += of_pairs
        elif chosen == "paired":
            found, note = paired(table, column, every=True)
            table, of_pairs = _with_changes_of_pairs(table, column, every=True)
            notes += of_pairs
        elif column.counts is not None:
            found, note = by_counts(table, column, counts_of)
        else:
            found, note = by_shares(table, column, shares_of)
        tests |= {(key, column.key): test for key, test in found.items()}
        notes += (
            [Note(f"{table.base} and its group: {note}" if apart else note, "test")]
            if note and column in listed
            else []
        )
    table = replace(table, rows=tuple(_with(row, tests) for row in table.rows))
    if chosen == "seeds":
        for column in table.columns:
            table = _with_best(table, column)
    keys = {column.key for column in listed}
    tests = {(row, key): test for (row, key), test in tests.items() if key in keys}  # tests that the notes describe
    made = [Note(f"No significance test{'' if notes else f': {_NEEDED}'}.", "sign")]
    if tests:
        about = _about(chosen, base or "base", tests.values())
        if not any(test.marked for test in tests.values() if test.by != PAIRED or chosen == "paired"):
            about = f"{f'{table.base} and its group: n' if apart else 'N'}o change has {about.removeprefix('*: ')}"
        made = [Note(about, "sign")]
    if chosen == "seeds" and tests and (shared := _rows_sharing_steps(table)):
        alone = {key for key, _ in tests} <= shared
        starred = any(test.marked for (key, _), test in tests.items() if key in shared)
        about = (
            f"{'* on branches:' if starred else 'No change of a branch has'} {ABOUT.format(base=base, alpha=_LEVEL)}"
        )
        made = [*([] if alone else made), Note(about, "sign")]
    if few := [row.key for row in _compared(table) if chosen == "seeds" and len(row.outcomes) < least]:
        made.append(
            Note(f"No significance test for rows with fewer than {ENOUGH_SEEDS} seeds: {', '.join(few)}.", "sign")
        )
    return replace(table, test=chosen if tests else "", test_notes=(*made, *notes))


_NEEDED = "it needs complete rows, measured over the same tokens and sentences and by the same code as base"

_LEVEL = f"{ALPHA:g}".lstrip("0")
DUNNETT = "Dunnett"
BOTH = "the larger p of Dunnett's test and Dunnett's T3, which does not assume equal variances"
OF_ONE_ROW = "the larger p of Student's and Welch's t tests"


def _about(chosen: str, base: str, tests: Iterable[Test]) -> str:
    """Return the note that explains the star: the level and the tests."""
    if chosen == "paired":
        return f"*: p < {_LEVEL} against {base} ({PAIRED})."
    if chosen == "sentences":
        return (
            f"*: p < {_LEVEL} against {base}, between sentences or single examples (paired approximate randomisation, "
            f"{resampling.TRIALS:,} trials, Holm over a column's rows). Other trainings may differ by more."
        )
    used = dict.fromkeys(test.by for test in tests if test.by != PAIRED)  # branches have a separate note
    return f"*: p < {_LEVEL} against {base} ({'; or '.join(used)})."


def _with(row: Row, tests: dict[tuple[str, str], Test]) -> Row:
    measures = {key: replace(m, test=tests.get((row.key, key))) for key, m in row.measures.items()}
    return replace(row, measures=measures)


def _rows_sharing_steps(table: Table) -> set[str]:
    """Return the keys of the rows that may share steps with base."""
    base = table.base_row
    return {row.key for row in table.rows if base and row is not base and shares_steps(row, base)}


def _compared(table: Table) -> list[Row]:
    """Return the rows that have a change from base in some column, except ensembles, which have no seeds."""
    keys = {row.key for column in table.columns for row in table.compared(column)}
    return [row for row in table.rows if row.key in keys and not row.ensemble]


def _chosen(table: Table) -> str:
    compared = [len(row.outcomes) for row in _compared(table)]
    if table.base_row is None or not compared:
        return "none"
    return "seeds" if min(len(table.base_row.outcomes), max(compared)) >= ENOUGH_SEEDS else "none"


def _with_seeds(table: Table, column: Column, least: int) -> list[Row]:
    """Return the compared rows with at least `least` seeds whose trainings are independent of base's trainings.

    Ensembles are left out, because a single value has no spread.
    """
    shared = _rows_sharing_steps(table)
    rows = [row for row in table.compared(column) if not row.ensemble and len(row.outcomes) >= least]
    return [row for row in rows if row.key not in shared]


def _untested(table: Table, mode: str) -> Iterator[Note]:
    if mode in ("seeds", "paired", "sentences"):
        yield Note("No significance test: base is not in the table.", "sign")
    if mode == "auto" and any(table.compared(column) for column in table.columns):
        counts = {len(row.outcomes) for row in table.rows if not row.ensemble} or {1}
        base = len(table.base_row.outcomes) if table.base_row else 0
        if len(counts) == 1:
            seeds = min(counts)
            text = (
                f"{'One seed' if seeds == 1 else f'{seeds} seeds'}: no significance test (needs {ENOUGH_SEEDS} or "
                "more)."
            )
        elif base < ENOUGH_SEEDS:
            text = f"No significance test: base has {number(base, 'seed')} (needs {ENOUGH_SEEDS} or more)."
        else:
            text = f"No significance test: all rows but base have fewer than {ENOUGH_SEEDS} seeds."
        yield Note(text, "sign")


def _samples(table: Table, column: Column, least: int) -> list[list[float]]:
    """Return the values of base, then the values of each row that is tested against base; [] if nothing is tested."""
    base, rows = table.base_row, _with_seeds(table, column, least)
    tested = [base, *rows] if base is not None and rows and not base.ensemble else []
    return [compared_values(row.measures[column.key].values, column) for row in tested]


def _seeds(table: Table, column: Column, least: int) -> tuple[dict[str, Test], str]:
    base, rows, samples = table.base_row, _with_seeds(table, column, least), _samples(table, column, least)
    if base is None or not samples:
        return {}, ""
    control, *values = samples
    pooled = dunnett.family(control, values)
    if pooled is None:
        return {}, f"{column.header}: no significance test, because {_no_spread(samples)}."
    tests, equal, without = dict[str, Test](), list[str](), list[str]()
    for row, own in zip(rows, values, strict=True):
        families, by = [pooled], DUNNETT
        if min(len(control), len(own)) > 1:
            separate = dunnett.t3(control, own, len(rows))
            if separate is None:
                without.append(row.key)
                continue
            families, by = [pooled, separate], BOTH if len(rows) > 1 else OF_ONE_ROW
        else:
            equal.append(row.key)
        difference, n = float(np.mean(own) - np.mean(control)), len(own)
        half = max(family.critical() * family.error(n) for family in families)
        p = max(family.p(difference, n) for family in families)
        tests[row.key] = Test(p, difference - half, difference + half, _paired(base, row, column), by)
    return tests, _power(pooled, column, samples, equal, without)


def _no_spread(samples: list[list[float]]) -> str:
    if max(map(len, samples)) == 1:
        return "one seed per row shows no spread between seeds"
    if all(len(set(values)) == 1 for values in samples):
        return "its values do not vary between seeds"
    return "its spread between seeds is too small beside values of another order of magnitude"


# Permanent reasons why a seed has no value.
FAILED = frozenset({"failed", "diverged", "nan", "infinite"})


def _with_best(table: Table, column: Column) -> Table:
    """Mark the best value of a column as bold.

    With `bold = "undistinguished"`, values that a test does not distinguish from the best value are also bold. Nothing
    is bold if the better direction is unknown, if no row is tested, if all rows would be bold, if rows cannot be
    compared or share steps, or if a row is not complete. Rows with a failed seed are left out.
    """
    if _rows_sharing_steps(table) or not column.better:
        return table
    requested = [row for row in table.rows if row.measures[column.key].requested]
    asked = [row for row in requested if FAILED.isdisjoint(row.measures[column.key].lacking)]
    tested = [row for row in asked if row.measures[column.key].test is not None]
    if not tested or any(row.measures[column.key].mean is None for row in asked):
        return table
    if not one_basis(table.rows, column):
        return table
    values = {row.key: compared_values(row.measures[column.key].values, column) for row in asked}
    means = {key: float(np.mean(of)) for key, of in values.items()}
    best = min(means.values()) if column.better == "lower" else max(means.values())
    # Equal means may differ by rounding, because the order of additions differs.
    bold = {key for key, mean in means.items() if math.isclose(mean, best, rel_tol=1e-12)}
    if table.spec.bold == "undistinguished":
        first = next(key for key in means if key in bold)
        others = [key for key in means if key != first]
        near = dunnett.undistinguished(values[first], [values[key] for key in others])
        bold |= {key for key, same in zip(others, near, strict=True) if same}
    if len(bold) == len(means):
        return table
    measures = {row.key: {**row.measures, column.key: replace(row.measures[column.key], best=True)} for row in asked}
    rows = (replace(row, measures=measures[row.key]) if row.key in bold else row for row in table.rows)
    return replace(table, rows=tuple(rows))


def _paired(base: Row, row: Row, column: Column) -> tuple[float, float] | None:
    """Return the uncorrected t interval of the differences between runs of the same seed.

    Runs of the same seed form pairs, because they read the data in the same order. Return None if a run has no pair, or
    if there is only one pair.
    """
    differences = _differences(row, base, column)
    whole = 1 < len(differences) == len(row.outcomes) == len(base.outcomes)
    return dunnett.t_interval(differences)[1:] if whole else None


def _power(
    pooled: dunnett.Family, column: Column, samples: list[list[float]], equal: list[str], without: list[str]
) -> str:
    """Return the note on the spread between seeds and on the differences that these seeds can detect.

    equal: rows that were tested under the assumption of equal variances. without: rows without a test.
    """
    unit, digits = _scale(column)
    sds = [float(np.std(values, ddof=1)) for values in samples if len(values) > 1]
    n = min(pooled.rows)
    of = f" (in a row of {number(n, 'seed')})" if len(set(pooled.rows)) > 1 else ""
    words = (
        f"{column.header}: {number(len(pooled.rows), 'row')} compared, sd {min(sds):.{digits}f} to "
        f"{max(sds):.{digits}f}{unit}, pooled {pooled.variance**0.5:.{digits}f}. These seeds detect differences of "
        f"{power.detectable_by_both(pooled):.{digits}f}{of} with {POWER * 100:.0f} % power, if all rows have the "
        "pooled sd."
    )
    if equal:
        words += (
            " Tested by Dunnett's test alone, which assumes equal variances, because one side has a single seed: "
            f"{', '.join(equal)}."
        )
    return words + (f" Not tested, because their values do not vary: {', '.join(without)}." if without else "")


def _scale(column: Column) -> tuple[str, int]:
    """Return the unit of a column's compared values, and the number of digits after the decimal point."""
    return " in ln" if column.logarithmic else "", max(change_digits(column), 2)


# Dunnett's test assumes that the rows' trainings are independent. A branch shares its first steps with its parent row
# and with the parent's other branches. For each seed, the difference of two rows is one number, and the numbers of
# different seeds are independent, so the t test of these differences is valid. Bonferroni's correction over the tested
# rows of a column is valid for dependent tests.


ABOUT = (
    "p < {alpha} against {base} (t test of the differences of the same seed, Bonferroni), because branches share "
    "steps with other rows. Nothing is bold for the same reason."
)
PAIRED = "t test of the same seeds' differences, Bonferroni"


def shares_steps(row: Row, base: Row) -> bool:
    """Return whether two rows may share steps, so that their values are not independent."""
    return row.branch or base.branch


def paired(table: Table, column: Column, *, every: bool = False, least: int = 1) -> tuple[dict[str, Test], str]:
    """Test a column's branches against base, paired by seed. Return the tests by row, and a note on their power.

    every: test all rows, not only branches. least: rows with fewer seeds are left out.
    """
    base = table.base_row
    if base is None or base.ensemble:
        return {}, ""
    rows = [row for row in table.compared(column) if not row.ensemble and len(row.outcomes) >= least]
    rows = [row for row in rows if every or shares_steps(row, base)]
    tests, words, alike = {}, [], []
    for row in rows:
        differences = _differences(row, base, column)
        family = _family(differences, len(rows))
        if family is None:
            alike.append(row.key)
            continue
        n, mean = len(differences), float(np.mean(differences))
        half = family.critical() * family.error(n)
        p = min(1.0, family.p(mean, n) * len(rows))
        _, low, high = dunnett.t_interval(differences)
        tests[row.key] = Test(p, mean - half, mean + half, (low, high), PAIRED)
        words.append(f"{power.detectable(family, n):.{_scale(column)[1]}f} ({row.key})")
    what = "paired differences" if every else "differences of branches"
    detectable = ", ".join(words)
    notes = [f"{column.header}: {what} detected with {POWER * 100:.0f} % power: {detectable}"] if words else []
    notes += [f"{column.header}: {', '.join(alike)} not tested, because the differences do not vary"] if alike else []
    return tests, ". ".join(notes) + "." if notes else ""


def _differences(row: Row, base: Row, column: Column) -> list[float]:
    """Return the differences, row minus base, of all pairs of runs with the same seed (see `pair_of`)."""
    values = []
    for one in (row, base):
        measured = one.measures[column.key].values  # complete, because only complete rows are compared
        seeds = map(pair_of, one.outcomes)
        values.append(dict(zip(seeds, compared_values(measured, column), strict=True)))
    ours, theirs = values
    return [ours[seed] - theirs[seed] for seed in ours if seed in theirs and seed != ""]


def pair_of(outcome: Outcome) -> int | str:
    """Return the key that pairs two runs: the seed, or for an imported run its seed in the source ("" if unknown).

    The study's seed of an imported run is only a running number.
    """
    imported = outcome.record.imported if outcome.record is not None else None
    return outcome.run.seed if imported is None else seed_value(imported.seed or "")


def _with_changes_of_pairs(table: Table, column: Column, *, every: bool) -> tuple[Table, list[Note]]:
    """Compute changes of paired rows over pairs of runs only. Return the table, and a note on runs without a pair."""
    base = table.base_row
    if base is None or base.ensemble:
        return table, []
    changed: dict[str, Row] = {}
    apart: dict[tuple[int, int], list[str]] = {}  # (pairs, runs) → rows
    for row in table.compared(column):
        if row.ensemble or not (every or shares_steps(row, base)):
            continue
        differences = _differences(row, base, column)
        measure = row.measures[column.key]
        if len(differences) < max(len(measure.values), len(base.measures[column.key].values)):
            apart.setdefault((len(differences), len(measure.values)), []).append(row.key)
            change = float(np.mean(differences)) if differences else None
            measures = {**row.measures, column.key: replace(measure, change=change)}
            changed[row.key] = replace(row, measures=measures)
    words = [
        f"{', '.join(keys)}: {number(pairs, 'pair')} of {number(runs, 'run')} and the "
        f"{len(base.measures[column.key].values)} of {base.key}"
        for (pairs, runs), keys in apart.items()
    ]
    notes = [
        Note(f"{column.header}: Δ, intervals and tests use only runs that form pairs ({'; '.join(words)}).", "sign")
    ]
    return replace(table, rows=tuple(changed.get(row.key, row) for row in table.rows)), notes if words else []


def _family(differences: list[float], rows: int) -> dunnett.Family | None:
    """Return the family for the t test of the mean difference; None for one difference or for equal differences.

    The family describes two independent samples. Each sample has half the variance of the differences, so the
    difference of the two means has the standard error of the mean difference.
    """
    n = len(differences)
    variance = float(np.var(differences, ddof=1)) if n > 1 else 0.0
    if variance <= (1e-12 * max(map(abs, differences), default=0.0)) ** 2:
        return None
    return dunnett.Family(n, (n,), variance / 2, n - 1, dunnett.ALPHA / rows)
