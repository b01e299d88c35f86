"""Results of an edited trainer are kept and marked. `--stale rerun` replaces them, but keeps them if a rerun fails."""

import json
import sys
from pathlib import Path

import pytest

from .conftest import Cli, as_json

pytestmark = pytest.mark.slow

SCRIPT = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
args = parser.parse_args()
print("acc", args.lr + 1)
"""
STUDY = r"""
name = "edited"
title = "Edited"
command = "{python} train.py --lr {lr}"

[base]
lr = 0.1

[[metric]]
name = "acc"
pattern = 'acc ([\d.]+)'

[[variation]]
key = "base"

[[variation]]
key = "high"
set = {lr = 0.5}
""".replace("{python}", sys.executable)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "edited.toml").write_text(STUDY)
    return tmp_path


def numbers(cli: Cli, mine: Path) -> dict[str, tuple[object, object, object]]:
    rows = as_json(cli("report", "edited.toml", "--json", cwd=mine))
    return {row["row"]: (row["acc_test"], row["acc_test_change"], row["stale"]) for row in rows}


def test_a_rerun_replaces_a_result_only_when_it_has_another(cli: Cli, mine: Path) -> None:
    script, near = mine / "train.py", pytest.approx
    cli("run", "edited.toml", cwd=mine)
    script.write_text(SCRIPT.replace("+ 1", "+ 2"))
    old = {"base": (near(1.1), None, True), "high": (near(1.5), near(0.4), True)}
    assert "nothing to train" in cli("run", "edited.toml", cwd=mine).stderr
    assert numbers(cli, mine) == old
    script.write_text(SCRIPT.replace("+ 1", "+ no_number"))
    cli("run", "edited.toml", "--stale", "rerun", cwd=mine, code=1)
    assert numbers(cli, mine) == old
    script.write_text(SCRIPT.replace("+ 1", "+ 2"))
    mixed = cli("run", "edited.toml", "--rows", "base", "--stale", "rerun", cwd=mine)
    assert numbers(cli, mine)["base"] == (near(2.1), None, False)
    cli("run", "edited.toml", "--stale", "rerun", cwd=mine)
    assert numbers(cli, mine) == {"base": (near(2.1), None, False), "high": (near(2.5), near(0.4), False)}
    assert mixed.returncode == 0
    kept = sorted(mine.glob("runs/runs/*/attempts/0001/evaluations/*/result.json"))
    scores = [json.loads(path.read_text())["metrics"]["acc"] for path in kept]
    assert sorted(scores) == [near(1.1), near(1.5)]
    assert len(list(mine.glob("runs/runs/*/attempts/0001/result.json"))) == 2


def test_a_run_that_is_trained_and_not_scored_is_trained_again_too(cli: Cli, mine: Path) -> None:
    study = mine / "edited.toml"
    study.write_text(STUDY.replace("'acc (", "'accuracy ("))
    cli("run", study, "--rows", "base", cwd=mine, code=1)
    (mine / "train.py").write_text(SCRIPT.replace("+ 1", "+ 2"))
    study.write_text(STUDY)
    cli("run", study, "--rows", "base", "--stale", "rerun", cwd=mine)
    assert numbers(cli, mine)["base"] == (pytest.approx(2.1), None, False)


def test_a_copied_experiment_does_not_take_the_numbers_of_the_original(cli: Cli, mine: Path) -> None:
    (mine / ".git").mkdir()  # two folders of one repository, with one store
    for name, edited in (("one", SCRIPT), ("two", SCRIPT.replace("+ 1", "+ 2"))):
        (mine / name).mkdir()
        (mine / name / "train.py").write_text(edited)
        (mine / name / "edited.toml").write_text(STUDY)
    cli("run", "one/edited.toml", cwd=mine)
    said = cli("run", "two/edited.toml", cwd=mine)
    assert "2 by other code, kept (train again with --stale rerun)" in said.stderr
    assert said.stdout.count("†") >= 2 and "two/train.py" in said.stdout
    again = cli("run", "two/edited.toml", "--stale", "rerun", cwd=mine).stdout
    assert "2.10" in again and "2.50" in again and "†" not in again
