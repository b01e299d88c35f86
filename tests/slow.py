"""Parameters of tests of which a part belongs to the slow tests, and most of the rest to the nightly ones."""

from collections.abc import Iterable
from typing import Any

import pytest

OF_THE_REST = 5  # one of so many is slow, the others run at night
OF_SEEDS = 25  # of values that differ in nothing but what is drawn


def mostly_slow(values: Iterable[Any], quick: int, of_the_rest: int = OF_THE_REST) -> list[Any]:
    """The first `quick` values are tested always, one in `of_the_rest` others by the slow tests, the rest at night.

    A tuple has several parameters.
    """
    sets = [value if isinstance(value, tuple) else (value,) for value in values]
    tiers = ([], [pytest.mark.slow], [pytest.mark.nightly])
    which = [0 if place < quick else 1 + bool((place - quick) % of_the_rest) for place in range(len(sets))]
    return [pytest.param(*one, marks=tiers[tier]) for one, tier in zip(sets, which, strict=True)]
