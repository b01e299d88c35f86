"""Tests of `run --smoke` and `noise`, which users run before a long training, with real trainings of width 8."""

from pathlib import Path

import pytest
from scipy import stats

from reports.results.power import smallest_difference

from .conftest import Cli, as_json

pytestmark = pytest.mark.slow
BROKEN = """
from dataclasses import dataclass
from ablations_task import column, task

@dataclass
class Settings:
    size: int = 1
    steps: int = 100

@task(Settings, steps="steps", columns=[column("score")])
def TASK(settings, context):
    assert settings.steps == 2, settings.steps
    return {"score": context.seed / (3 - settings.size)}
"""
STUDY = """
name = "broken"
title = "One row fails"
task = "broken:TASK"
seeds = 3

[[variation]]
key = "base"
[[variation]]
key = "three"
set = {size = 3}
"""


def kept(store: Path) -> list[str]:
    files = (path for path in store.rglob("*") if path.is_file() and "corpora" not in path.parts)
    return sorted(str(path.relative_to(store)) for path in files)


def test_smoke_tries_every_row_and_keeps_nothing(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    done = cli("run", tiny, "--smoke", "--seeds", "3", "--store", store, "--devices", "cpu:2x1")
    assert "3 of 3 rows passed" in done.stderr
    assert "– (0/3)" in done.stdout and "not available, in" in done.stdout
    assert kept(store) == ["store.json"]
    states = {run["state"] for run in as_json(cli("plan", tiny, "--store", store, "--json"))}
    assert states == {"missing"}


def test_smoke_names_the_rows_that_fail(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    (tmp_path / "broken.toml").write_text(STUDY)
    done = cli("run", tmp_path / "broken.toml", "--smoke", "--store", tmp_path / "store", code=1)
    assert "three: " in done.stderr and "division by zero" in done.stderr and "1 of 2 rows passed" in done.stderr
    assert "base: " not in done.stderr
    assert kept(tmp_path / "store") == ["store.json"]


def test_smoke_needs_a_setting_for_steps(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN.replace('steps="steps", ', ""))
    (tmp_path / "broken.toml").write_text(STUDY)
    done = cli("run", tmp_path / "broken.toml", "--smoke", "--store", tmp_path / "store", code=2)
    assert "does not name the setting of its training steps" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.nightly
def test_noise_trains_seeds_of_base_and_says_what_they_can_show(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    words = ["--store", store, "--devices", "cpu:2x1"]
    found = as_json(cli("noise", tiny, "--seeds", "3", *words, "--json"))
    assert {path.parent.name for path in store.glob("runs/*/result.json")} == {
        run["run_id"]
        for run in as_json(cli("plan", tiny, "--rows", "base", "--seeds", "3", "--store", store, "--json"))
    }
    [ppl] = [column for column in found["columns"] if column["key"] == "ppl"]
    assert ppl["logarithmic"] and len(ppl["values"]) == 3 and found["rows_compared"] == 2
    low, _ = ppl["sd_interval"]
    assert stats.chi2.cdf(2 * ppl["sd"] ** 2 / low**2, 2) == pytest.approx(0.975)
    for seeds in (2, 5, 100):
        assert ppl["smallest_difference"][str(seeds)] == pytest.approx(smallest_difference(ppl["sd"], 2, seeds))
    again = cli("noise", tiny, "--seeds", "3", *words)
    assert "nothing to train" in again.stderr and "95 % interval of the sd" in again.stdout
