"""Tests of the study that `ablations new NAME --from SCRIPT` writes: settings from options, metrics from output."""

from pathlib import Path

import pytest
import yaml

from ablations.cli import new_study
from ablations.cli.new_study import new
from ablations.service.script import WrittenStudy, study_of
from ablations.service.selected import task_of_study
from ablations.study.study import Study, load_study
from experiments.dotted import flatten, nested
from experiments.errors import UserError
from experiments.run_spec import TrainerSpec
from experiments.tasks.load import load_task
from experiments.tasks.own.command import write_yaml
from experiments.tasks.own.command_files import script_of
from experiments.tasks.own.patterns import Readings

ARGPARSE = """
import argparse
p = argparse.ArgumentParser()
p.add_argument("--lr", type=float, default=1, help="learning rate")
p.add_argument("--layers", type=int, default=4)
p.add_argument("--opt", choices=["sgd", "adam"], default="sgd")
p.add_argument("--no-bias", action="store_true")
p.add_argument("--cold", dest="warm", action="store_false")
p.add_argument("--task", default="mnist")
p.add_argument("--init")
p.add_argument("--random-seed", type=int)
p.add_argument("--device", default="cuda")
a = p.parse_args()
print(f"epoch {1}/{2} loss {3:.2f}")
print("val_acc:", 0.5, "%", f"best_test_acc={1}")
"""
CLICK = """
import click, logging
@click.command()
@click.option("--lr", default=0.1)
@click.option("--shuffle/--no-shuffle", default=True)
@click.argument("data")
def main(lr, shuffle, data):
    logging.info("Test F1 %.3f", lr)
main()
"""
TYPER = """
import typer
from typing import Annotated
def main(hidden_size: int = 32, bias: bool = True, name: str = typer.Option("x", "--label"),
         depth: Annotated[int, typer.Option(help="layers")] = 2, seed: int = 1):
    print("accuracy={}".format(1))
typer.run(main)
"""
TYRO = """
from dataclasses import dataclass
import tyro
@dataclass
class Config:
    learning_rate: float = 1e-5
    use_bias: bool = False
tyro.cli(Config)
print("test/acc %.2f" % 3)
"""
HYDRA = """
import hydra, json
@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    print(json.dumps({"accuracy": 1}))
main()
"""
YAML = "defaults:\n  - db: mysql\nlr: 1.0e-05\nmodel:\n  width: 8\n  name: null\n"


def written(tmp_path, given: str) -> Study:
    """Return the study, after checking that its task accepts it."""
    (tmp_path / "mine.toml").write_text(study_of("mine", given, tmp_path).text)
    study = load_study(str(tmp_path / "mine.toml"))
    task_of_study(study)
    return study


def test_argparse(tmp_path):
    (tmp_path / "train.py").write_text(ARGPARSE)
    study = written(tmp_path, "train.py")
    assert study.command == (
        "python train.py --lr {lr} --layers {layers} --opt {opt} {no_bias:--no-bias} {warm:|--cold} --task {task_} "
        "--random-seed {seed} --device {device}"
    )
    base = {"lr": 1.0, "layers": 4, "opt": "sgd", "no_bias": False, "warm": True, "task_": "mnist"}
    assert dict(study.base) == base and study.seeds == 2 and study.links == ("train.py",)
    assert [(row.key, dict(row.set)) for row in study.variations] == [
        ("base", {}), ("lr-0.5", {"lr": 0.5}), ("layers-2", {"layers": 2}),
    ]  # fmt: skip
    assert [(one.set, one.name, one.pattern) for one in study.metrics] == [
        ("test", "best_test_acc", r"\bbest_test_acc=\s*([-+\d.e]+)"), ("dev", "acc", r"\bval_acc:\s*([-+\d.e]+)"),
    ]  # fmt: skip
    assert study.progress == r"\bepoch\W*(\d+) ?/ ?(\d+)"
    text = (tmp_path / "mine.toml").read_text()
    assert "# --lr: float, learning rate" in text and "# init: it has no default" in text
    assert '# name = "loss"' in text and r"pattern = '\bepoch\W*(?P<step>\d+).*?\bloss\s*([-+\d.e]+)'" in text
    assert """# guessed from train.py:14: print(f'epoch {1}/{2} loss {3:.2f}')""" in text


