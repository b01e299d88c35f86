"""Seeds by a rule: its error rates and its savings in simulated tables, and what it looks at."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from experiments.errors import UserError
from experiments.identity import with_members
from reports.results import rule
from reports.results.dunnett import seeds_for
from reports.results.rule import (
    ALIKE,
    DIFFERS,
    OPEN,
    UNDECIDED,
    Rule,
    bounds_of,
    decide,
    decisions_of,
    rule_of,
    seeds_asked,
    seeds_by_rule,
)
from reports.table.build import build_table
from tests.unit.reports.conftest import COLUMNS

ROWS = 9
RULE = Rule(start=3, most=12, alpha=0.05, power=0.8, difference=2.0)


def table(rng, effects, seeds=RULE.most):
    """(base, rows): normal values of spread 1."""
    base = rng.normal(50, 1, seeds).tolist()
    return base, {f"row{n}": rng.normal(50 + effect, 1, seeds).tolist() for n, effect in enumerate(effects)}


def simulated(effects, tables, seed):
    """Over many tables: how often a row without effect is called different; verdicts; mean seeds a row."""
    rng, wrong, verdicts, spent = np.random.default_rng(seed), 0, [], []
    for _ in range(tables):
        base, rows = table(rng, effects)
        found = decide(base, rows, RULE)
        wrong += any(found[f"row{n}"].verdict == DIFFERS for n, effect in enumerate(effects) if effect == 0)
        verdicts.append([found[f"row{n}"].verdict for n in range(len(effects))])
        most, of_rows = seeds_asked(found)
        spent.append((most + sum(of_rows.values())) / (len(effects) + 1))
    return wrong / tables, np.array(verdicts), float(np.mean(spent))


def within(rate, tables):
    """A true rate's bound in a simulation: 99.5 % of true ones pass."""
    return rate + 2.6 * (rate * (1 - rate) / tables) ** 0.5


def test_family_wise_error_without_any_effect_and_with_some():
    without, _, _ = simulated([0.0] * ROWS, 1000, seed=1)
    among, _, _ = simulated([0.0, 0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 4.0, -4.0], 1000, seed=2)
    assert without <= within(0.05, 1000)
    assert among <= within(0.05, 1000)


def test_power_and_seeds_against_a_fixed_number_of_seeds():
    """A difference of two standard deviations: fixed seeds for the same power, and what the rule spends."""
    fixed = seeds_for(2.0, 1.0, ROWS)
    _, verdicts, spent = simulated([0.0, 2.0] * 4 + [0.0], 400, seed=3)
    effects = verdicts[:, 1::2]
    assert (effects == DIFFERS).mean() >= 0.8 - 2.6 * (0.16 / effects.size) ** 0.5
    assert (effects == ALIKE).mean() <= within(0.2, 400)  # rows of one table share base, so 400 of them count
    assert spent == pytest.approx(4.84, abs=0.15) and fixed == 7  # docs/seeds.md
    for effect, verdict, mean in ((0.0, ALIKE, 3.84), (4.0, DIFFERS, 3.18)):
        _, verdicts, spent = simulated([effect] * ROWS, 200, seed=4)
        assert spent == pytest.approx(mean, abs=0.15) and (verdicts == verdict).mean() > 0.9


def test_what_is_not_asked_for_changes_nothing():
    base, rows = table(np.random.default_rng(5), [0.0, 1.0, 2.0, 4.0])
    found = decide(base, rows, RULE)
    most, of_rows = seeds_asked(found)
    assert decide(base[:most], {key: values[: of_rows[key]] for key, values in rows.items()}, RULE) == found
    assert decide(base, dict(reversed(rows.items())), RULE) == found
    assert decide([-v for v in base], {k: [-v for v in values] for k, values in rows.items()}, RULE) == {
        key: one._replace(difference=-one.difference) for key, one in found.items()
    }


def test_it_goes_one_seed_at_a_time_and_waits_for_all_undecided_rows():
    base, rows = table(np.random.default_rng(6), [0.0, 1.0, 2.0, 4.0])
    asked, steps = {"base": RULE.start} | dict.fromkeys(rows, RULE.start), 0
    while True:
        found = decide(base[: asked["base"]], {key: values[: asked[key]] for key, values in rows.items()}, RULE)
        most, of_rows = seeds_asked(found)
        if {"base": most, **of_rows} == asked:
            break
        open_rows = [key for key, one in found.items() if one.verdict == OPEN]
        assert {of_rows[key] - asked[key] for key in open_rows} == {1} and most == asked["base"] + 1
        asked, steps = {"base": most, **of_rows}, steps + 1
    assert steps <= RULE.most - RULE.start
    assert found == decide(base, rows, RULE)
    assert OPEN not in {one.verdict for one in found.values()}


