"""`ablations tune` gives rows equal budgets, keeps trials after a kill, and names the tuned settings in its table."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from experiments.jobs.queue.queue import Queue
from experiments.store.checksummed import read_json

from .conftest import Cli, as_json, command, environment

pytestmark = pytest.mark.slow

TASK = """
import math, time
from dataclasses import dataclass
from ablations_task import column, task

@dataclass
class Settings:
    kind: str = "plain"
    rate: float = 10.0
    width: int = 2
    pause_s: float = 0.0

COLUMNS = [column("loss", set="dev", better="lower"), column("loss", better="lower")]

@task(Settings, columns=COLUMNS)
def TASK(settings, context):
    best = {"plain": 0.1, "wide": 0.01, "broken": 1.0}[settings.kind]
    loss = abs(math.log10(settings.rate / best)) + abs(settings.width - 3) / 10
    for step in range(1, 6):
        time.sleep(settings.pause_s)
        context.log(step, dev_loss=loss + 1 / step)
    if settings.kind == "broken" and settings.rate > 1:
        raise ValueError("this kind cannot do that")
    if settings.width == 9:
        loss = float("nan")
    return {"dev": {"loss": loss}, "test": {"loss": loss + context.seed / 1000}}
"""
STUDY = """
name = "tuned"
title = "Tuned"
task = "quadratic:TASK"
seeds = 2

[tune]
trials = 8
metric = "loss"

[tune.range]
rate = {low = 0.001, high = 10.0, log = true}
width = {low = 1, high = 6}

[[variation]]
key = "base"

[[variation]]
key = "wide"
set = {kind = "wide"}

[[variation]]
key = "narrow"
set = {width = 1}
"""


def write(folder: Path, study: str = STUDY) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "quadratic.py").write_text(TASK)
    (folder / "tuned.toml").write_text(study)
    return folder / "tuned.toml"


def trials(store: Path) -> list[dict[str, object]]:
    """Return the trials of every row, in an order that does not depend on when they ran."""
    found = [json.loads(path.read_text()) for path in sorted((store / "tuning").glob("*.json"))]
    return [{k: v for k, v in trial.items() if k != "curve"} for row in found for trial in row["trials"]]


def trained(store: Path) -> int:
    lines = [line for path in store.glob("runs/*/attempts/*/events.jsonl") for line in path.read_text().splitlines()]
    return sum(json.loads(line)["kind"] == "trained" for line in lines)


@pytest.fixture(scope="module")
def tuned(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuned")
    cli("tune", write(folder), "--store", folder / "store", "--devices", "cpu:2")
    return folder


def test_every_row_has_its_budget_and_prints_its_best(cli: Cli, tuned: Path) -> None:
    found = trials(tuned / "store")
    assert len(found) == 24 and {trial["state"] for trial in found} == {"complete"}
    done = cli("tune", tuned / "tuned.toml", "--store", tuned / "store", "--json")
    rows = {row["row"]: row for row in as_json(done)}
    best = min(trial["value"] for trial in found)
    assert min(row["loss_dev"] for row in rows.values()) == pytest.approx(best)
    assert all(row["n"] == 2 for row in rows.values())
    assert "width" not in rows["narrow"]["settings"] or rows["narrow"]["settings"]["width"] == 1
    text = cli("tune", tuned / "tuned.toml", "--store", tuned / "store").stdout
    assert "each row had 8 trials" in text and "loss on dev" in text and "best of 8 trials" in text
    assert "rate 0.001–10 (log)" in text
    # The best trial is the row's first seed. Trials of two rows with the same settings are one run.
    runs = len(list((tuned / "store").glob("runs/*")))
    counted = {key: (row["cost"]["runs"], row["cost"]["tuning"]["runs"]) for key, row in rows.items()}
    assert sum(own + tuning for own, tuning in counted.values()) == runs
    assert all(own == 2 and 0 < tuning <= 7 for own, tuning in counted.values())
    assert f"Cost: {runs} runs in {runs} attempts" in text and f"Of this, tuning: {runs - 6} runs in " in text


def test_asked_again_it_only_prints(cli: Cli, tuned: Path) -> None:
    before, work = trials(tuned / "store"), trained(tuned / "store")
    done = cli("tune", tuned / "tuned.toml", "--store", tuned / "store", "--format", "latex")
    assert "nothing to train" in done.stderr and r"\begin{tabular}" in done.stdout
    assert trials(tuned / "store") == before and trained(tuned / "store") == work


@pytest.mark.nightly
def test_a_larger_budget_goes_on(cli: Cli, tuned: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tuned, copy)
    cli("tune", copy / "tuned.toml", "--store", copy / "store", "--trials", "9", "--rows", "base,wide")
    assert len(trials(copy / "store")) == 26
    kept = {json.dumps(trial, sort_keys=True) for trial in trials(tuned / "store")}
    assert kept <= {json.dumps(trial, sort_keys=True) for trial in trials(copy / "store")}


@pytest.mark.nightly
@pytest.mark.slow
def test_killed_and_resumed_no_trial_is_lost_or_doubled(cli: Cli, tuned: Path, tmp_path: Path) -> None:
    """If the tuner and its children are killed twice, the trials equal those of an undisturbed tuning."""
    folder = tmp_path / "killed"
    study = write(folder)
    (folder / "quadratic.py").write_text(TASK.replace("time.sleep(settings.pause_s)", "time.sleep(0.05)"))
    store = folder / "store"
    for number in (3, 8):
        process = subprocess.Popen(
            command("tune", study, "--store", store, "--devices", "cpu:2"), env=environment(), start_new_session=True
        )
        wait_for(lambda number=number: trained(store) >= number)
        for pid in [process.pid, *children(store)]:
            kill(pid)
        process.wait()
    cli("tune", study, "--store", store, "--devices", "cpu:2")
    assert trials(store) == trials(tuned / "store")
    results = len(list(store.glob("runs/*/result.json")))
    assert results == len(list((tuned / "store").glob("runs/*/result.json")))
    # A process killed between a result and its event leaves one event fewer. Two commands had two slots each.
    assert results - 4 <= trained(store) <= results


def children(store: Path) -> list[int]:
    lines = [line for path in store.glob("runs/*/attempts/*/events.jsonl") for line in path.read_text().splitlines()]
    return [event["pid"] for event in map(json.loads, lines) if event["kind"] == "started"]


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def wait_for(condition, patience_s: float = 300.0) -> None:
    until = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_diverged_trial_counts_and_a_bug_stops_its_row(cli: Cli, tmp_path: Path) -> None:
    """NaN counts as a trial's result. An exception does not, and the next call tries the trial again."""
    study = STUDY.replace("high = 6", "high = 9").replace("trials = 8", "trials = 6").replace("seeds = 2", "seeds = 1")
    study += '\n[[variation]]\nkey = "broken"\nset = {kind = "broken"}\n'
    path = write(tmp_path / "s", study)
    path.write_text(study.replace("width = {low = 1, high = 9}", "width = [3, 9]"))
    done = cli("tune", path, "--store", tmp_path / "store", "--devices", "cpu:2", code=1)
    assert "broken: tuning stopped" in done.stderr and "cannot do that" in done.stderr
    states = [trial["state"] for trial in trials(tmp_path / "store")]
    assert states.count("running") == 1  # broken's, to be tried again
    assert "failed" in states  # width 9
    (tmp_path / "s" / "quadratic.py").write_text(TASK.replace('    if settings.kind == "broken"', "    if False"))
    text = cli("tune", path, "--store", tmp_path / "store", "--devices", "cpu:2").stdout
    assert "failed" in text
    assert not [trial for trial in trials(tmp_path / "store") if trial["state"] == "running"]


