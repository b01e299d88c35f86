"""Tests of a study that pins base's code to a commit, and of rows whose patch no longer applies."""

from pathlib import Path

import pytest

from .conftest import Cli
from .test_code_rows import BASE, MORE, NO_GATE, PATCHED, TRAIN, accuracies, commit, git, mine, rows

__all__ = ["mine"]  # the fixture
pytestmark = pytest.mark.slow
OTHER = TRAIN.replace("bonus = 1", "bonus = 5")


def test_base_commit_pins_the_tree_of_every_row(cli: Cli, mine: Path) -> None:
    first = git(mine, "rev-parse", "HEAD")
    (mine / "train.py").write_text(OTHER)
    commit(mine, "Another bonus")
    (mine / "net.py").write_text("no python")  # not committed
    (mine / "p.diff").write_text(NO_GATE)
    (mine / "study.toml").write_text(rows(BASE, PATCHED, head=f'base_commit = "{first}"'))
    cli("run", "study.toml", cwd=mine)
    assert accuracies(cli, mine) == {"base": 4.01, "p": 2.01}
    assert first[:10] in cli("report", "study.toml", "--notes", "full", cwd=mine).stdout
    commit(mine, "No python")
    assert "nothing to train" in cli("run", "study.toml", cwd=mine).stderr
    (mine / "study.toml").write_text(rows(BASE, head='base_commit = "main~1"'))
    cli("run", "study.toml", "--stale", "rerun", cwd=mine)
    assert accuracies(cli, mine) == {"base": 8.01}
    (mine / "study.toml").write_text(rows(BASE, head='base_commit = "1234567890"'))
    assert "has no commit '1234567890'" in cli("plan", "study.toml", cwd=mine, code=2).stderr
    own = 'name = "t"\ntitle = "T"\nbase_commit = "main"\nvariation = [{key = "base"}]\n'
    (mine / "study.toml").write_text(own)
    assert "only for your own command or function" in cli("plan", "study.toml", cwd=mine, code=2).stderr


def test_a_patch_that_does_not_apply_concerns_its_row_alone(cli: Cli, mine: Path) -> None:
    (mine / "p.diff").write_text(NO_GATE)
    whole = rows(BASE, PATCHED, '{key = "high", set = {lr = 0.2}}', ablate='[[ablate]]\npatch = "q.diff"\nkey = "q"\n')
    net = "diff --git a/net.py b/net.py\n--- a/net.py\n+++ b/net.py\n"
    (mine / "q.diff").write_text(NO_GATE.replace("+gate = 0", "+gate = 7") + net + MORE)
    (mine / "study.toml").write_text(whole)
    cli("run", "study.toml", cwd=mine)
    before = {"base": 4.01, "p": 2.01, "high": 5.01, "q-1": 6.01, "q-2": 9.01}
    assert accuracies(cli, mine) == before
    (mine / "train.py").write_text(TRAIN.replace("gate = 2", "gate = 3"))
    report = cli("report", "study.toml", cwd=mine).stdout
    assert "p cannot be trained now" in report and "hunk 1 (train.py, line 5)" in report
    cli("explain", "study.toml", "base.acc", cwd=mine)
    cli("status", "study.toml", cwd=mine)
    assert accuracies(cli, mine) == before
    plan = cli("plan", "study.toml", cwd=mine)
    assert plan.stdout.count("stale") >= 5
    refused = cli("run", "study.toml", "--stale", "rerun", cwd=mine, code=2)
    assert "p: p.diff does not apply to base's code" in refused.stderr
    cli("run", "study.toml", "--rows", "base,high", "--stale", "rerun", cwd=mine)
    assert accuracies(cli, mine) == before | {"base": 5.01, "high": 6.01}
    report = cli("report", "study.toml", cwd=mine).stdout
    assert "Different code made these rows (train.py): base, high; p, q-1, q-2" in report
