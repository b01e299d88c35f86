"""Fixtures that protect the process's state and the user's files in every test."""

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
# Without bytecode, every pytest worker would compile all test files again. Children keep the environment variable.
sys.dont_write_bytecode = False
os.environ.setdefault("OMP_NUM_THREADS", "1")  # two workers share the processors; networks are of width 8
ROOT = Path(__file__).parent
EXTRAS = ROOT / "ablations" / "extras"
# hypothesis has time limits by default, which a loaded machine exceeds
PATIENT = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
# What experiments/training/compiled_layers.py changes. A test that leaves a low limit would make later tests fail.
COMPILERS_SETTINGS = {
    "torch._dynamo.config": ("recompile_limit", "accumulated_recompile_limit", "fail_on_recompile_limit_hit"),
    "torch._inductor.config": ("compile_threads",),
    "torch.fx.experimental._config": ("use_duck_shape",),
}
hypothesis.settings.register_profile("everyday", max_examples=25, **PATIENT)
hypothesis.settings.register_profile("large", max_examples=100, derandomize=True, **PATIENT)
hypothesis.settings.load_profile("large" if os.environ.get("CI") else "everyday")


def _is_unit(file: Path) -> bool:
    """Return whether a test file is in tests/unit, or in an extra's folder `tests` but not in its `tests/system`."""
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


ASKED = {"git", "ldconfig", "gcc", "cc", "ld", "objdump", "fc-list", "fc-match", "nvidia-smi"}  # quick queries


def _refuse(*arguments: Any, **_: Any) -> NoReturn:
    raise AssertionError(f"a test without the mark `process` starts one: {arguments[:2]}")


@pytest.fixture(autouse=True)
def _no_process_unmarked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make everyday tests fail if they start a process. Fixtures with a longer scope than a test may start processes.

    Two kinds of processes are allowed, because the test that starts them depends on the order of tests: programs that a
    process runs once to query the machine, and the process that describes a user's function for each plan.
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
    # An allowed process forks its keeper (experiments/processes/keeper.py) before it executes the command.
    monkeypatch.setattr(os, "fork", lambda: _refuse("os.fork") if os.getpid() == here else fork())


@pytest.fixture(autouse=True, scope="session")
def _state_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give tests and their children separate folders for state, cache and temporary files.

    All pytest workers have the same key that signs jobs, because one worker reads stores that another one made.
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
        # The folder is removed here because a worker of xdist ends without atexit. It is not in pytest's folder, whose
        # path is long: the path of a socket (also of Ray's below TMPDIR) may have at most 107 characters.
        patched.setenv("TMPDIR", short)
        patched.setattr(tempfile, "tempdir", short)
        yield


@pytest.fixture(autouse=True)
def _denormal_numbers_stay() -> Iterator[None]:
    """Turn off flushing of denormals after a test. Devices turn it on, and hypothesis then refuses to draw floats."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


@pytest.fixture(autouse=True)
def _compilers_settings_stay() -> Iterator[None]:
    """Restore the defaults of the settings of torch's compiler that compile_layers changes for the whole process."""
    yield
    for module, names in COMPILERS_SETTINGS.items():
        if module in sys.modules:
            config = sys.modules[module]
            for name in names:
                setattr(config, name, config._config[name].default)


@pytest.fixture
def every_step(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make trainings record every step. Deterministic kernels are turned off afterwards."""
    import torch

    from experiments.training import curve

    monkeypatch.setattr(curve, "EVERY_STEPS", 1)
    yield
    torch.use_deterministic_algorithms(False)
