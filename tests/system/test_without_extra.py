"""The core without one of the extras, in turn by the day of the commit; all of them: python -m tests.without_extra."""

import subprocess
import sys

import pytest

from tests.without_extra import ROOT


@pytest.mark.nightly
def test_the_core_works_without_an_extra() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.without_extra"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
