"""A study whose seeds follow a rule, with a trainer that returns at once: run, interrupted, reported, bundled."""

import json
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from experiments.errors import UserError
from reports.audit.bundle_read import read_bundle
from reports.audit.statement import read_statement
from reports.results.rule import ALIKE, DIFFERS, Rule, decide, seeds_asked
from tests.chaos import FIVE_KILLS, table

from .conftest import Cli, as_json, command, environment
from .test_crates import contents

pytestmark = pytest.mark.slow
TASK = """
import time
from dataclasses import dataclass
import numpy as np
from ablations_task import column, task

@dataclass
class Settings:
    effect: float = 0.0
    steps: int = 1

@task(Settings, steps="steps", columns=[column("score", digits=3), column("loss", better="lower")])
def TASK(settings, context):
    rng = np.random.default_rng([context.seed, round(settings.effect * 1000)])
    time.sleep(0.05)
    score = float(rng.normal(50 + settings.effect, 1))
    return {"score": score, "loss": -score}
"""
SLOW = """
    done = int((context.resume / "step").read_text()) if context.resume else 0
    for step in range(done, settings.steps):
        time.sleep(0.02)
        context.log(step + 1, loss=1.0)
        if step % 5 == 4:
            with context.checkpoint(step + 1) as folder:
                (folder / "step").write_text(str(step + 1))
"""
STUDY = """
name = "ruled"
title = "Seeds by a rule"
task = "scores:TASK"
seeds = {start = 3, max = 8, stop = {difference = 2.0}}

[[variation]]
key = "base"
[[variation]]
key = "same"
set = {effect = 0.001}
[[variation]]
key = "near"
set = {effect = 1.2}
[[variation]]
key = "far"
set = {effect = 9.0}
"""
EFFECTS = {"base": 0.0, "same": 0.001, "near": 1.2, "far": 9.0}


@pytest.fixture(scope="module")
def ruled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ruled")
    (folder / "scores.py").write_text(TASK)
    (folder / "ruled.toml").write_text(STUDY)
    return folder


def values(key: str, seeds: int) -> list[float]:
    return [
        float(np.random.default_rng([seed, round(EFFECTS[key] * 1000)]).normal(50 + EFFECTS[key], 1))
        for seed in range(1, seeds + 1)
    ]


