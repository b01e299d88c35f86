"""State of the process and of the user's files that every test restores."""

import sys
from collections.abc import Iterator

import pytest

from .clusters import ray_cluster, slurm

__all__ = ["ray_cluster", "slurm"]


@pytest.fixture(autouse=True, scope="session")
def _state_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests sign jobs with their own key, and have their own cache."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _denormal_numbers_stay() -> Iterator[None]:
    """Opening a device flushes denormals in the whole process; hypothesis refuses to draw floats there."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)