def test_an_interval_shows_what_the_verdict_says():
    base, rows = table(np.random.default_rng(7), [0.0, 1.0, 2.0, 4.0, -4.0])
    for one in decide(base, rows, RULE).values():
        assert (abs(one.difference) > one.half) == (one.verdict == DIFFERS)
        assert one.verdict != UNDECIDED or one.seeds == RULE.most


def test_bounds_are_the_same_at_every_call_and_fall():
    bounds = bounds_of(RULE, ROWS)
    bounds_of.cache_clear()
    assert bounds_of(RULE, ROWS) == bounds
    assert bounds.upper[0] > bounds.upper[-1] > 2 and bounds.lower[0] > bounds.lower[-1] > 0


@pytest.mark.parametrize("rows", [1, 30])
def test_one_look_at_the_end_is_dunnetts_test(rows):
    """With start = max all of the error is spent at once: Dunnett's critical value, by simulation."""
    from reports.results.dunnett import table_of

    [upper] = bounds_of(Rule(5, 5, 0.05, 0.8, 1.0), rows).upper
    assert upper == pytest.approx(table_of(1.0, rows, 5).critical(), rel=0.02)


def first_passed(values_KT, bounds):
    """For each look, the share of tables whose value has been beyond its bound by then."""
    return np.logical_or.accumulate(values_KT > np.array(bounds)[:, None]).mean(axis=1)


@pytest.mark.parametrize(("rho_upper", "rho_lower"), [(rule.RHO_UPPER, rule.RHO_LOWER), (2.0, 3.0)])
def test_each_look_spends_its_share_of_the_errors(monkeypatch, rho_upper, rho_lower):
    """α t^ρ of all tables have a row beyond the upper bound by the share t of the seeds, β t^ρ of rows the lower."""
    monkeypatch.setattr(rule, "RHO_UPPER", rho_upper)
    monkeypatch.setattr(rule, "RHO_LOWER", rho_lower)
    asked, rows, tables = Rule(start=2, most=5, alpha=0.2, power=0.6, difference=1.0), 3, 20_000
    bounds_of.cache_clear()
    bounds = bounds_of(asked, rows)
    bounds_of.cache_clear()
    drawn = np.random.default_rng(11).normal(7.0, 2.5, (tables, rows + 1, asked.most))
    t = []
    for n in asked.looks:
        seen = drawn[:, :, :n]
        pooled = seen.var(axis=2, ddof=1).mean(axis=1)  # equal numbers of seeds
        t.append((seen[:, 1:].mean(axis=2) - seen[:, :1].mean(axis=2)) / np.sqrt(pooled * 2 / n)[:, None])
    shares = np.array([n / asked.most for n in asked.looks])
    of_upper = first_passed(np.abs(t).max(axis=2), bounds.upper)
    of_lower = first_passed(np.array(t)[:, :, 0], bounds.lower)
    assert of_upper == pytest.approx(0.2 * shares**rho_upper, abs=3.5 * (0.16 / tables) ** 0.5 * 1.3)
    assert of_lower == pytest.approx(0.4 * shares**rho_lower, abs=3.5 * (0.24 / tables) ** 0.5 * 1.3)


def test_a_look_that_spends_nothing_decides_nothing():
    """Four of 40,000 tables in all: at most looks no bound can be known, so that any difference waits."""
    bounds = bounds_of(Rule(start=2, most=100, alpha=1e-4, power=0.9999, difference=1.0), 1)
    assert len(bounds.upper) == len(bounds.lower) == 99
    assert [n for n, bound in enumerate(bounds.upper, start=2) if bound < math.inf] == [13, 38, 63, 88]
    early = {"far": [900.0, 901.0]}
    assert decide([0.0, 1.0], early, Rule(2, 100, 1e-4, 0.9999, 1.0)) == {"far": rule.Decision(OPEN, 3)}


def pooled_sd(*samples):
    """Within samples of any sizes."""
    within = sum(((np.array(values) - np.mean(values)) ** 2).sum() for values in samples)
    return float(np.sqrt(within / sum(len(values) - 1 for values in samples)))


