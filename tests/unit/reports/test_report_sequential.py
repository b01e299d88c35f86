"""Seeds by a rule: its error rates and its savings in simulated tables, and what it looks at."""

import numpy as np
import pytest

from reports.results.dunnett import seeds_for
from reports.results.rule import ALIKE, DIFFERS, OPEN, UNDECIDED, Rule, bounds_of, decide, seeds_asked

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
