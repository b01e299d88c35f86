"""The fixture `cli`: its processes do what the command does when it starts from nothing."""

import subprocess
from pathlib import Path

import pytest

from .conftest import TINY, as_json, command, environment
from .warm_command import WarmCommands


@pytest.fixture(scope="module")
def warm():
    found = WarmCommands(environment())
    yield found
    found.close()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["plan", "here.toml", "--json"], 0),  # a path from the working directory
        (["report", "here.toml"], 2),  # no store: its place is in a variable
        (["plan", "there.toml"], 2),
        (["--version"], 0),
    ],
)
def test_output_and_exit_code_are_those_of_a_start_from_nothing(warm, tmp_path: Path, words: list[str], code: int):
    (tmp_path / "here.toml").write_text(TINY)
    variables = environment() | {"ABLATIONS_STORE": str(tmp_path / "of the environment")}
    ours = warm.run(words, variables, tmp_path, 240)
    theirs = subprocess.run(command(*words), capture_output=True, text=True, env=variables, cwd=tmp_path, check=False)
    assert (ours.returncode, ours.stdout, ours.stderr) == (theirs.returncode, theirs.stdout, theirs.stderr)
    assert ours.returncode == code and ours.stdout + ours.stderr


def test_two_calls_share_nothing(warm, tmp_path: Path):
    """What a call has read, its directory and its environment end with it."""
    planned = []
    for steps in (6, 8):
        folder = tmp_path / str(steps)
        folder.mkdir()
        (folder / "here.toml").write_text(TINY.replace("train_steps = 6", f"train_steps = {steps}"))
        planned.append(as_json(warm.run(["plan", "here.toml", "--json"], environment(), folder, 240))[0]["run_id"])
    assert planned[0] != planned[1]


def test_variables_that_are_read_at_import_need_a_start_from_nothing(warm):
    assert warm.can_run(environment() | {"TMPDIR": "/", "WANDB_MODE": "offline"})
    assert not warm.can_run(environment() | {"PYTHONPATH": "/elsewhere"})
    assert not warm.can_run(environment() | {"LD_PRELOAD": ""})
