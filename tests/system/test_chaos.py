"""The short form of `make chaos` (tests/chaos.py): random kills change no number."""

from pathlib import Path

import pytest

from tests.chaos import stub, table


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_stub_runs_killed_at_random_all_finish_once_and_mlflow_agrees(tmp_path: Path, seed: int) -> None:
    done = stub(tmp_path, runs=50, slots=8, kills=25, seed=seed)
    assert int(str(done["attempts"])) > 50


@pytest.mark.slow
def test_a_table_killed_at_random_is_the_same_byte_for_byte(tmp_path: Path, tiny: Path) -> None:
    steps = ["--set", "training.train_steps=1500", "--rows", "base,h1"]
    table(tmp_path, kills=5, seed=1, study=str(tiny), options=steps, pause_s=(0.2, 1.2))
