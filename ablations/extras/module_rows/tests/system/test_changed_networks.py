"""Rows with `modules` on the command line: what `plan` refuses, what it never calls, what the table counts."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.system.conftest import Cli, as_json

TRAINER = """
from dataclasses import dataclass

import torch
from ablations_task import column, task


class Gated(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2 = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)
        self.w3 = torch.nn.Linear(4, 8)

    def forward(self, x):
        return self.w2(torch.nn.functional.silu(self.w1(x)) * self.w3(x))


@dataclass
class Settings:
    width: int = 4


@task(Settings, columns=[column("loss", better="lower")], cost=lambda settings: 1e6)
def TASK(settings, context):
    model = torch.nn.Sequential(Gated(), torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    model = context.ablate(model)
    return {"loss": float(model(torch.ones(1, 4)).square().sum())}
"""
NOISY = """
from pathlib import Path

import torch

Path("imported").touch()


class Noisy(torch.nn.Identity):
    def __init__(self, name):
        super().__init__()
        Path(name).touch()
"""


def study(folder: Path, *rows: str) -> Path:
    (folder / "trainer.py").write_text(TRAINER)
    (folder / "noisy.py").write_text(NOISY)
    written = "".join(
        f'[[variation]]\nkey = "row-{number}"\nmodules = [{json.dumps(line)}]\n' for number, line in enumerate(rows)
    )
    file = folder / "mine.toml"
    file.write_text(f'name = "mine"\ntitle = "Mine"\ntask = "trainer:TASK"\n[[variation]]\nkey = "base"\n{written}')
    return file


@pytest.mark.nightly
def test_a_gated_network_is_shrunk_and_a_class_is_made_by_its_run_alone(cli: Cli, tmp_path: Path) -> None:
    """Units of w1, w3 and w2 go from 8 to 4 in whatever order they are registered: 3·16 weights and 2·4 biases less."""
    file = study(tmp_path, "0 -> shrink 0.5", "2 -> noisy:Noisy('made')")
    where = (file, "--store", tmp_path / "store")
    planned = as_json(cli("plan", *where, "--json", cwd=tmp_path))
    cli("modules", *where, "--rows", "row-1", cwd=tmp_path)
    assert not (tmp_path / "imported").exists() and not (tmp_path / "made").exists()
    assert [run["cost"] for run in planned] == [1e6, 0, 0]  # the declared cost is that of the settings alone
    cli("run", *where, "--devices", "cpu:1", cwd=tmp_path)
    assert [*tmp_path.rglob("made")]
    sizes = "1 module, parameters 144 → 88: row-0"
    assert sizes in cli("report", *where, "--notes", "full").stdout


@pytest.mark.nightly
def test_plan_refuses_lines_with_which_the_network_computes_nothing(cli: Cli, tmp_path: Path) -> None:
    file = study(tmp_path, "1 -> torch.nn:Linear(5, 4)")
    said = cli("plan", file, "--store", tmp_path / "store", code=2, cwd=tmp_path).stderr
    assert "does not compute a batch" in said and "Traceback" not in said
    where = ("--profile", "demo", "--store", tmp_path / "store")
    line = 'modules=["encoder.layers.0.feed_forward.outer -> torch.nn:Linear(5, 4)"]'
    said = cli("plan", "table3", "--rows", "base", "--set", line, *where, code=2).stderr
    assert "does not compute a batch: RuntimeError" in said and "Traceback" not in said


@pytest.mark.nightly
@pytest.mark.extra("agents")
def test_a_built_in_study_calls_no_function(cli: Cli, tmp_path: Path) -> None:
    """Neither another package's class nor what is no class at all, neither on the command line nor for an agent."""
    file = tmp_path / "made"
    called = f"torch.serialization:os.system('touch {file}')"
    words = ("--profile", "demo", "--store", tmp_path / "store")
    line = f'modules=["encoder.layers.0.feed_forward.outer -> {called}"]'
    said = cli("plan", "table3", "--rows", "base", "--set", line, *words, code=2).stderr
    assert "is no subclass of torch.nn.Module" in said
    line = f"evaluation.modules=[\"encoder.layers.0.feed_forward.outer -> subprocess:Popen(['touch', '{file}'])\"]"

    from ablations.extras.agents.tests.system.test_mcp_server import door, refused

    async def agent() -> str:
        async with door(tmp_path) as client:
            return await refused(client, "plan", study="table3", profile="demo", rows="base", set=[line])

    assert "a class of model or torch" in asyncio.run(agent())
    assert not file.exists()


def test_plan_counts_a_changed_network(cli: Cli, tmp_path: Path) -> None:
    """Without the feed-forward networks a pair's training has 6·D·d_ff operations less for each piece and layer."""
    where = ("--profile", "demo", "--store", tmp_path / "store", "--json")
    [base, *_] = as_json(cli("plan", "table3", "--rows", "base", *where))
    line = 'modules=["*coder.layers.*.feed_forward -> zero"]'
    [changed, *_] = as_json(cli("plan", "table3", "--rows", "base", "--set", line, *where))
    layers, width, inner, tokens = 2 * 3, 64, 256, 1200 * 150  # of the demo
    assert base["num_params"] - changed["num_params"] == layers * (2 * width * inner + inner + width)
    assert base["cost"] - changed["cost"] == pytest.approx(tokens * 3 * layers * 2 * 2 * width * inner)


def test_the_modules_of_a_network(cli: Cli, tmp_path: Path) -> None:
    """Heads as in the paper are twice as wide in all as the demo's D: four products of D by 2 D, with their biases."""
    where = ("--profile", "demo", "--store", tmp_path / "store")
    found = as_json(cli("modules", "table3", "encoder.layers.*.self_attention", *where, "--json"))["modules"]
    width = found[0]["output"][-1]
    assert [one["name"] for one in found] == [f"encoder.layers.{number}.self_attention" for number in range(len(found))]
    assert {one["params"] for one in found} == {4 * width * 2 * width + 3 * 2 * width + width}
    whole = as_json(cli("modules", "table3", *where, "--json"))["modules"]
    planned = as_json(cli("plan", "table3", "--rows", "base", *where, "--json"))
    assert whole[0]["name"] == "" and whole[0]["params"] == planned[0]["num_params"]
    assert "it matches nothing" in cli("modules", "table3", "encoder.layer", *where, code=2).stderr


SHALLOW = """
import torch
from ablations_task import column, task
from dataclasses import dataclass


@dataclass
class Settings:
    width: int = 4


@task(Settings, columns=[column("loss", better="lower")])
def TASK(settings, context):
    first, second = (torch.nn.Linear(settings.width, settings.width) for _ in range(2))
    model = context.ablate(torch.nn.Sequential(first, second))
    return {"loss": float(model(torch.ones(1, settings.width)).square().sum())}
"""


@pytest.mark.nightly
def test_the_table_says_which_modules_were_changed(cli: Cli, tmp_path: Path) -> None:
    """Two products of 4 by 4 with their biases: 40 parameters, and 20 without one of them."""
    (tmp_path / "shallow.py").write_text(SHALLOW)
    (tmp_path / "shallow.toml").write_text(
        'name = "shallow"\ntitle = "Shallow"\ntask = "shallow:TASK"\n[[variation]]\nkey = "base"\n'
        '[[variation]]\nkey = "one"\nmodules = ["1 -> remove"]\n'
        '[[variation]]\nkey = "still"\nmodules = ["* -> freeze"]\n'
    )
    where = (tmp_path / "shallow.toml", "--store", tmp_path / "store")
    cli("run", *where, "--devices", "cpu:1")
    said = cli("report", *where, "--notes", "full").stdout
    assert "Changed modules. 1 module, parameters 40 → 20: one; 2 modules, 40 parameters as before: still." in said
