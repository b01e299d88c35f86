"""What every test leaves behind as it found it."""

import sys
from collections.abc import Iterator

import pytest

from .clusters import ray_cluster, slurm

__all__ = ["ray_cluster", "slurm"]


@pytest.fixture(autouse=True)
def _denormal_numbers_stay() -> Iterator[None]:
    """Opening a device flushes denormals in the whole process; hypothesis refuses to draw floats there."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)
