"""State of the process and of the user's files that every test restores."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import hypothesis
import pytest

from .clusters import ray_cluster, slurm

__all__ = ["ray_cluster", "slurm"]
os.environ.setdefault("OMP_NUM_THREADS", "1")  # two workers share the processors; networks are of width 8
UNIT = Path(__file__).parent / "unit"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not item.path.is_relative_to(UNIT) and "smoke" not in item.keywords:
            item.add_marker("process")


def _refuse(*arguments: Any, **_: Any) -> NoReturn:
    raise AssertionError(f"a test without the mark `process` starts one: {arguments[:2]}")


@pytest.fixture(autouse=True)
def _no_process_unmarked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everyday tests start no processes. Fixtures that live longer than a test may: they are made once."""
    if not {"process", "smoke"} & set(request.keywords):
        monkeypatch.setattr(subprocess.Popen, "__init__", _refuse)
        for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp", "system"):
            monkeypatch.setattr(os, name, _refuse)


# A loaded machine takes its time over an example, and over drawing it.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")


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
