"""Parameters of tests of which a part belongs to the slow tests."""

from collections.abc import Iterable
from typing import Any

import pytest


def mostly_slow(values: Iterable[Any], quick: int) -> list[Any]:
    """The first `quick` values are tested always, the others by the slow tests. A tuple has several parameters."""
    sets = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*one, marks=[pytest.mark.slow] if place >= quick else []) for place, one in enumerate(sets)]
