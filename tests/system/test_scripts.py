"""Unchanged scripts of other authors: the program reads their output and gives each run a separate folder."""

import sys
from pathlib import Path

import pytest

from experiments.tasks.own.command import WORK

from .conftest import Cli, as_json

pytestmark = pytest.mark.process

SCRIPT = """
import argparse, pathlib, sys
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1, help="learning rate")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
data = float(open("data/number.txt").read())
out = pathlib.Path("out")
out.mkdir()  # fails where another run has been
for step in range(1, 4):
    sys.stderr.write(f"\\r\\x1b[32m {step}/3 [train]\\x1b[0m")
    print(f"epoch {step} loss {1 / step:.3f} test_acc {args.lr * data + step + args.seed}")
(out / "model.txt").write_text(str(args.lr))
print("saved")
"""
STUDY = r"""
name = "mine"
title = "Mine"
command = "{python} train.py --lr {lr} --seed {seed}"
links = ["train.py", "data"]
progress = '(\d+)/(\d+) \['
seeds = 2

[base]
lr = 0.1

[[metric]]
name = "acc"
pattern = 'epoch (?P<step>\d+) .*test_acc ([\d.]+)'

[[metric]]
name = "loss"
better = "lower"
take = "best"
pattern = 'loss ([\d.]+)'

[[variation]]
key = "base"

[[variation]]
key = "big"
set = {lr = 1.0}
""".replace("{python}", sys.executable)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "number.txt").write_text("7")
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "mine.toml").write_text(STUDY)
    return tmp_path


def test_a_script_that_writes_to_a_fixed_folder_prints_its_table(cli: Cli, mine: Path) -> None:
    cli("run", "mine.toml", "--devices", "cpu:2", cwd=mine)
    rows = as_json(cli("report", "mine.toml", "--format", "json", cwd=mine))
    accuracies = {row["row"]: row["acc_test"] for row in rows}
    assert accuracies == {"base": pytest.approx(0.7 + 3 + 1.5), "big": pytest.approx(7 + 3 + 1.5)}
    assert [row["loss_test"] for row in rows] == pytest.approx([0.333, 0.333])
    assert not (mine / "out").exists() and len(list(mine.glob(f"runs/**/{WORK}/out/model.txt"))) == 4
    alone = cli("report", "mine.toml", "--columns", "acc", cwd=mine).stdout
    assert "acc (test)" in alone and "loss" not in alone.partition("- ")[0]
    four = cli("report", "mine.toml", "--digits", "acc=4", cwd=mine).stdout
    assert "5.2000 ±" in four
    assert "acc (test) = 5.2" in cli("explain", "mine.toml", "base.acc", cwd=mine).stdout
    events = "".join(path.read_text() for path in mine.glob("runs/**/events.jsonl"))
    assert '"metrics":{"acc":11.0},"step":3' in events and '"total":3,"what":"training"' in events


def test_a_pattern_that_finds_nothing_fails_the_run_with_its_last_lines(cli: Cli, mine: Path) -> None:
    study = mine / "mine.toml"
    study.write_text(study.read_text().replace("test_acc", "test_accuracy"))
    done = cli("run", study, "--rows", "base", "--seeds", "1", cwd=mine, code=1)
    said = " ".join((done.stdout + done.stderr + cli("log", "base", cwd=mine).stdout).split())
    assert "the pattern of acc" in said and "matched nothing in the output" in said
    assert "epoch 3 loss 0.333 test_acc 4.7" in said.partition("matched nothing")[2]


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        (r"'loss ([\d.]+)'", "'loss (['", "not a valid regular expression"),
        (r"'loss ([\d.]+)'", r"'loss [\d.]+'", "too few groups"),
        ('["train.py", "data"]', '["../data"]', "is not in the study's folder"),
        (r"'(\d+)/(\d+) \['", r"'(\d+)%'", "too few groups"),
    ],
)
def test_what_no_run_could_follow_is_refused_before_any_starts(
    cli: Cli, mine: Path, was: str, now: str, said: str
) -> None:
    study = mine / "mine.toml"
    assert was in study.read_text()
    study.write_text(study.read_text().replace(was, now))
    assert said in " ".join(cli("plan", study, cwd=mine, code=2).stderr.split())


