"""The core works without one extra, which the day of the commit selects (see tests/without_extra.py)."""

import subprocess
import sys

from tests.without_extra import ROOT


def test_the_core_works_without_an_extra() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.without_extra"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
