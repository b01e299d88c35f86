"""Metrics that are added, renamed, corrected or removed are read from finished runs, without training."""

import sys
from pathlib import Path

import pytest

from .conftest import Cli, as_json

pytestmark = pytest.mark.process

SCRIPT = """
import argparse, json, pathlib, sys
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
with open(pathlib.Path(__file__).parent / "trainings", "a") as file:
    file.write("x")
for step in range(1, 4):
    print(f"epoch {step} loss {1 / step:.3f}", file=sys.stderr)
    print(f"epoch {step} acc {args.lr * 10 + step + args.seed:.2f} top5 {args.lr * 20 - step:.2f}")
print(json.dumps({"size": 12}))
"""
STUDY = r"""
name = "grown"
title = "Grown"
command = "{python} train.py --lr {lr} --seed {seed}"
seeds = 2

[base]
lr = 0.1

[[metric]]
name = "acc"
pattern = 'epoch (?P<step>\d+) acc ([\d.]+)'

[[variation]]
key = "base"

[[variation]]
key = "high"
set = {lr = 0.5}
""".replace("{python}", sys.executable)
LOSS = r"""
[[metric]]
name = "loss"
better = "lower"
pattern = 'epoch (?P<step>\d+) loss ([\d.]+)'
"""
TOP = r"""
[[metric]]
name = "top5"
take = "best"
pattern = 'top5 ([\d.]+)'

[[metric]]
name = "size"
digits = 0
"""


def trainings(folder: Path) -> int:
    return len((folder / "trainings").read_text())


def table(cli: Cli, study: Path, verb: str = "report") -> dict[str, dict[str, object]]:
    return {row["row"]: row for row in as_json(cli(verb, study, "--json", cwd=study.parent))}


@pytest.mark.slow
def test_a_study_that_grows_trains_nothing_again_and_loses_no_number(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    study = tmp_path / "grown.toml"
    study.write_text(STUDY)
    cli("run", study, cwd=tmp_path)
    study.write_text(STUDY + LOSS + TOP)
    for verb in ("report", "run", "report"):  # metrics are read from the logs, then recorded, then read from the record
        rows = table(cli, study, verb)
        for key, lr in (("base", 0.1), ("high", 0.5)):
            assert rows[key]["acc_test"] == pytest.approx(lr * 10 + 3 + 1.5), verb
            assert rows[key]["loss_test"] == pytest.approx(0.333), verb
            assert rows[key]["top5_test"] == pytest.approx(lr * 20 - 1), verb
            assert rows[key]["size_test"] == 12, verb
    events = "".join(path.read_text() for path in tmp_path.glob("runs/**/events.jsonl"))
    assert events.count('"metrics":{"loss":0.333},"step":3') == 4
    assert "nothing to train" in cli("run", study, cwd=tmp_path).stderr
    study.write_text(STUDY.replace('name = "acc"', 'name = "accuracy"') + LOSS)
    assert table(cli, study)["high"]["accuracy_test"] == pytest.approx(9.5)
    study.write_text(STUDY.replace("acc ([", "accuracy: (["))
    gap = cli("run", study, cwd=tmp_path)
    assert "2 not reported" in gap.stdout and "elete" not in gap.stdout + gap.stderr
    study.write_text(STUDY)
    assert table(cli, study, "run")["base"]["acc_test"] == pytest.approx(5.5)
    assert trainings(tmp_path) == 4
    assert len(list(tmp_path.glob("runs/runs/*"))) == 4


def test_a_pattern_that_finds_nothing_costs_no_training(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    study = tmp_path / "grown.toml"
    study.write_text(STUDY.replace("acc ([", "accuracy ([").replace("seeds = 2", "seeds = 1"))
    failed = cli("run", study, "--rows", "base", cwd=tmp_path, code=1)
    assert "matched nothing in the output" in " ".join(failed.stderr.split())
    study.write_text(STUDY.replace("seeds = 2", "seeds = 1"))
    cli("run", study, "--rows", "base", cwd=tmp_path)
    assert table(cli, study)["base"]["acc_test"] == pytest.approx(5.0)
    assert trainings(tmp_path) == 1


FUNCTION = """
from dataclasses import dataclass
from pathlib import Path
from ablations_task import column, task

@dataclass
class Settings:
    lr: float = 0.1

@task(Settings, columns=[column("acc")])
def TASK(settings, context):
    with (Path(__file__).parent / "trainings").open("a") as file:
        file.write("x")
    return {"acc": settings.lr * 10}
"""


@pytest.mark.slow
def test_a_new_return_value_is_a_gap_in_old_runs_and_their_other_columns_stay(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FUNCTION)
    study = tmp_path / "mine.toml"
    rows = '[[variation]]\nkey = "base"\n'
    study.write_text(f'name = "mine"\ntitle = "Mine"\ntask = "mine:TASK"\n{rows}')
    cli("run", study, cwd=tmp_path)
    metrics = "".join(f'[[metric]]\nname = "{name}"\nset = "{set_}"\n' for name, set_ in
                      (("acc", "test"), ("f1", "test"), ("acc", "dev")))  # fmt: skip
    study.write_text(f'name = "mine"\ntitle = "Mine"\ntask = "mine:TASK"\n{metrics}{rows}')
    for verb in ("report", "run", "report"):
        [row] = table(cli, study, verb).values()
        assert row["acc_test"] == pytest.approx(1.0), verb
        assert row["f1_test"] is None and row["acc_dev"] is None
    assert row["state"] == "finished"
    assert trainings(tmp_path) == 1