@pytest.mark.parametrize(
    ("script", "given", "command", "metric"),
    [
        (CLICK, "python train.py x.csv", "python train.py x.csv --lr {lr} {shuffle:--shuffle|--no-shuffle}", "F1"),
        (
            TYPER,
            "train.py",
            "python train.py --hidden-size {hidden_size} {bias:--bias|--no-bias} --label {name} --depth {depth} "
            "--seed {seed}",
            "accuracy",
        ),
        (TYPER, "python train.py --depth 3", "", "accuracy"),
        (
            TYRO,
            "train.py",
            "python train.py --learning-rate {learning_rate} {use_bias:--use-bias|--no-use-bias}",
            "acc",
        ),
        (HYDRA, "train.py", "python train.py db={db} lr={lr} model.width={model.width}", "accuracy"),
        (
            "print('acc', 1)",
            "python train.py --config c.yaml",
            "python train.py --config {settings.yaml:c.yaml}",
            "acc",
        ),
        (ARGPARSE, "torchrun --nproc-per-node 2 train.py", "", "best_test_acc"),
        (ARGPARSE, "accelerate launch train.py", "", "best_test_acc"),
    ],
    ids=["click", "typer", "given", "tyro", "hydra", "yaml", "torchrun", "accelerate"],
)
def test_other_ways_to_take_options(tmp_path, script, given, command, metric):
    (tmp_path / "conf").mkdir()
    for file in ("conf/config.yaml", "c.yaml"):
        (tmp_path / file).write_text(YAML)
    (tmp_path / "conf" / "db").mkdir()
    (tmp_path / "conf/db/mysql.yaml").write_text("{}")
    (tmp_path / "train.py").write_text(script)
    study = written(tmp_path, given)
    assert study.command == command or (not command and study.command.startswith(f"{given} --"))
    assert study.command.count("--depth") <= 1
    assert study.metrics[0].name == metric
    if "yaml" in given or script == HYDRA:
        of_hydra = {"db": "mysql"} if script == HYDRA else {}
        assert dict(flatten(study.base)) == {**of_hydra, "lr": 1e-05, "model.width": 8}
    if script == HYDRA:
        assert set(study.links) == {"train.py", "conf"}


def test_a_seed_beside_a_configuration_file_and_the_keys_of_hydra_s_groups(tmp_path):
    """A group's keys are settings if all of the group's files have them, so that a row may change the group."""
    (tmp_path / "conf" / "db").mkdir(parents=True)
    for file in ("conf/config.yaml", "c.yaml"):
        (tmp_path / file).write_text(YAML)
    (tmp_path / "conf/db/mysql.yaml").write_text("rate: 0.5\nuser: me\n")
    (tmp_path / "conf/db/other.yaml").write_text("rate: 0.25\n")
    (tmp_path / "train.py").write_text(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--config')\n"
        "p.add_argument('--seed', type=int, default=0)\np.add_argument('--workers', default=2)\nprint('acc', 1)\n"
    )
    study = written(tmp_path, "python train.py --config c.yaml")
    assert (study.command, study.seeds) == ("python train.py --config {settings.yaml:c.yaml} --seed {seed}", 2)
    (tmp_path / "train.py").write_text(HYDRA)
    study = written(tmp_path, "train.py")
    assert study.command.endswith(" db={db_} db.rate={db.rate} lr={lr} model.width={model.width}")
    assert (
        dict(flatten(study.base))["db.rate"] == 0.5 and 'key = "db.rate-0.25"' in (tmp_path / "mine.toml").read_text()
    )
    (tmp_path / "conf/db/other.yaml").unlink()
    assert r"db.user=\'{db.user}\'" in written(tmp_path, "train.py").command


