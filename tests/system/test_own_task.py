"""A user's trainer in the study's folder, not installed, is planned, queued, killed, resumed and printed.

Also tests users' mistakes.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from .conftest import Cli, as_json, command, environment

pytestmark = pytest.mark.slow

TASK = """
import time
from dataclasses import dataclass
from ablations_task import column, task
from drifting import drift

@dataclass
class Settings:
    step_size: float = 1.0
    steps: int = 12
    pause_s: float = 0.0

@task(Settings, steps="steps", columns=[column("distance", "distance", digits=1)])
def TASK(settings, context):
    start, position = 0, 0.0
    if context.resume:
        start, position = (float(word) for word in (context.resume / "state").read_text().split())
    for step in range(int(start) + 1, settings.steps + 1):
        time.sleep(settings.pause_s)
        position += drift(settings.step_size, context.seed)
        context.log(step, distance=position)
        if step % 4 == 0 or context.should_stop():
            with context.checkpoint(step) as folder:
                (folder / "state").write_text(f"{step} {position!r}")
    context.examples("test", [{"case": n, "distance": position} for n in range(3)])
    return {"distance": position}
"""
STUDY = """
name = "walk"
title = "A walk"
task = "walking:TASK"
seeds = 2

[[variation]]
key = "base"
seeds = 3

[[variation]]
key = "long"
set = {step_size = 2.0}
paper = {distance_test = 12.5}
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "walking.py").write_text(TASK)
    (folder / "drifting.py").write_text("def drift(size, seed):\n    return size * (1 + seed / 4)\n")
    (folder / "walk.toml").write_text(STUDY)
    return folder


