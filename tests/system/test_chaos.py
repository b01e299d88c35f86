"""A short version of `make chaos` (tests/chaos.py): random kills change no number.

That of real tables is in test_branches.py, with branches.
"""

from pathlib import Path

import pytest

from tests.chaos import stub


@pytest.mark.nightly
def test_stub_runs_killed_at_random_all_finish_once_and_mlflow_agrees(tmp_path: Path) -> None:
    done = stub(tmp_path, runs=50, slots=8, kills=25, seed=1)
    assert int(str(done["attempts"])) > 50