def test_colours_in_what_it_prints_and_a_total_in_words(tmp_path):
    (tmp_path / "train.py").write_text(
        "import sys\nfor e in range(3):\n    sys.stderr.write(f'\\repoch {e}/3 \\x1b[32mtest_acc {e}\\x1b[0m')\n"
    )
    study = written(tmp_path, "train.py")
    assert [(one.name, one.pattern) for one in study.metrics] == [
        ("acc", r"\bepoch\W*(?P<step>\d+).*?\btest_acc\s*([-+\d.e]+)")
    ]  # fmt: skip
    assert study.progress == r"\bepoch\W*(\d+) ?/ ?(\d+)"


def test_a_package_with_its_options_in_another_file(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    (tmp_path / "pkg" / "__main__.py").write_text("from .opts import parse\nparse()\nprint(f'perplexity {1}')\n")
    (tmp_path / "pkg" / "opts.py").write_text(
        "import argparse\ndef parse():\n    p = argparse.ArgumentParser()\n"
        "    p.add_argument('--n', type=int, required=True)\n    p.add_argument('--lr', type=float, default=0.1)\n"
    )
    study = written(tmp_path, "python -m pkg --n 3")
    assert (study.command, study.links) == ("python -m pkg --n 3 --lr {lr}", ("pkg",))
    assert (study.metrics[0].better, study.seeds) == ("lower", 1)
    with pytest.raises(UserError, match=r"requires --n\. Give the value in the command"):
        study_of("mine", "python -m pkg", tmp_path)


@pytest.mark.parametrize(
    "printed", ["f'test accuracy: {a * 1.5:.4f}'", "'test accuracy: %.4f' % a", "'test accuracy: {:.4f}'.format(a)"]
)
def test_a_column_has_the_decimals_that_the_script_prints(tmp_path, printed):
    (tmp_path / "train.py").write_text(f"a = 0.5\nprint({printed})\nprint(f'val loss {{a:.1f}}')\n")
    assert {one.name: one.digits for one in written(tmp_path, "train.py").metrics} == {"accuracy": 4, "loss": 2}


def test_data_that_the_script_names_is_linked_and_what_it_writes_is_not(tmp_path):
    for name in ("data", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "train.py").write_text("open('data/x.txt'); open('./out/y.txt', 'w'); print('acc', 1)\n")
    assert "data" in study_of("mine", "python train.py --lr 1", tmp_path).text.partition("links")[2].splitlines()[0]
    assert "out" not in study_of("mine", "python train.py --lr 1", tmp_path).text.partition("links")[2].splitlines()[0]


CONFIG = """\
lr: 0.1
resume: null
scheduler: {}
milestones: []
seed: 7
transforms:
  - {name: flip, p: 0.5}
model: {width: 8, pretrained: null, _target_: a.B, "a b": 1, copy: 2}
2d: 3
when: 2024-05-01
rate: 1e-4
"""


def test_a_configuration_file_keeps_whatever_no_setting_names(tmp_path):
    (tmp_path / "conf.yaml").write_text(CONFIG)
    (tmp_path / "train.py").write_text("print('acc', 1)")
    study = written(tmp_path, "python train.py --config=conf.yaml")
    assert study.command == "python train.py --config={settings.yaml:conf.yaml}" and "conf.yaml" in study.links
    base = {"lr": 0.1, "milestones": [], "model.width": 8, "rate": "1e-4"}
    assert dict(flatten(study.base)) == base and study.seeds == 2
    task, original = task_of_study(study), yaml.safe_load(CONFIG)

    def given(**changed):
        config = task.config_type.model_validate(nested({**base, **changed}))
        write_yaml(tmp_path / "given.yaml", config, study.command, tmp_path)
        return yaml.safe_load((tmp_path / "given.yaml").read_text())

    assert given() == {**original, "seed": 1}
    model = {**original["model"], "width": 16}
    assert given(seed=3, lr=0.2, **{"model.width": 16}) == {**original, "seed": 3, "lr": 0.2, "model": model}
    assert task.preflight(task.config_type(), tmp_path) == []
    assert (tmp_path / "conf.yaml").resolve() in task.named
    (tmp_path / "other.yaml").write_text("random_seed: 3\n")
    assert written(tmp_path, "python train.py other.yaml").seeds == 1  # the run's seed would not reach it
    (tmp_path / "conf.yaml").unlink()
    assert "does not exist" in str(task.preflight(task.config_type(), tmp_path)[0])


def test_a_study_that_plan_refuses_is_not_written(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("print('acc', 1)")
    new("good", folder=tmp_path, script="train.py")
    assert (tmp_path / "good.toml").exists()
    text = (tmp_path / "good.toml").read_text()
    for wrong in ("[base]\nunused = 1", "[base", "[base]\nx = 1\nx.y = 2"):
        bad = WrittenStudy(text.replace("[base]", wrong), ())
        monkeypatch.setattr(new_study, "study_of", lambda *words, bad=bad: bad)
        with pytest.raises(UserError, match="No study was written"):
            new("bad", folder=tmp_path, script="train.py")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["good.toml", "train.py"]


def test_python_stands_before_a_script_with_options(tmp_path):
    (tmp_path / "train.py").write_text(ARGPARSE)
    study = written(tmp_path, "train.py --lr 0.2 --no-bias")
    assert study.command.startswith("python train.py --lr 0.2 --no-bias --layers {layers} --opt {opt} {warm")
    assert set(study.base) == {"layers", "opt", "warm", "task_"}


PRINTS = {
    "print(f'Acc@1: {top1.val:>7.3f} ({top1.avg:>7.3f})')": ("Acc@1", "Acc@1:  100.000 ( 75.000)", 75.0),
    "print('Acc@1 {top1.val:.3f} ({top1.avg:.3f})'.format(top1=m))": ("Acc@1", "Acc@1 100.000 (75.000)", 75.0),
    "print('acc %.2f (best %.2f)' % (acc, best))": ("acc", "acc 1.50 (best 2.50)", 1.5),
    "print(f'loss {now:.1f} ({before:.1f})')": ("loss", "loss 1.5 (2.5)", 1.5),
    "print('Test set: Average loss: {:.4f}'.format(l))": ("loss", "Test set: Average loss: 0.2500", 0.25),
    "file.write('acc: {}'.format(acc))": None,
    "print(f'Test results: accuracy {a:.1f}')": ("accuracy", "Train: accuracy 99.0 Test results: accuracy 1.5", 1.5),
    "print(f'Test: Accuracy: {c}/{n} ({100 * c / n:.1f}%)')": ("Accuracy", "Test: Accuracy: 9/10 (90.0%)", 90.0),
    "print(f'Accuracy: {c}/{n}')": None,
    "print('Loss is {}, stopping training'.format(loss))": None,
    "if x:\n    print('val_acc', acc)\n    sys.exit(1)": None,
    "if x:\n    print('val_acc', acc)\n    raise ValueError(x)": None,
    "try:\n    x()\nexcept OSError:\n    print('val_acc', acc)": None,
    "logging.warning('acc %.3f', acc)": None,
    "print('the roadmap:', 3)": None,
    "logging.info('step %d: valAcc %.3f', step, acc)": ("valAcc", "step 7: valAcc 0.5", 0.5),
    "print('Test WER is', wer)": None,
    "print(f'val/acc={acc:.3f}, lr={lr}')\nsys.exit(0)": ("acc", "val/acc=0.25, lr=1", 0.25),
    "print('Epoch: [{0}][{1}/{2}]\\tLoss {loss.val:.4f} ({loss.avg:.4f})'.format(1, 2, 3, loss=m))": (
        "Loss", "Epoch: [1][2/3]\tLoss 0.5000 (0.2500)", 0.25,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("source", "expected"), PRINTS.items())
def test_a_guessed_pattern_finds_the_number_in_what_the_line_prints(tmp_path, source, expected):
    """The average of `val (avg)`; no line that only an error prints, and no word that is no metric."""
    (tmp_path / "train.py").write_text(f"import logging, sys\n{source}\n")
    text = study_of("mine", "train.py", tmp_path).text
    found = [line.lstrip("# ") for line in text.splitlines() if "[[metric]]" in line or "name = " in line][1:]
    if expected is None:
        assert found == ["[[metric]]", 'name = "accuracy"'] and "Nothing that the script prints" in text
        return
    name, printed, value = expected
    assert found == ["[[metric]]", f'name = "{name}"']
    pattern = next(line.partition("'")[2].rpartition("'   #")[0] for line in text.splitlines() if "pattern = " in line)
    readings = Readings([("test", name, pattern, "last")], "", lambda kind, **fields: None)
    readings.line(printed)
    assert readings.each[0].value == value


# What a script does, and for each column of its study the pattern's number in the output.
COLUMNS = {
    "print(f'Accuracy: {90.5:.2f}%')\nprint(f'Training Accuracy: {99.5:.2f}%')": {("test", "Accuracy"): 90.5},
    "print(f'acc: {0.9:.3f}')\nprint(f'val acc: {0.8:.3f}')": {("test", "acc"): 0.9, ("dev", "acc"): 0.8},
    "for phase in ['train', 'val']:\n    print(f'{phase} Loss: {0.5:.4f} Acc: {0.75:.4f}')\n"
    "print(f'Best val Acc: {0.875:4f}')": {("dev", "best_acc"): 0.875},
    "def show(name, acc):\n    print(f'{name} acc: {acc:.3f}')\nshow('test', 0.9)\nshow('val', 0.8)": {},
    "print(f'Accuracy: {0.9:.3f} (std {0.05:.3f})')\nprint(f'Balanced Accuracy: {0.6:.3f}')": {
        ("test", "Accuracy"): 0.9, ("test", "balanced_accuracy"): 0.6,
    },
    "print(f'F1: {0.9:.3f}')\nprint(f'Macro F1: {0.6:.3f}')": {("test", "F1"): 0.9, ("test", "macro_f1"): 0.6},
    "print(f'Test Accuracy: {90.5:.2f}')\nprint(f'Accuracy: {12.5:.2f}')": {("test", "Accuracy"): 90.5},
    "print('Accuracy: {}/{} ({:.0f}%)'.format(9, 10, 90.0))\nprint(f'Accuracy {0.5} on adversarial set')": {
        ("test", "Accuracy"): 90.0, ("test", "accuracy_on_adversarial_set"): 0.5,
    },
    "acc = 0.75\nprint(f'{acc=:.3f}')\nprint('Epoch %d: val acc=%.2f%%' % (3, 50.0))": {
        ("test", "acc"): 0.75, ("dev", "acc"): 50.0,
    },
    "for epoch in range(2):\n    print(f'epoch {epoch} acc {0.5 + epoch / 4:.3f}')\nprint(f'final acc {0.9:.3f}')": {
        ("test", "acc"): 0.75, ("test", "final_acc"): 0.9,
    },
    "for n in range(2):\n    print(f'epoch {n} acc {0.5:.3f}')\nprint(f'acc {0.9:.3f}')": {("test", "acc"): 0.9},
    "for epoch in range(2):\n    print(f'acc {0.5:.3f} (best {0.6:.3f})')\nprint(f'acc {0.9:.3f}')": {},
    "print('Test set:\\nAccuracy:', 0.5)\nprint('Train set:\\nAccuracy:', 0.9)": {},
    "def train():\n    print(f'acc: {0.9}')\ndef test():\n    print(f'acc: {0.5}')\ntrain()\ntest()": {},
    "print('Evaluating', end=' ')\nprint(f'acc: {0.5}')\nprint(f'val acc: {0.6}')": {
        ("dev", "acc"): 0.6,
    },
    "print(f'average accuracy {0.5}')\nprint(f'Accuracy {0.6}')": {
        ("test", "average_accuracy"): 0.5, ("test", "Accuracy"): 0.6,
    },
    "class args: data = 'mnist'\nprint(f'{args.data} acc: {0.5}')": {("test", "acc"): 0.5},
    "print(f'{__name__} | test acc {0.5}')": {("test", "acc"): 0.5},
    "print('After training accuracy:', 0.5)": {("test", "accuracy"): 0.5},
    "print('trainacc:', 0.9)\nprint('testacc:', 0.5)": {("test", "testacc"): 0.5},
    "print(f\"Model's {{x}} - acc: {0.5}\")\nprint(f'other acc: {0.6}')": {
        ("test", "acc"): 0.5, ("test", "other_acc"): 0.6,
    },
}  # fmt: skip


@pytest.mark.parametrize(("source", "expected"), COLUMNS.items())
def test_a_guessed_pattern_finds_no_number_of_another_line(tmp_path, capsys, source, expected):
    (tmp_path / "train.py").write_text(source)
    study = written(tmp_path, "train.py")
    exec(compile(source, "train.py", "exec"), {})
    readings = Readings([one.reading for one in study.metrics if one.pattern], "", lambda kind, **fields: None)
    for line in capsys.readouterr().out.splitlines():
        readings.line(line)
    assert {(one.set, one.metric): one.value for one in readings.each} == expected


def test_a_metric_that_is_not_certain_is_a_comment_with_the_reason(tmp_path):
    (tmp_path / "train.py").write_text("def show(name, acc):\n    print(f'{name} acc: {acc:.3f}')\nshow('test', 0.9)\n")
    text = study_of("mine", "train.py", tmp_path).text
    assert "the value of `name` before this number" in text and r"# pattern = '^\s*WORD\s+acc:\s*([-+\d.e]+)'" in text
    assert "# guessed from train.py:2" in text


def test_a_guessed_pattern_does_not_find_the_text_of_a_progress_bar(tmp_path):
    (tmp_path / "train.py").write_text("bar.set_postfix(acc=0.5)\nprint(f'acc={0.75}')\n")
    assert [one.pattern for one in written(tmp_path, "train.py").metrics] == [r"^\s*acc=\s*([-+\d.e]+)"]


@pytest.mark.parametrize("given", ["nothing.py", "python -c 'print(1)'", "true"])
def test_what_names_no_script_is_refused(tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"--from .*: no script `"):
        study_of("mine", given, Path())


@pytest.mark.parametrize(("given", "kind"), [("walk.toml", ".toml"), ("python walk.yaml", ".yaml")])
def test_a_file_of_data_is_no_script(tmp_path, given, kind):
    (tmp_path / f"walk{kind}").write_text("")
    (tmp_path / "train.py").write_text("")
    with pytest.raises(UserError, match=f"walk{kind} is a {kind} file, not a script"):
        study_of("mine", given, tmp_path)
    assert f"walk{kind}" in study_of("mine", f"python train.py walk{kind}", tmp_path).text


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("python train.py --lr {lr}", "train.py"),
        ("CUDA_VISIBLE_DEVICES=0 /usr/bin/python3.11 -u src/train.py", "src/train.py"),
        ("python -m train.py", ""),
        ("python {script}.py", ""),
        ("cd src && python train.py", ""),
        ("wget x && python train.py", ""),
        ("sh train.py", ""),
        ("python $HOME/train.py", ""),
        ("python -c train.py", ""),
    ],
)
def test_a_script_that_is_not_there_is_refused_where_it_is_certain(tmp_path, command, script):
    assert script_of(command) == script
    if script and "/usr" not in command:
        settings = {"lr": 1} if "{lr}" in command else {}
        task = load_task("command", str(tmp_path)).with_settings(settings, TrainerSpec(command))
        assert "runs train.py, which does not exist in" in str(task.preflight(task.config_type(), tmp_path)[0])
        (tmp_path / script).write_text("")
        assert task.preflight(task.config_type(), tmp_path) == []


@pytest.mark.parametrize(("ignored", "noted"), [("", True), ("*.pyc\n/runs/\n", False), ("runs\n", False)])
def test_in_a_repository_git_is_to_ignore_the_runs(tmp_path, monkeypatch, capsys, ignored, noted):
    """By a line of any .gitignore from this folder up to the repository."""
    (below := tmp_path / "below").mkdir()
    monkeypatch.chdir(below)
    new("one", Path("one"), command=True)
    assert "gitignore" not in capsys.readouterr().out
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text(ignored)
    new("two", Path("two"), command=True)
    assert ("add runs/ to .gitignore" in capsys.readouterr().out) is noted
