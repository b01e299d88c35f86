"""What `ablations new --command` writes: a study whose trainer is a script of its own, and the script."""

from string import Template

STUDY = Template("""\
name = "$name"
title = "What the pieces of $name are worth"
command = "python3 $module.py --rate {rate} --noise {noise} {bias:--no-bias} --seed {seed} --folder {folder}"
seeds = 3                              # of every row; a row may say its own

[base]                                 # the settings, with their values in base
rate = 0.5
noise = 0.5
bias = true                            # a flag: --no-bias is given where it is false

[columns]                              # settings that the table prints, with their heads
noise = "σ"

[[metric]]                             # as the script prints it at its end
name = "accuracy"
head = "accuracy (%)"
digits = 1

[[variation]]
key = "base"
seeds = 5

[[variation]]                          # the full model without one component
key = "without"
remove = {bias = {bias = false}}

[[variation]]                          # one factor at a time; `grid` for every combination
key = "data"
vary = {noise = [0.0, 1.0]}
""")

SCRIPT = Template('''\
"""The trainer of $name.toml, a script like any other; it may be in another language."""

import argparse
import json
import math
import random
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float, default=0.5)
parser.add_argument("--noise", type=float, default=0.5)
parser.add_argument("--no-bias", action="store_true")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--folder", type=Path, default=Path())
given = parser.parse_args()


def draw(chance):
    x = chance.uniform(-3, 3)
    return x, float(x + chance.gauss(0, given.noise) > 1)


def predict(x):
    return 1 / (1 + math.exp(-(weights[0] * x + weights[1])))


state = given.folder / "state.json"  # a run that was killed starts again with the same folder
weights, start = json.loads(state.read_text()) if state.exists() else ([0.0, 0.0], 0)
for step in range(start + 1, 201):
    x, y = draw(random.Random(f"{given.seed} {step}"))
    error = y - predict(x)
    weights[0] += given.rate * error * x
    weights[1] += given.rate * error * (not given.no_bias)
    if step % 50 == 0:
        (given.folder / "new").write_text(json.dumps([weights, step]))
        (given.folder / "new").replace(state)
        print(json.dumps({"step": step, "loss": abs(error), "checkpoint": True}))  # a point of the curve

points = [draw(random.Random(f"test {n}")) for n in range(500)]
print(json.dumps({"accuracy": 100 * sum((predict(x) > 0.5) == y for x, y in points) / len(points)}))
''')