def test_a_decided_row_lends_its_spread_with_the_seeds_that_decided_it():
    """What a row was given afterwards, for another table, has no part in the other rows' intervals."""
    asked = Rule(start=3, most=5, alpha=0.05, power=0.8, difference=0.5)
    base = [50.0, 50.4, 49.7, 50.1, 50.3]
    far, near = [70.0, 70.3, 69.5, 1e6, -1e6], [50.9, 50.2, 50.6, 50.8, 51.0]
    bounds = bounds_of(asked, 2)
    found = decide(base, {"far": far, "near": near}, asked)
    assert (found["far"].verdict, found["far"].seeds) == (DIFFERS, 3)
    assert found["far"].difference == pytest.approx(np.mean(far[:3]) - np.mean(base[:3]))
    assert found["far"].half == pytest.approx(bounds.upper[0] * pooled_sd(base[:3], far[:3], near[:3]) * (2 / 3) ** 0.5)
    assert (found["near"].verdict, found["near"].seeds) == (UNDECIDED, 5)
    assert found["near"].difference == pytest.approx(np.mean(near) - np.mean(base))
    assert found["near"].half == pytest.approx(bounds.upper[2] * pooled_sd(base, far[:3], near) * (2 / 5) ** 0.5)


def test_the_rows_of_the_whole_table_set_the_bounds():
    """One row of a table of twenty is decided as all twenty are: its interval is wider than alone."""
    base, rows = table(np.random.default_rng(8), [4.0])
    alone, among = decide(base, rows, RULE), decide(base, rows, RULE, compared=20)
    assert alone["row0"].seeds == among["row0"].seeds == 3
    spread = pooled_sd(base[:3], rows["row0"][:3]) * (2 / 3) ** 0.5
    assert alone["row0"].half == pytest.approx(bounds_of(RULE, 1).upper[0] * spread)
    assert among["row0"].half == pytest.approx(bounds_of(RULE, 20).upper[0] * spread)
    assert decide(base, rows, RULE, compared=0) == decide(base, rows, RULE, compared=1) == alone


@pytest.mark.parametrize(("above", "verdict"), [(-1e-6, UNDECIDED), (1e-6, ALIKE)])
def test_a_row_is_alike_from_the_lower_bound_on(above, verdict):
    base, row = [50.0, 50.4, 49.7], [50.5, 50.1, 50.9]
    d, spread = abs(np.mean(row) - np.mean(base)), pooled_sd(base, row) * (2 / 3) ** 0.5
    one = Rule(3, 3, 0.05, 0.8, 1.0)
    least = d + bounds_of(one, 1).lower[0] * spread + above  # bounds do not depend on the difference
    assert decide(base, {"row": row}, replace(one, difference=least))["row"].verdict == verdict
    assert decide(row, {"row": base}, replace(one, difference=least))["row"].verdict == verdict


def test_a_row_differs_beyond_the_upper_bound_only():
    base, row, one = [50.0, 50.4, 49.7], [50.5, 50.1, 50.9], Rule(3, 3, 0.05, 0.8, 1e-9)
    half = bounds_of(one, 1).upper[0] * pooled_sd(base, row) * (2 / 3) ** 0.5
    for factor, verdict in ((0.999, UNDECIDED), (1.001, DIFFERS)):
        moved = [value - np.mean(row) + np.mean(base) + factor * half for value in row]
        found = decide(base, {"row": moved}, one)["row"]
        assert found.verdict == verdict and found.half == pytest.approx(half)


# --- The rule on a study's results

BY_RULE = {"start": 3, "max": 5, "stop": {"difference": 0.3}}
BASE, FAR, NEAR = [25.0, 25.2, 24.9, 25.1, 25.3], [35.0, 35.3, 34.9, 35.2, 35.1], [25.3, 25.6, 24.8, 25.9, 25.5]


def scores(values, ppl=5.0):
    """Perplexity and BLEU of each seed; None for a seed that is not there."""
    return [None if value is None else (ppl + 0.01 * n, value) for n, value in enumerate(values)]


def ruled(bench, **rows):
    """A plan of rows whose seeds follow the rule; BLEU decides."""
    for number, (key, (values, more)) in enumerate(rows.items()):
        bench.row(key, {"model.d_ff": 8 * number} if number else {}, results=scores(values), **more)
    bench.study["seeds"] = BY_RULE
    return replace(bench.plan(), by_rule=True)


def test_the_first_column_without_a_logarithm_decides_unless_one_is_named(bench):
    study = ruled(bench, base=(BASE[:3], {})).study
    assert rule_of(study, COLUMNS) == (Rule(3, 5, 0.05, 0.8, 0.3), COLUMNS[1])
    assert rule_of(study, COLUMNS[:1])[1] == COLUMNS[0]  # where all are compared by logarithms
    bench.study["seeds"] = {
        "start": 2,
        "max": 9,
        "stop": {"difference": 0.3, "alpha": 0.01, "power": 0.9, "metric": "ppl"},
    }
    assert rule_of(bench.plan().study, COLUMNS) == (Rule(2, 9, 0.01, 0.9, 0.3), COLUMNS[0])
    bench.study["seeds"]["stop"]["metric"] = "blue"
    with pytest.raises(UserError, match=r"stop.metric = 'blue'.*bleu"):
        rule_of(bench.plan().study, COLUMNS)


