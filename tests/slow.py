"""Parameters of tests of which a part belongs to the slow tests, and most of the rest to the nightly ones."""

from collections.abc import Iterable
from typing import Any

import pytest

OF_THE_REST = 5  # one of so many is slow, the others run at night


def mostly_slow(values: Iterable[Any], quick: int) -> list[Any]:
    """The first `quick` values are tested always, every fifth of the others by the slow tests, the rest at night.

    A tuple has several parameters.
    """
    sets = [value if isinstance(value, tuple) else (value,) for value in values]
    tiers = ([], [pytest.mark.slow], [pytest.mark.nightly])
    which = [0 if place < quick else 1 + bool((place - quick) % OF_THE_REST) for place in range(len(sets))]
    return [pytest.param(*one, marks=tiers[tier]) for one, tier in zip(sets, which, strict=True)]
