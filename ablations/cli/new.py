"""`ablations new`: write a small study with its trainer, both ready to run and to be changed."""

import re
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from ablations.cli import command_study
from experiments.errors import UserError, explain_os_errors
from experiments.store.code import OURS
from experiments.store.durable import write_bytes

STUDY = Template("""\
name = "$name"
title = "What the pieces of $name are worth"
task = "$module:TASK"
seeds = 3                              # of every row; a row may say its own

[columns]                              # settings that the table prints, with their heads
noise = "σ"

# What is printed of the trainer's metrics is declared in $module.py, or here:
# [[metric]]
# name = "accuracy"                    # as the trainer returns it
# set = "test"
# head = "accuracy (%)"
# better = "higher"
# digits = 1

[[variation]]
key = "base"
seeds = 5

[[variation]]                          # the full model without one component
key = "without"
remove = {bias = {bias = false}}
# paper = {accuracy_test = 92.1}       # a published number, printed beside (of a row written by hand)

[[variation]]                          # one factor at a time; `grid` for every combination
key = "data"
vary = {noise = [0.0, 1.0]}

[tune]                                 # `ablations tune $name.toml`: each row at its best, by the same number of trials
trials = 8
metric = "accuracy"

[tune.range]
learning_rate = {low = 0.01, high = 10.0, log = true}
""")

TRAINER = Template('''\
"""The trainer of $name.toml: replace what is between the lines. It may import what lies beside it."""

import json
import math
import random
from dataclasses import dataclass

from ablations_task import column, task


@dataclass
class Settings:
    """What a row may change; every setting has a default."""

    learning_rate: float = 0.5
    steps: int = 200
    noise: float = 0.5
    bias: bool = True


COLUMNS = [column("accuracy", "dev", set="dev", digits=1), column("accuracy", "test (%)", digits=1)]


@task(Settings, columns=COLUMNS, steps="steps")
def TASK(settings, context):
    weights, start = [0.0, 0.0], 0
    if context.resume:  # killed before: resume at the last checkpoint
        weights, start = json.loads((context.resume / "state.json").read_text())
    for step in range(start + 1, settings.steps + 1):
        # ---- logistic regression on points of a line, one at a time
        point = draw(random.Random(f"{context.seed} {step}"), settings.noise)
        error = point[1] - predict(weights, point[0])
        weights[0] += settings.learning_rate * error * point[0]
        weights[1] += settings.learning_rate * error * settings.bias
        # ----
        if step % 50 == 0 or context.should_stop():
            context.log(step, dev_accuracy=accuracy(weights, "dev", settings))
            with context.checkpoint(step) as folder:
                (folder / "state.json").write_text(json.dumps([weights, step]))
    return {name: {"accuracy": accuracy(weights, name, settings)} for name in ("dev", "test")}


def draw(chance, noise):
    x = chance.uniform(-3, 3)
    return x, float(x + chance.gauss(0, noise) > 1)


def predict(weights, x):
    return 1 / (1 + math.exp(-(weights[0] * x + weights[1])))


def accuracy(weights, name, settings):
    points = [draw(random.Random(f"{name} {n}"), settings.noise) for n in range(500)]
    return 100 * sum((predict(weights, x) > 0.5) == y for x, y in points) / len(points)
''')


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the study: letters, digits, '_' and '-'.")],
    folder: Annotated[Path, typer.Option(metavar="DIR", help="Where to write the two files.")] = Path(),
    command: Annotated[bool, typer.Option("--command", help="The trainer is a script, run by a command.")] = False,
) -> None:
    """Write NAME.toml and NAME_task.py: a small study with its own trainer, ready to run and to be changed."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name) or name in OURS:
        raise UserError(f"{name!r} cannot be the name of a study and of a Python module: use letters, digits, _ and -.")
    module = f"{name.replace('-', '_')}_{'train' if command else 'task'}"
    study, trainer = (command_study.STUDY, command_study.SCRIPT) if command else (STUDY, TRAINER)
    files = {f"{name}.toml": study, f"{module}.py": trainer}
    for file in files:
        if (folder / file).exists():
            raise UserError(f"{folder / file} already exists and was not changed. Choose another name, or --folder.")
    with explain_os_errors(f"write to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        for file, template in files.items():
            write_bytes((folder / file).absolute(), template.substitute(name=name, module=module).encode())
    typer.echo(f"{folder / name}.toml and {module}.py written. Run:  ablations run {folder / name}.toml")
