"""What every test leaves behind as it found it."""

import sys
from collections.abc import Iterator

import pytest

from .clusters import ray_cluster, slurm

__all__ = ["ray_cluster", "slurm"]


@pytest.fixture(autouse=True, scope="session")
def _state_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Jobs that tests queue are signed with a key of the tests' own; their commands find it by the environment."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def _denormal_numbers_stay() -> Iterator[None]:
    """Opening a device flushes denormals in the whole process; hypothesis refuses to draw floats there."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)
