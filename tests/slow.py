"""Mark most values of a parametrized test as slow or nightly."""

from collections.abc import Iterable
from typing import Any

import pytest

OF_THE_REST = 12  # one value in 12 is slow; the others are nightly
OF_SEEDS = 25  # one seed in 25 is slow; the others are nightly


def mostly_nightly(values: Iterable[Any], first: int) -> list[Any]:
    """Return the values as parameters and mark all but the first `first` as nightly.

    A tuple holds the values of several parameters.
    """
    sets = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*one, marks=[pytest.mark.nightly] if at >= first else []) for at, one in enumerate(sets)]


def mostly_slow(values: Iterable[Any], quick: int, of_the_rest: int = OF_THE_REST) -> list[Any]:
    """Return the values as parameters and mark all but the first `quick`.

    One in `of_the_rest` of the marked values is slow; the others are nightly. A tuple holds the values of several
    parameters.
    """
    sets = [value if isinstance(value, tuple) else (value,) for value in values]
    tiers = ([], [pytest.mark.slow], [pytest.mark.nightly])
    which = [0 if place < quick else 1 + bool((place - quick) % of_the_rest) for place in range(len(sets))]
    return [pytest.param(*one, marks=tiers[tier]) for one, tier in zip(sets, which, strict=True)]
