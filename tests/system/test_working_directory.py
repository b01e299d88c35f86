"""Modules and folders in the working directory or the study's folder may have the names of Python's modules or ours."""

import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import as_json, environment

pytestmark = pytest.mark.slow

MODULES = ("queue.py", "random.py", "json.py", "ablations.py", "torch.py")
FOLDERS = ("model", "experiments", "reports", "numpy")


def occupied(folder: Path) -> Path:
    """Return a folder whose files and packages end every program that imports them."""
    for name in MODULES:
        (folder / name).write_text(f"raise SystemExit('{name} of the working directory was imported')\n")
    for name in FOLDERS:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(f"raise SystemExit('{name}/ of the working directory')\n")
    return folder


def ablations(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in `folder` as its installed script does, without the working directory in its import path."""
    argv = [sys.executable, "-P", "-m", "ablations.cli.main", *words]
    done = subprocess.run(argv, cwd=folder, env=environment(), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.nightly
def test_a_built_in_task_is_prepared_and_trained(tmp_path: Path, tiny: Path) -> None:
    """Covers the coordinator, the preparation, the fork server and its children."""
    folder = occupied(tmp_path)
    (folder / "tiny.toml").write_text(tiny.read_text())
    rows = as_json(ablations(folder, "run", "tiny.toml", "--rows", "base,h1", "--json"))
    assert [row["n"] for row in rows] == [1, 1]
    ablations(folder, "settings", "--layers", "--measure")
