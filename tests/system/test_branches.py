"""Branches of one parent run on the command line: they equal undisturbed runs; every verb knows them."""

from pathlib import Path
from typing import Any

import pytest

from experiments.events.event_log import read_events
from experiments.store.checksummed import read_json
from experiments.store.layout import Store
from tests.chaos import FIVE_KILLS, table

from .conftest import TINY, Cli, as_json

pytestmark = pytest.mark.slow

STEPS = 60


def head(steps: int) -> str:
    return TINY.partition("[[variation]]")[0].replace(
        "train_steps = 6,", f'train_steps = {steps}, schedule = "constant",'
    )


def study_of(steps: int = STEPS) -> str:
    """A parent, a branch of two thirds of it that changes nothing, and two from its end, a third and a tenth longer."""
    return f"""{head(steps)}
[[variation]]
key = "base"

[[variation]]
key = "same"
from = {{row = "base", step = {steps * 2 // 3}}}

[[variation]]
key = "decay"
from = {{row = "base", step = {steps}}}
set = {{training = {{schedule = "warmup_stable_decay", stable_ratio = 0.75, train_steps = {steps * 4 // 3}}}}}

[[variation]]
key = "smooth"
from = {{row = "base", step = {steps}}}
set = {{training = {{label_smoothing = 0.3, train_steps = {steps * 11 // 10}}}}}
"""


STUDY = study_of()
WHOLE = f"""{head(STEPS)}
[[variation]]
key = "base"

[[variation]]
key = "decay"
set = {{training = {{schedule = "warmup_stable_decay", stable_ratio = 0.75, train_steps = {STEPS * 4 // 3}}}}}

[[variation]]
key = "longer"
set = {{training.train_steps = {STEPS * 4 // 3}}}
"""
LONGER = f"""
[[variation]]
key = "longer"
from = {{row = "base", step = {STEPS}}}
set = {{training.train_steps = {STEPS * 4 // 3}}}
"""


def write(folder: Path, text: str, name: str = "branches") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.toml").write_text(text)
    return folder / f"{name}.toml"


def rows(cli: Cli, study: Path, store: Path) -> dict[str, Any]:
    return {run["row"]: run for run in as_json(cli("plan", study, "--store", store, "--json"))}


def weights(store: Path, run_id: str) -> Any:
    folder = Store.open(store).weights_folder(run_id)
    assert folder is not None
    return (read_json(folder / "final" / "meta.json") or {})["files"]["model.safetensors"]["sha256"]


def events(store: Path, run_id: str) -> list[dict[str, Any]]:
    return [event for folder in sorted(store.glob(f"runs/{run_id}/attempts/*")) for event in read_events(folder)]


def test_a_parent_run_and_two_branches_equal_two_undisturbed_runs(cli: Cli, tmp_path: Path) -> None:
    """Bit for bit, where nothing differs before the branch; their costs add up to those of the whole."""
    store, other = tmp_path / "store", tmp_path / "other"
    branched, whole = write(tmp_path, STUDY + LONGER), write(tmp_path, WHOLE, "whole")
    cli("run", branched, "--store", store, "--devices", "cpu:2")
    cli("run", whole, "--store", other, "--devices", "cpu:2")
    ours, theirs = rows(cli, branched, store), rows(cli, whole, other)
    assert ours["base"]["run_id"] == theirs["base"]["run_id"], "a parent run is named as any run"
    assert weights(store, ours["base"]["run_id"]) == weights(other, theirs["base"]["run_id"])
    for row in ("decay", "longer"):
        mine, its = ours[row]["run_id"], theirs[row]["run_id"]
        assert mine != its and weights(store, mine) == weights(other, its)
        records = [Store.open(at).result(name) for at, name in ((store, mine), (other, its))]
        base = Store.open(store).result(ours["base"]["run_id"])
        assert base and records[0] and records[1]
        for name in ("flops", "target_tokens"):
            parts = getattr(base, name) + getattr(records[0], name)
            assert parts == pytest.approx(getattr(records[1], name), rel=1e-12)
        assert records[0].continues is None and records[0].parent_run.step == STEPS
        found = [
            list(at.glob(f"runs/{name}/evaluations/*/translations.txt")) for at, name in ((store, mine), (other, its))
        ]
        assert found[0][0].read_text() == found[1][0].read_text()
    assert weights(store, ours["same"]["run_id"]) == weights(store, ours["base"]["run_id"])
    assert weights(store, ours["smooth"]["run_id"]) not in {weights(other, run["run_id"]) for run in theirs.values()}


@pytest.mark.nightly
def test_killed_at_random_the_table_is_the_same_byte_for_byte(cli: Cli, tmp_path: Path) -> None:
    """Kills of the parent run, of its branches and of the coordinator, as in tests/chaos.py."""
    study = write(tmp_path, study_of(600))
    one, pause_s = ["--seeds", "1"], (0.2, 1.2)
    done = table(tmp_path, kills=5, seed=FIVE_KILLS, study=str(study), options=one, pause_s=pause_s, call=cli)
    assert done["rows"] == 4


@pytest.mark.nightly
