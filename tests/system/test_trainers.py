"""The recipes of docs/guides/trainers.md work with Hugging Face's Trainer, Lightning, Hydra and torchrun.

A recipe is skipped if its library is missing. ABLATIONS_TRAINERS_PYTHON may name another interpreter that has the
libraries.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from .conftest import as_json, command, environment

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples" / "trainers"
PYTHON = os.environ.get("ABLATIONS_TRAINERS_PYTHON", sys.executable)
RECIPES = {
    "huggingface": ("transformers, accelerate", ["base", "wide", "no-dropout"]),
    "lightning": ("lightning", ["base", "wide"]),
    "hydra": ("hydra", ["base", "slow", "scaled"]),
    "torchrun": ("torch", ["base", "nesterov"]),
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_table_by(name: str, tmp_path: Path) -> None:
    libraries, rows = RECIPES[name]
    if subprocess.run([PYTHON, "-c", f"import {libraries}"], capture_output=True).returncode:
        pytest.skip(f"{PYTHON} has no {libraries}")
    shutil.copytree(EXAMPLES / name, tmp_path / "study")
    study = tmp_path / "study" / "table.toml"
    if name == "lightning":
        study.write_text(study.read_text().replace("# python = ", f'python = "{PYTHON}"  # '))
    path = os.pathsep.join([str(Path(PYTHON).parent), os.environ["PATH"]])
    done = subprocess.run(
        command("run", study, "--seeds", "1", "--store", tmp_path / "store", "--json"),
        env=environment() | {"PATH": path}, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [(row["row"], row["n"]) for row in as_json(done)] == [(row, 1) for row in rows]


def start(folder: Path, store: Path) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(Path(PYTHON).parent), os.environ["PATH"]])
    asked = ("run", folder / "table.toml", "--rows", "base", "--seeds", "1", "--devices", "cpu:1", "--json")
    return subprocess.Popen(
        command(*asked, "--store", store), env=environment() | {"PATH": path}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def ended(started: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    printed, errors = started.communicate(timeout=500)
    assert started.returncode == code, errors
    return printed, errors


def process_of(coordinator: int, victim: str) -> psutil.Process:
    """Return torchrun's process, or the last rank that it started."""
    family = {process: process.cmdline() for process in psutil.Process(coordinator).children(recursive=True)}
    parents = [process for process, words in family.items() if any(Path(word).name == "torchrun" for word in words[:2])]
    ranks = [process for process, words in family.items() if process.parent() in parents and "train.py" in words]
    return parents[-1] if victim == "torchrun" else ranks[-1]


@pytest.mark.nightly
@pytest.mark.parametrize("victim", ["torchrun", "a rank"])
def test_a_kill_below_torchrun_costs_only_the_steps_since_the_checkpoint(victim: str, tmp_path: Path) -> None:
    """If torchrun is killed, the run resumes by itself. If a rank is killed, torchrun reports a failure to the user."""
    folder, store = tmp_path / "study", tmp_path / "store"
    shutil.copytree(EXAMPLES / "torchrun", folder)
    [undisturbed] = json.loads(ended(start(folder, tmp_path / "undisturbed"))[0])
    script = folder / "train.py"
    slow = script.read_text().replace(
        "    optimizer.step()\n", "    optimizer.step()\n    __import__('time').sleep(0.2)\n"
    )
    script.write_text(slow)
    running = start(folder, store)
    until = time.monotonic() + 300
    while not any(store.glob("runs/*/attempts/*/**/state.pt")):
        assert time.monotonic() < until and running.poll() is None, running.communicate()
        time.sleep(0.05)
    process_of(running.pid, victim).kill()
    if victim == "torchrun":
        printed, _ = ended(running)
    else:
        ended(running, code=1)
        said = subprocess.run(command("status", "--store", store), env=environment(), capture_output=True, text=True)
        assert "the command ended with exit code 1: torchrun" in said.stdout and "SIGKILL" in said.stdout
        printed, _ = ended(start(folder, store))
    [row] = json.loads(printed)
    assert (row["n"], row["error_test"]) == (1, undisturbed["error_test"])
    points = [
        [json.loads(line)["step"] for line in path.read_text().splitlines() if '"kind":"metrics"' in line]
        for path in sorted(store.glob("runs/*/attempts/*/events.jsonl"))
    ]
    assert points[0][0] == 10 and len(points) == 2 and min(points[1]) > points[0][0], "it did not begin again"
