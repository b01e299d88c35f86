"""Paired tests on single examples: for metrics that are the mean of a share per example (accuracy: 1 or 0).

A trainer keeps the shares with its examples (`context.examples`), under the metric's name. If two rows were one,
exchanging their outputs for an example would change nothing: the observed difference is compared with those under
random exchanges (approximate randomisation; Riezler and Maxwell 2005). The interval is a paired bootstrap's.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.tasks.columns import EXAMPLE_FILE
from reports.results.results import Outcome
from reports.results.sound import Results
from reports.results.table import Row
from reports.statistics.resampling import RESAMPLES, SEED, TRIALS, Resampled

SharesOf = Callable[[Outcome, str, str], NDArray[Any] | None]  # of an outcome: set, metric → one share per example
_AT_ONCE = 500


def shares_in(store: Results) -> SharesOf:
    """A reader of shares per example in evaluations; None if the metric has none or they are damaged."""
    folder_of = getattr(store, "evaluation_folder", None)

    def read(outcome: Outcome, set_: str, metric: str) -> NDArray[Any] | None:
        scored = outcome.scored.get(set_)
        if folder_of is None or scored is None or scored.record is None:
            return None
        try:
            text = (folder_of(outcome.run.run_id, scored.eval_id) / EXAMPLE_FILE).read_text(encoding="utf-8")
            return np.array([json.loads(line)[metric] for line in text.split("\n") if line], dtype=np.float64)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    return read


def shares_of_rows(base: Row, row: Row, key: str, set_: str, metric: str, shares_of: SharesOf) -> Any:
    """Shares of both rows in the metric's unit, averaged over the seeds that both have; None if they do not pair.

    They must average to the metric, up to a factor that both rows share (per cent): else they are of something else.
    """
    seeds = min(len(base.outcomes), len(row.outcomes))
    found: list[NDArray[Any]] = []
    factors = []
    for one in (base, row):
        kept = [shares_of(outcome, set_, metric) for outcome in one.outcomes[:seeds]]
        usable = [shares for shares in kept if shares is not None and np.isfinite(shares).all()]
        if len(usable) < seeds or len({len(shares) for shares in usable}) != 1:
            return None
        mean, value = float(np.mean(usable)), float(np.mean(one.measures[key].values[:seeds]))
        factors.append(value / mean if mean else 0.0)
        found.append(np.mean(usable, axis=0))
    known = [factor for factor in factors if factor]
    if len(found[0]) != len(found[1]) or not known or not np.allclose(known, known[0], rtol=1e-6):
        return None
    return found[0] * known[0], found[1] * known[0]


def paired_tests(pairs: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> list[Resampled]:
    """Each (base, row) pair of shares: two-sided p of the difference of means, and its 95 % interval."""
    return [_test(row - base) for base, row in pairs]


def _test(differences: NDArray[Any]) -> Resampled:
    observed, n = float(differences.mean()), len(differences)
    chance, extreme = np.random.default_rng(SEED), 0
    for _ in range(TRIALS // _AT_ONCE):
        signs = chance.integers(2, size=(_AT_ONCE, n)) * 2 - 1
        extreme += int((abs(signs @ differences) / n >= abs(observed) - 1e-12).sum())
    means = [differences[chance.integers(n, size=(_AT_ONCE, n))].mean(axis=1) for _ in range(RESAMPLES // _AT_ONCE)]
    low, high = np.percentile(np.concatenate(means), (2.5, 97.5))
    return Resampled(observed, (extreme + 1) / (TRIALS + 1), float(low), float(high))