def test_the_rule_is_followed_through_an_interruption_and_printed(cli: Cli, ruled: Path, tmp_path: Path) -> None:
    study, store = ruled / "ruled.toml", tmp_path / "store"
    going = subprocess.Popen(
        command("run", study, "--store", store, "--devices", "cpu:1x1"), env=environment(), stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert going.stderr is not None
    for line in going.stderr:
        if "finished" in line or "running" in line:
            going.send_signal(signal.SIGINT)
            break
    going.communicate(timeout=120)
    assert going.returncode in (0, 130)
    cli("run", study, "--store", store, "--devices", "cpu:2x1")

    rows = {key: values(key, 8) for key in EFFECTS if key != "base"}
    found = decide(values("base", 8), rows, Rule(3, 8, 0.05, 0.8, 2.0))
    most, of_rows = seeds_asked(found)
    table = {row["row"]: row for row in as_json(cli("report", study, "--store", store, "--json"))}
    assert {key: row["n"] for key, row in table.items()} == {"base": most, **of_rows}
    assert len(list(store.glob("runs/*/result.json"))) == most + sum(of_rows.values())
    assert table["far"]["score_test_marked"] is True and found["far"].verdict == DIFFERS
    assert table["same"]["score_test_marked"] is False and found["same"].verdict == ALIKE
    assert table["far"]["score_test_p"] is None and table["far"]["loss_test_marked"] is None

    for key, decision in found.items():  # what a decision cost are the seeds that it was made from
        spent = table[key]["decision"]
        assert spent["seeds"] == decision.seeds and spent["base"] == "base"
        assert spent["row_cost"]["runs"] == spent["base_cost"]["runs"] == decision.seeds
    assert sum(row["cost"]["runs"] for row in table.values()) == most + sum(of_rows.values())
    assert "decided by" in cli("report", study, "--store", store, "--format", "setup").stdout

    printed = cli("report", study, "--store", store, "--notes", "full").stdout
    assert "Seeds by a rule fixed in advance, on score" in printed
    assert f"differs (\\*): far ({found['far'].seeds})" in printed
    assert "Not tested, as the seeds were chosen by score" in printed
    assert f"The rule has spent {most + sum(of_rows.values())} runs; 8 seeds of every row are 32." in printed
    again = cli("run", study, "--store", store)
    assert "all done, nothing to train" in again.stderr and again.stdout == printed

    assert "fixed in advance" not in cli("report", study, "--store", store, "--seeds", "3").stdout

    bundle = tmp_path / "ruled.tar.gz"
    cli("bundle", study, "--store", store, "--out", bundle)
    assert cli("report", bundle, cwd=tmp_path).stdout.partition("\n\n")[2] == printed
    assert json.loads(cli("plan", study, "--store", store, "--json").stdout)

    crate = tmp_path / "ruled.zip"
    said = cli("bundle", study, "--store", store, "--crate", "--out", crate).stdout
    seeds = ", ".join(f"{row} {n}" for row, n in {"base": most, **of_rows}.items())
    words = f"Chosen on test: the number of seeds of each row ({seeds}), by a rule fixed in advance on score"
    files = contents(crate)
    assert words in said and words in json.dumps(json.loads(files["ro-crate-metadata.json"]), ensure_ascii=False)
    assert cli("report", crate, cwd=tmp_path).stdout.partition("\n\n")[2] == printed
    stated = json.loads(files["statement.json"])
    stated["runs"].pop()
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="other runs than those of its plan"):
        read_statement(stated, read_bundle(crate, tmp_path / "empty").plan)


def test_killed_at_random_the_rule_spends_the_same_seeds(cli: Cli, tmp_path: Path) -> None:
    """The table is the same byte for byte after kills of its trainers and of the command, as in tests/chaos.py."""
    slow = TASK.replace("time.sleep(0.05)", SLOW).replace("steps: int = 1", "steps: int = 40")
    (tmp_path / "scores.py").write_text(slow)
    (tmp_path / "ruled.toml").write_text(STUDY)
    study = str(tmp_path / "ruled.toml")
    pause_s = (0.2, 1.2)
    done = table(tmp_path, 5, FIVE_KILLS, study, options=[], pause_s=pause_s, verb="run", call=cli)
    rows = {key: values(key, 8) for key in EFFECTS if key != "base"}
    most, of_rows = seeds_asked(decide(values("base", 8), rows, Rule(3, 8, 0.05, 0.8, 2.0)))
    assert done["rows"] == most + sum(of_rows.values())


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("{start = 3, stop = {difference = 1.0}}", "max"),
        ("{start = 3, max = 2, stop = {difference = 1.0}}", "max = 2 is less than start = 3"),
        ("{start = 3, max = 9, stop = {difference = 1.0, alpha = 1.5}}", "alpha"),
        ("{start = 3, max = 9, stop = {difference = 1.0, power = 0}}", "power"),
        ("{start = 3, max = 9, stop = {difference = 0}}", "difference"),
        ("{start = 3, max = 9}", "stop"),
        ('{start = 3, max = 9, stop = {difference = 1.0, metric = "scor"}}', "score_test"),
    ],
)
def test_a_rule_that_cannot_be_followed(cli: Cli, ruled: Path, tmp_path: Path, rule: str, words: str) -> None:
    (tmp_path / "scores.py").write_text(TASK)
    lines = STUDY.splitlines()
    wrong = "\n".join(f"seeds = {rule}" if line.startswith("seeds") else line for line in lines)
    (tmp_path / "wrong.toml").write_text(wrong)
    done = cli("plan", tmp_path / "wrong.toml", "--store", tmp_path / "store", code=2)
    assert words in done.stderr and "Traceback" not in done.stderr and done.stderr.count("\n") <= 3
    assert not (tmp_path / "store").exists()