@pytest.fixture(scope="module")
def finished(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the study and its store. All runs were finished from another working directory."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "walking.py").write_text(TASK)
    (folder / "drifting.py").write_text("def drift(size, seed):\n    return size * (1 + seed / 4)\n")
    (folder / "walk.toml").write_text(STUDY)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    cli("run", folder / "walk.toml", "--store", folder / "store", "--devices", "cpu:2", cwd=elsewhere)
    return folder


@pytest.fixture
def done(finished: Path, tmp_path: Path) -> Path:
    """Return a copy of the study and its store in another folder. Tests may change the copy."""
    shutil.copytree(finished, tmp_path / "moved")
    return tmp_path / "moved"


def expected(size: float, seeds: int) -> float:
    return sum(12 * size * (1 + seed / 4) for seed in range(1, seeds + 1)) / seeds


def attempts(store: Path) -> int:
    return len(list(store.glob("runs/*/attempts/*")))


def states(cli: Cli, folder: Path) -> list[str]:
    return [run["state"] for run in as_json(cli("plan", folder / "walk.toml", "--store", folder / "store", "--json"))]


def test_the_table(cli: Cli, finished: Path) -> None:
    rows = as_json(cli("report", finished / "walk.toml", "--store", finished / "store", "--json"))
    assert [(row["row"], row["distance_test"], row["n"]) for row in rows] == [
        ("base", pytest.approx(expected(1, 3)), 3), ("long", pytest.approx(expected(2, 2)), 2),
    ]  # fmt: skip
    assert rows[1]["paper"]["distance_test"] == 12.5 and rows[1]["settings"] == {"step_size": 2.0}
    for name in ("markdown", "latex", "csv"):
        assert "33.0" in cli("report", finished / "walk.toml", "--store", finished / "store", "--format", name).stdout \
            or name == "csv"  # fmt: skip


def test_a_moved_study_and_store_are_still_finished(cli: Cli, done: Path) -> None:
    assert set(states(cli, done)) == {"finished"}


def test_rows_and_seeds_are_added_without_redoing_anything(cli: Cli, done: Path) -> None:
    before = attempts(done / "store")
    study = done / "walk.toml"
    study.write_text(
        STUDY.replace("seeds = 3", "seeds = 4") + '\n[[variation]]\nkey = "wide"\nset = {step_size = 3.0}\n'
    )
    rows = as_json(cli("run", study, "--store", done / "store", "--json"))
    assert [row["n"] for row in rows] == [4, 2, 2]
    assert attempts(done / "store") == before + 3


@pytest.mark.parametrize("file", ["walking.py", "drifting.py"])
def test_an_edit_of_the_trainer_or_of_what_it_imports_makes_runs_stale(cli: Cli, done: Path, file: str) -> None:
    before = (done / file).read_text()
    (done / "unrelated.py").write_text("x = 1\n")
    assert set(states(cli, done)) == {"finished"}
    (done / file).write_text(before.replace("4", "5"))
    assert set(states(cli, done)) == {"stale"}
    (done / file).write_text(before)
    assert set(states(cli, done)) == {"finished"}


def test_another_column_is_printed_without_training_again(cli: Cli, done: Path) -> None:
    before = attempts(done / "store")
    (done / "walk.toml").write_text(STUDY + '\n[[metric]]\nname = "distance"\nhead = "miles"\ndigits = 0\n')
    assert "miles" in cli("run", done / "walk.toml", "--store", done / "store").stdout
    assert attempts(done / "store") == before


def test_killed_and_resumed_on_two_slots(cli: Cli, mine: Path, finished: Path) -> None:
    """The coordinator and its children are killed. The same command then finishes, and no run is trained twice."""
    store, study = mine / "store", mine / "walk.toml"
    study.write_text(STUDY.replace('task = "walking:TASK"', 'task = "walking:TASK"\nbase = {pause_s = 0.1}'))
    cli("queue", study, "--store", store)
    process = subprocess.Popen(
        command("work", "--store", store, "--devices", "cpu:2"), env=environment(), cwd="/", start_new_session=True
    )
    wait_for(lambda: len(started(store, "checkpoint")) >= 2)
    for pid in [process.pid, *(event["pid"] for event in started(store, "started"))]:
        os.kill(pid, signal.SIGKILL)
    process.wait()
    assert len(list(store.glob("runs/*/result.json"))) < 5
    rows = as_json(cli("run", study, "--store", store, "--devices", "cpu:2", "--json"))
    there = as_json(cli("report", finished / "walk.toml", "--store", finished / "store", "--json"))
    assert [row["distance_test"] for row in rows] == [row["distance_test"] for row in there]
    assert started(store, "resumed")
    assert len(started(store, "trained")) == 5


def started(store: Path, kind: str) -> list[dict[str, object]]:
    lines = [line for path in store.glob("runs/*/attempts/*/events.jsonl") for line in path.read_text().splitlines()]
    return [event for event in map(json.loads, lines) if event["kind"] == kind]


def wait_for(condition, patience_s: float = 300.0) -> None:
    until = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


# The tests below cover users' mistakes.


def refused(cli: Cli, mine: Path, verb: str = "run") -> str:
    done = cli(verb, mine / "walk.toml", "--store", mine / "store", code=2)
    assert "Traceback" not in done.stderr and not (mine / "store").exists()
    return done.stderr


def test_a_task_that_does_not_import_names_the_last_line_and_the_path(cli: Cli, mine: Path) -> None:
    (mine / "walk.toml").write_text(STUDY.replace("walking:TASK", "wlaking:TASK"))
    message = refused(cli, mine)
    assert "ModuleNotFoundError: No module named 'wlaking'" in message and str(mine) in message
    (mine / "walk.toml").write_text(STUDY)
    (mine / "walking.py").write_text("import json\n\nmissing_name\n")
    message = refused(cli, mine)
    assert "NameError: name 'missing_name' is not defined" in message and "walking.py, line 3" in message
    (mine / "walking.py").write_text("x = (1,\n")
    assert "SyntaxError" in refused(cli, mine)
    (mine / "walking.py").write_text("TASK = 3\n")
    assert "has no TASK that is a task" in refused(cli, mine)


def test_unknown_settings(cli: Cli, mine: Path) -> None:
    (mine / "walk.toml").write_text(STUDY.replace("step_size", "stepsize"))
    message = refused(cli, mine)
    assert "there is no setting stepsize" in message and "step_size" in message


RETURNED = """
    returns = {
        "misspelt": lambda: {"distanec": 1.0}, "nan": lambda: {"distance": float("nan")},
        "text": lambda: {"distance": "far"}, "nothing": lambda: None, "bug": lambda: 1 / 0,
    }
    return returns[settings.returned]()
"""


def test_what_a_trainer_returns(cli: Cli, mine: Path) -> None:
    """If a metric is missing, NaN or text, or the function fails, the run fails with the reason and leaves a gap."""
    text = TASK.replace('    return {"distance": position}\n', RETURNED)
    (mine / "walking.py").write_text(
        text.replace("pause_s: float = 0.0", 'returned: str = "bug"\n    pause_s: float = 0.0')
    )
    names = ["misspelt", "nan", "text", "nothing"]
    rows = "".join(f'[[variation]]\nkey = "{name}"\nset = {{returned = "{name}"}}\n' for name in names)
    (mine / "walk.toml").write_text(
        f'name = "w"\ntitle = "W"\ntask = "walking:TASK"\n[[variation]]\nkey = "bug"\n{rows}'
    )
    done = cli("run", mine / "walk.toml", "--store", mine / "store", "--devices", "cpu:2", code=1)
    assert done.stdout.count("– (failed)") == 4 and done.stdout.count("– (diverged)") == 1
    failed = as_json(cli("status", "--store", mine / "store", "--json"))
    errors = {run["members"][0]["row"]: run["error"] for run in failed}
    words = {
        "misspelt": ["did not return distance", "distanec"],
        "nan": ["distance = NaN", "test"],
        "text": ["distance = 'far'", "expected a number"],
        "nothing": ["returned nothing", "a mapping of metrics"],
        "bug": ["division by zero", "walking.py"],
    }
    for row, wanted in words.items():
        assert all(word in errors[row] for word in wanted), errors[row]


def test_files_called_like_our_packages_and_like_pythons_modules(cli: Cli, mine: Path) -> None:
    """The trainer imports its own `model` and `reports`. `queue.py` and `random.py` do not replace Python's modules."""
    (mine / "model.py").write_text("SIZE = 3.0\n")
    (mine / "reports").mkdir()
    (mine / "reports" / "__init__.py").write_text("from .inner import OFFSET\n")
    (mine / "reports" / "inner.py").write_text("OFFSET = 0.5\n")
    (mine / "experiments").mkdir()
    (mine / "experiments" / "notes.txt").write_text("not a package\n")
    for name in ("queue", "random", "json"):
        (mine / f"{name}.py").write_text(f"raise SystemExit('{name}.py was imported')\n")
    text = "import queue, random, json\nfrom model import SIZE\nfrom reports import OFFSET\n" + TASK
    text = text.replace('return {"distance": position}', 'return {"distance": SIZE + OFFSET}')
    (mine / "walking.py").write_text(text)
    store = mine / "store"
    argv = command("run", mine / "walk.toml", "--rows", "base", "--seeds", "1", "--store", store, "--json")
    argv.insert(1, "-P")
    done = subprocess.run(argv, cwd=mine, env=environment(), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert [row["distance_test"] for row in json.loads(done.stdout)] == [3.5]
    (mine / "model.py").write_text("SIZE = 4.0\n")
    assert set(states(cli, mine)) == {"stale", "missing"}  # model.py is part of the trainer's code