def test_a_command_without_a_seed_says_that_its_seeds_are_repeats(cli: Cli, mine: Path) -> None:
    study = mine / "mine.toml"
    study.write_text(study.read_text().replace(" --seed {seed}", ""))
    assert "The command has no {seed}" in cli("plan", study, cwd=mine).stdout
    assert "no {seed}" not in cli("plan", study, "--seeds", "1", cwd=mine).stdout


def test_a_missing_link_is_named(cli: Cli, mine: Path) -> None:
    (mine / "data" / "number.txt").unlink()
    (mine / "data").rmdir()
    done = cli("run", "mine.toml", "--rows", "base", "--seeds", "1", cwd=mine, code=1)
    said = " ".join((done.stdout + done.stderr + cli("log", "base", cwd=mine).stdout).split())
    assert "`links` of the study names data, which does not exist in" in said


def test_a_configuration_file_gets_the_settings(cli: Cli, mine: Path) -> None:
    (mine / "train.py").write_text(
        "import sys, yaml\nconfig = yaml.safe_load(open(sys.argv[-1]))\n"
        "assert config['optimizer']['rate'] == 1e-5 and config['name'] == 'yes'\n"
        "print('test_acc', config['optimizer']['steps'], 'loss 1 epoch 1')\n"
    )
    study = mine / "mine.toml"
    text = (
        study.read_text()
        .replace("--lr {lr} --seed {seed}", "--config {settings.yaml}")
        .replace("lr = 1.0", "optimizer.steps = 9")
    )
    text = text.replace("lr = 0.1", 'name = "yes"\noptimizer.rate = 1e-5\noptimizer.steps = 3')
    study.write_text(text.replace(r"epoch (?P<step>\d+) .*", ""))
    cli("run", study, "--seeds", "1", cwd=mine)
    rows = as_json(cli("report", "mine.toml", "--seeds", "1", "--format", "json", cwd=mine))
    assert [row["acc_test"] for row in rows] == [3.0, 9.0]


def test_a_study_written_for_a_script_runs_at_once(cli: Cli, mine: Path) -> None:
    (mine / "mine.toml").unlink()
    said = cli("new", "mine", "--from", f"{sys.executable} train.py", cwd=mine).stdout
    assert "ablations run mine.toml" in said and not (mine / "mine_task.py").exists()
    cli("run", "mine.toml", "--devices", "cpu:2", cwd=mine)
    latex = cli("report", "mine.toml", "--format", "latex", "--columns", "acc", cwd=mine).stdout
    assert "lr=0.05" in latex.replace(" ", "").replace("$", "") or "0.05" in latex
    rows = as_json(cli("report", "mine.toml", "--format", "json", cwd=mine))
    assert rows[0]["acc_test"] == pytest.approx(0.7 + 3 + 1.5)
    assert "already exists" in cli("new", "mine", "--from", "train.py", cwd=mine, code=2).stderr


def test_ask_compares_the_parser_with_the_study_and_never_trains(cli: Cli, mine: Path) -> None:
    (mine / "train.py").write_text(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', type=float, default=0.1)\n"
        "p.add_argument('--width', type=int, default=8)\np.add_argument('--ema', type=bool, default=False)\n"
        "p._actions[2].default = 16\np.parse_args()\nopen('trained', 'w')\nprint('acc', 1.5)\n"
    )
    said = cli("new", "other", "--from", f"{sys.executable} train.py", "--ask", cwd=mine).stdout
    assert "confirms 2 of 3 settings" in said and "width is 16 without the option, and 8 with it" in said
    text = (mine / "other.toml").read_text()
    assert "lr = 0.1" in text and "# width: --ask:" in text and "{width}" not in text
    (mine / "train.py").write_text("open('trained', 'w')\nprint('acc', 1.5)\n")
    printed = cli("new", "none", "--from", f"{sys.executable} train.py", cwd=mine).stdout
    assert "No options found in train.py can be settings." in printed
    assert (
        "imports no parser"
        in cli("new", "no", "--from", f"{sys.executable} train.py", "--ask", cwd=mine, code=2).stderr
    )
    (mine / "train.py").write_text("import argparse\nprint(argparse.ArgumentParser().parse_known_args(['--fixed']))\n")
    said = cli("new", "no", "--from", f"{sys.executable} train.py", "--ask", cwd=mine, code=2).stderr
    assert "ended before it parsed options" in said
    assert not (mine / "trained").exists() and not (mine / "no.toml").exists()