def test_seeds_asked_of_a_plans_rows(bench):
    """`far` is decided at once; base gets as many seeds as the row that needs most."""
    plan = ruled(bench, base=([*BASE[:3], None, None], {}), far=(FAR[:3], {}), near=([*NEAR[:3], None, None], {}))
    assert seeds_by_rule(plan, bench.store, COLUMNS) == {"base": 4, "far": 3, "near": 4}
    assert seeds_by_rule(replace(plan, runs=plan.runs[:5]), bench.store, COLUMNS) == {}  # nothing to compare


def test_a_row_with_a_failed_run_is_left_out_and_an_ensemble_has_no_seeds(bench):
    gone = {"states": ["finished", "finished", "failed"]}
    late = {"states": ["finished", "missing", "failed"]}  # its next seed is not known to fail
    plan = ruled(
        bench,
        base=(BASE[:3], {}),
        gone=([*FAR[:2], None], gone),
        late=([FAR[0], None, None], late),
        far=(FAR[:3], {}),
    )
    assert seeds_by_rule(plan, bench.store, COLUMNS) == {"base": 3, "late": 3, "far": 3}
    members = replace(plan.runs[-1], row="both", inputs=with_members({}, ["base#1", "base#2"]))
    assert seeds_by_rule(replace(plan, runs=(*plan.runs, members)), bench.store, COLUMNS) == {
        "base": 3,
        "late": 3,
        "far": 3,
    }


def test_values_after_a_gap_are_not_looked_at(bench):
    """Seeds are taken in order: whoever trained seed 4 before seed 3 does not change a decision."""
    plan = ruled(bench, base=([*BASE[:2], None, BASE[3]], {}), far=(FAR[:4], {}))
    assert seeds_by_rule(plan, bench.store, COLUMNS) == {"base": 3, "far": 3}
    assert decisions_of(replace(bench.table("none")), plan) == {"far": rule.Decision(OPEN, 3)}


def test_a_perplexity_is_decided_by_its_logarithm(bench):
    for key, values in (("base", [5.0, 5.1, 4.9]), ("B", [9.0, 9.2, 9.1])):
        bench.row(key, {"model.d_ff": 8} if key == "B" else {}, results=[(value, 25.0) for value in values])
    bench.study["seeds"] = {"start": 3, "max": 3, "stop": {"difference": 0.1, "metric": "ppl"}}
    found = decisions_of(bench.table("none"), bench.plan())["B"]
    assert found.difference == pytest.approx(np.mean(np.log([9.0, 9.2, 9.1])) - np.mean(np.log([5.0, 5.1, 4.9])))


def test_the_table_marks_what_the_rule_decided_and_says_what_it_spent(bench):
    plan = ruled(bench, base=(BASE, {}), far=(FAR[:3], {}), near=(NEAR, {}))
    made = build_table(plan, bench.store, COLUMNS)
    found = decisions_of(made, plan)
    assert [(one.verdict, one.seeds) for one in found.values()] == [(DIFFERS, 3), (UNDECIDED, 5)]
    tests = {row.key: row.measures["bleu"].test for row in made.rows}
    for key, one in found.items():
        assert (tests[key].low, tests[key].high) == (one.difference - one.half, one.difference + one.half)
        assert tests[key].p is None and tests[key].marked == (key == "far")
    differences = np.subtract(NEAR, BASE)
    expected = stats.t.interval(0.95, 4, differences.mean(), stats.sem(differences))
    assert tests["near"].paired == pytest.approx(expected) and tests["far"].paired is None  # three seeds of five
    assert tests["base"] is None and not any(row.measures["ppl"].test for row in made.rows)
    about, *decided, spent = (note.text for note in rule.seed_notes(made, plan, found))
    assert "3 to 5 for each row" in about and "(level 0.05 over all rows)" in about and "less than 0.3 (power" in about
    assert [note.rpartition(": ")[2] for note in decided] == ["far (3).", "near (5)."]
    assert "spent 13 runs; 5 seeds of every row are 15" in spent
    assert list(rule.seed_notes(made, replace(plan, by_rule=False), found)) == []


def test_an_open_row_has_no_interval_yet(bench):
    plan = ruled(bench, base=(BASE[:3], {}), far=(FAR[:3], {}), near=(NEAR[:3], {}))
    made = build_table(plan, bench.store, COLUMNS)
    tests = {row.key: row.measures["bleu"].test for row in made.rows}
    assert tests["near"] is None and tests["far"].marked and made.test == "seeds"
    assert [note.rpartition(": ")[2] for note, *_ in rule.seed_notes(made, plan, decisions_of(made, plan))][1:3] == [
        "far (3).",
        "near (4).",
    ]
