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

from tests.clusters import ray_cluster, slurm

__all__ = ["ray_cluster", "slurm"]
# otherwise every worker of every tier would compile all test files again; children keep the variable
sys.dont_write_bytecode = False
os.environ.setdefault("OMP_NUM_THREADS", "1")  # two workers share the processors; networks are of width 8
ROOT = Path(__file__).parent
EXTRAS = ROOT / "ablations" / "extras"
# hypothesis by itself looks at the clock, and a loaded machine is slow
PATIENT = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("everyday", max_examples=25, **PATIENT)
hypothesis.settings.register_profile("large", max_examples=100, derandomize=True, **PATIENT)
hypothesis.settings.load_profile("large" if os.environ.get("CI") else "everyday")


def _is_unit(file: Path) -> bool:
    """Whether a file of tests lies in tests/unit, or in an extra's folder `tests` but not in `tests/system`."""
    extra = file.is_relative_to(EXTRAS) and file.parent.name != "system"
    return extra or file.is_relative_to(ROOT / "tests" / "unit")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not _is_unit(item.path) and "smoke" not in item.keywords:
            item.add_marker("process")
        for extra in (mark.args[0] for mark in item.iter_markers("extra")):
            if not (EXTRAS / extra).is_dir():
                item.add_marker(pytest.mark.skip(reason=f"needs the extra {extra}"))


ASKED = {"git", "ldconfig", "gcc", "cc", "ld", "objdump", "fc-list", "fc-match", "nvidia-smi"}  # of the machine, in ms


def _refuse(*arguments: Any, **_: Any) -> NoReturn:
    raise AssertionError(f"a test without the mark `process` starts one: {arguments[:2]}")


@pytest.fixture(autouse=True)
def _no_process_unmarked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everyday tests start no processes. Fixtures that live longer than a test may: they are made once.

    Not refused is what a process asks of the machine once, and the process of an own function, which every plan of it
    needs: which test is the first to ask depends on the order.
    """
    if {"process", "smoke", "slow", "nightly"} & set(request.keywords):
        return
    start = subprocess.Popen.__init__

    def allowed(popen: Any, words: Any, *more: Any, **options: Any) -> None:
        named = [words] if isinstance(words, str | bytes) else [str(word) for word in words]
        if Path(str(named[0])).name not in ASKED and not any("ablations_task" in str(word) for word in named):
            popen.returncode = None  # Popen's repr, in the report of the failure, reads it
            _refuse(popen, words)
        start(popen, words, *more, **options)

    monkeypatch.setattr(subprocess.Popen, "__init__", allowed)
    for name in ("forkpty", "posix_spawn", "posix_spawnp", "system"):
        monkeypatch.setattr(os, name, _refuse)
    here, fork = os.getpid(), os.fork
    # an allowed process forks its keeper (experiments/processes/keeper.py) before it becomes the command
    monkeypatch.setattr(os, "fork", lambda: _refuse("os.fork") if os.getpid() == here else fork())


@pytest.fixture(autouse=True, scope="session")
def _state_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests have their own state, cache and folder of temporary files, as their children.

    The key that signs jobs is one for all workers: a store that one of them made is read by another.
    """
    with (
        pytest.MonkeyPatch.context() as patched,
        tempfile.TemporaryDirectory(prefix="t-", ignore_cleanup_errors=True) as short,
    ):
        state = tmp_path_factory.mktemp("state")
        (state / "ablations").mkdir()
        (state / "ablations" / "queue.key").write_bytes(bytes(32))
        patched.setenv("XDG_STATE_HOME", str(state))
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


@pytest.fixture
def every_step(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Trainings record every step; deterministic kernels are off again afterwards."""
    import torch

    from experiments.training import curve

    monkeypatch.setattr(curve, "EVERY_STEPS", 1)
    yield
    torch.use_deterministic_algorithms(False)
