"""State of the process and of the user's files that every test restores."""

import sys
import tempfile
from collections.abc import Iterator

import pytest

from .clusters import ray_cluster, slurm

__all__ = ["ray_cluster", "slurm"]


@pytest.fixture(autouse=True, scope="session")
def _state_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests sign jobs with their own key, and have their own cache and folder of temporary files, as their children."""
    with (
        pytest.MonkeyPatch.context() as patched,
        tempfile.TemporaryDirectory(prefix="t-", ignore_cleanup_errors=True) as short,
    ):
        patched.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        # removed here: a worker of xdist ends without atexit. Not in pytest's folder: its path is long, and the path of
        # a socket (Ray's below TMPDIR too) may have 107 characters
        patched.setenv("TMPDIR", short)
        patched.setattr(tempfile, "tempdir", short)
        yield


@pytest.fixture(autouse=True)
def _denormal_numbers_stay() -> Iterator[None]:
    """Opening a device flushes denormals in the whole process; hypothesis refuses to draw floats there."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)
