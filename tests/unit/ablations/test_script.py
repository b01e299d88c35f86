"""The study that `ablations new NAME --from SCRIPT` writes: options are settings, what is printed gives metrics."""

import pytest

from ablations.service.script import study_of
from ablations.service.selected import task_of
from ablations.study.study import Study, load_study
from experiments.config import flatten
from experiments.errors import UserError

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
    """The study, which its task accepts."""
    (tmp_path / "mine.toml").write_text(study_of("mine", given, tmp_path).text)
    study = load_study(str(tmp_path / "mine.toml"))
    task_of(study)
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
    """A group's keys are settings where every one of its files has them, so that a row may change the group."""
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


@pytest.mark.parametrize("given", ["nothing.py", "python -c 'print(1)'", "true"])
def test_what_names_no_script_is_refused(tmp_path, given):
    with pytest.raises(UserError, match="names no script"):
        study_of("mine", given, tmp_path)
