"""The recipes of docs/guides/trainers.md: Hugging Face's Trainer, Lightning, Hydra and torchrun as they are.

Libraries that are absent skip their recipe. ABLATIONS_TRAINERS_PYTHON names another interpreter that has them.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

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