TINY_TUNE = """
[tune]
trials = 5
metric = "perplexity"

[tune.range]
training.learning_rate_scale = {low = 0.1, high = 2.0, log = true}
model.dropout = [0.0, 0.1, 0.3]
"""


@pytest.mark.nightly
def test_rows_of_the_transformer_tuned_killed_and_resumed(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    """After a kill of the tuner and its children, every one of 3 × 5 trials is trained once, with equal budgets."""
    study, store = tmp_path / "tiny.toml", tmp_path / "store"
    third = '[[variation]]\nkey = "wide"\nset = {model.d_ff = 32}\n'
    study.write_text(tiny.read_text().partition('[[variation]]\nkey = "untrained"')[0] + third + TINY_TUNE)
    options = (study, "--store", store, "--devices", "cpu:2")
    process = subprocess.Popen(command("tune", *options), env=environment(), start_new_session=True)
    wait_for(lambda: trained(store) >= 5)
    for pid in [process.pid, *children(store)]:
        kill(pid)
    process.wait()
    begun = [trial["params"] for trial in trials(store)]
    assert len(begun) < 15
    text = cli("tune", *options).stdout
    found = trials(store)
    assert len(found) == 15 and {trial["state"] for trial in found} == {"complete"}
    assert all(params in [trial["params"] for trial in found] for params in begun)
    assert trained(store) == len(list(store.glob("runs/*/result.json")))
    assert "each row had 5 trials" in text and text.count("best of 5 trials") == 3


@pytest.mark.nightly
def test_a_row_is_tuned_with_its_own_settings_beside_a_group_of_the_same_name(cli: Cli, tmp_path: Path) -> None:
    """A group and a row are called `wide`. Trials of the row `wide` use the row's settings, not the group's."""
    other = STUDY.split("[[variation]]")[0].replace("trials = 8", "trials = 2").replace("seeds = 2", "seeds = 1")
    rows = """
[[variation]]
key = "base"

[[variation]]
key = "narrow"
group = "wide"
set = {width = 1}

[[variation]]
key = "wide"
set = {kind = "wide"}
"""
    study = write(tmp_path / "study", other + rows)
    where = ("--store", tmp_path / "store", "--devices", "cpu:2")
    cli("tune", study, *where)
    with Queue(tmp_path / "store" / "queue.db") as queue:
        listed = queue.status()
    configs = {row.run_id: read_json(tmp_path / "store/runs" / row.run_id / "config.json")["config"] for row in listed}
    kinds = {(member.row.partition(".")[0], configs[row.run_id]["kind"]) for row in listed for member in row.members}
    assert kinds == {("base", "plain"), ("narrow", "plain"), ("wide", "wide")}
