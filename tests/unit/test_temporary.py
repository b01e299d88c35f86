"""Temporary files of tests are in a folder that the session removes, those of child processes too."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest


@pytest.mark.process
def test_temporary_files_of_tests_and_their_children_are_in_one_short_folder() -> None:
    mine = Path(tempfile.gettempdir())
    code = "import tempfile; print(tempfile.gettempdir())"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert Path(child) == mine and mine.name.startswith("t-")
    assert len(f"{mine}/ray/session_2026-11-23_01-55-12_123456_1234567/sockets/plasma_store") < 108


@pytest.mark.process
def test_a_session_of_tests_leaves_no_temporary_files(tmp_path: Path) -> None:
    """Also where a process ends without its handlers, as workers of pytest-xdist do."""
    (tmp_path / "tmp").mkdir()
    test = tmp_path / "test_leaves.py"
    test.write_text("import tempfile\ndef test_leaves():\n    tempfile.mkdtemp()\n", encoding="utf-8")
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(tmp_path)]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "pytest", *options, f"--basetemp={tmp_path / 'base'}", str(test)]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert not list((tmp_path / "tmp").iterdir())
