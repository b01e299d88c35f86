"""A run that two studies in one store share serves both, whichever study was trained first."""

import json
import shutil
from pathlib import Path

import pytest

from .conftest import TINY, Cli, as_json

pytestmark = pytest.mark.slow

AVERAGES = (
    TINY.partition("[[variation]]")[0].replace('"tiny"', '"averages"')
    + """
[[variation]]
key = "base"

[[variation]]
key = "mean"
fixed = {training = {keep_checkpoints = 3}, evaluation = {checkpoint = "average:3"}}

[[variation]]
key = "best"
fixed = {training = {eval_steps = 3}, evaluation = {checkpoint = "best"}}
"""
)


@pytest.fixture
def averages(tmp_path: Path) -> Path:
    (tmp_path / "averages.toml").write_text(AVERAGES)
    return tmp_path / "averages.toml"


def records(store: Path) -> dict[str, str]:
    return {str(path): path.read_text() for path in store.glob("runs/*/evaluations/*/result.json")}


def states(cli: Cli, study: Path, store: Path) -> list[tuple[str, bool]]:
    return [(run["state"], run["trained_again"]) for run in as_json(cli("plan", study, "--store", store, "--json"))]


@pytest.mark.nightly
def test_a_finished_run_that_kept_too_little_is_trained_again_beside(
    cli: Cli, tiny: Path, finished: Path, averages: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    shutil.copytree(finished, store)
    before = records(store)
    assert states(cli, averages, store) == [("finished", True), ("missing", True), ("missing", True)]
    assert "kept fewer checkpoints than" in cli("plan", averages, "--store", store).stdout
    assert "`evaluate` never trains" in cli("evaluate", averages, "--store", store, code=2).stderr
    rows = as_json(cli("run", averages, "--store", store, "--devices", "cpu:1", "--json"))
    assert all(row["ppl"] for row in rows) and rows[0]["ppl"] != rows[1]["ppl"]
    assert states(cli, averages, store) == [("finished", False)] * 3
    [again] = [path for path in store.glob("runs/*") if (path / "attempts" / "0002").exists()]
    assert json.loads((again / "result.json").read_text())["attempt"] == 2
    after = records(store)
    assert {path: after[path] for path in before} == before, "the weights are equal, and so are their scores"
    assert {state for state, _ in states(cli, tiny, store)} == {"finished"}


def test_queued_together_a_run_is_trained_once_for_both(cli: Cli, tiny: Path, averages: Path, tmp_path: Path) -> None:
    """Checkpoints that the second study needs do not replace those that the first study needs, in either order."""
    store = tmp_path / "store"
    cli("queue", averages, "--store", store)
    cli("queue", tiny, "--rows", "base", "--store", store)
    cli("work", "--store", store, "--devices", "cpu:1")
    assert states(cli, averages, store) == [("finished", False)] * 3
    assert len(list(store.glob("runs/*/attempts/*"))) == 1
