"""Failures of real trainings on the command line: the message is clear, and the work continues afterwards."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from experiments.store.layout import Store

from .conftest import Cli, command, environment

pytestmark = pytest.mark.slow
LONG = ["--rows", "base", "--set", "training.train_steps=400"]


def start(*arguments: str | Path) -> subprocess.Popen[bytes]:
    nowhere = subprocess.DEVNULL
    return subprocess.Popen(command(*arguments), env=environment(), stderr=nowhere, stdout=nowhere)


def checkpoints(store: Path) -> list[Path]:
    return sorted(store.glob("runs/*/attempts/*/checkpoints/step-*"))


def wait_for_checkpoints(store: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 120
    while len({path.name for path in checkpoints(store)}) < count:
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.02)


def test_a_loss_that_is_not_a_number_fails_with_step_and_value(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    wild = ["--rows", "base,untrained", "--set", "training.learning_rate_scale=1e30"]
    done = cli("run", tiny, *wild, "--store", tmp_path / "store", "--devices", "cpu:1", code=1)
    assert "1 failed" in done.stderr and "– (diverged)" in done.stdout
    assert "weight or result of the training was not finite" in done.stdout
    status = cli("status", "--store", tmp_path / "store").stdout
    assert "diverged" in status and "step" in status and "nan" in status.lower()


def test_a_damaged_last_checkpoint_is_passed_over_and_said(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    process = start("run", tiny, *LONG, "--store", store, "--devices", "cpu:1")
    wait_for_checkpoints(store, 2, process)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    *_, before, last = checkpoints(store)
    weights = last / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    cli("run", tiny, *LONG, "--store", store, "--devices", "cpu:1")
    log = cli("log", "base", "--store", store).stdout
    assert (
        f"skipped the checkpoint 0001/checkpoints/{last.name}: model.safetensors has changed since it was written"
    ) in log
    assert f"resumed at step {int(before.name[5:])}" in log


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """Mount a small disk."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    yield place
    subprocess.run(["mount", "-o", "remount,rw", place], check=False)
    subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.parametrize("what", ["store", pytest.param("state", marks=pytest.mark.nightly)])
def test_a_full_disk_stops_the_work_and_the_same_command_goes_on(
    cli: Cli, tiny: Path, tmp_path: Path, mounted: Path, what: str
) -> None:
    """Either the disk with checkpoints, events and logs is full, or the disk with the queue and MLflow."""
    places = {"store": tmp_path / "store", "state": tmp_path / "state", what: mounted / what}
    where = ["--store", places["store"], "--state-dir", places["state"]]
    cli("queue", tiny, *LONG, *where)
    process = start("work", *where, "--devices", "cpu:1")
    wait_for_checkpoints(places["store"], 2, process)
    ballast = mounted / "ballast"
    fill(ballast)
    code = process.wait(120)
    if what == "store":
        assert code == 2
        failed = [row["state"] for row in json.loads(cli("status", *where, "--json").stdout)]
        assert failed == ["waiting"]
    else:
        assert code in (0, 2)
    ballast.unlink()
    cli("work", *where, "--devices", "cpu:1")
    cli("report", tiny, *LONG, *where, "--strict")
    cli("ui", "--rebuild", "mlflow", *where)


def fill(path: Path) -> None:
    """Fill the disk to the last byte."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


def test_a_store_on_a_read_only_disk_can_be_read_and_says_so_when_written(cli: Cli, tiny: Path, mounted: Path) -> None:
    store = mounted / "store"
    cli("run", tiny, "--rows", "base", "--store", store, "--devices", "cpu:1")
    table = cli("report", tiny, "--rows", "base", "--store", store).stdout
    subprocess.run(["mount", "-o", "remount,ro", mounted], check=True)
    assert cli("report", tiny, "--rows", "base", "--store", store).stdout == table
    assert "1 finished" in cli("status", "--store", store).stdout
    assert "finished" in cli("plan", tiny, "--rows", "base", "--store", store).stdout
    for verb in (["run", tiny], ["retry", "base"], ["forget", "--checkpoints", "--yes"], ["ui", "--rebuild", "mlflow"]):
        done = cli(*verb, "--store", store, code=2)
        assert "read-only" in done.stderr and "Traceback" not in done.stderr


def test_mlflow_that_cannot_be_written_costs_no_run(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    cli("queue", tiny, "--rows", "base", "--store", store)
    (store / "mlflow.db").mkdir()
    cli("work", "--store", store, "--devices", "cpu:1")
    cli("report", tiny, "--rows", "base", "--store", store, "--strict")
    (store / "mlflow.db").rmdir()
    assert ": 1 run\n" in cli("ui", "--rebuild", "mlflow", "--store", store).stdout
    for path in store.glob("queue.db*"):  # the events also contain the table's name
        path.unlink()
    assert ": 1 run\n" in cli("ui", "--rebuild", "mlflow", "--store", store).stdout
    client = MlflowClient(f"sqlite:///{store / 'mlflow.db'}")
    runs = client.search_runs([one.experiment_id for one in client.search_experiments()])
    tags = {key: value for run in runs for key, value in run.data.tags.items()}
    assert (tags["row"], tags["study"]) == ("base", "tiny")
    assert {run.info.status for run in runs} == {"FINISHED"}


def test_a_budget_is_refused_before_anything_starts(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    options = ["--rows", "base", "--store", store, "--devices", "cpu:1"]
    long = ["--set", "training.train_steps=100000000"]
    done = cli("run", tiny, *options, *long, "--max-hours", "0.5", code=2)
    assert "--max-hours" in done.stderr and "Nothing was started" in done.stderr
    assert not list(store.glob("runs/*")) and not (store / "queue.db").exists()
    planned = json.loads(cli("plan", tiny, *options, *long, "--json").stdout)  # the measured speed is kept
    assert planned[0]["seconds"] > 1800
    assert "about" in cli("run", tiny, *options, "--max-hours", "0.5").stderr


def test_the_plan_predicts_memory_and_disk_and_after_a_measurement_time(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    options = [tiny, "--store", tmp_path / "store", "--devices", "cpu:2"]
    before = cli("plan", *options).stdout
    assert "memory: up to" in before and "--measure" in before and not (tmp_path / "store").exists()
    after = cli("plan", *options, "--measure").stdout
    assert "on cpu:2, without evaluation" in after
    runs = json.loads(cli("plan", *options, "--json").stdout)
    assert all(run["memory_bytes"] > 1e8 and run["disk_bytes"] > 0 for run in runs)
    assert [run["seconds"] is None for run in runs] == [False] * 3
    assert runs[0]["seconds"] > 0 == runs[2]["seconds"], "no step, no time"


@pytest.mark.nightly
def test_memory_is_held_as_the_plan_predicts(cli: Cli, tiny: Path, finished: Path, tmp_path: Path) -> None:
    planned = json.loads(cli("plan", tiny, "--store", tmp_path / "new", "--devices", "cpu:2", "--json").stdout)
    for run in planned:
        result = Store.open(finished).result(run["run_id"])
        assert result is not None and result.precision == "fp32"
        assert run["memory_bytes"] == pytest.approx(result.peak_memory_bytes, rel=0.25)


def test_a_second_coordinator_is_refused_and_the_first_goes_on(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    process = start("run", tiny, *LONG, "--store", store, "--devices", "cpu:1")
    wait_for_checkpoints(store, 1, process)
    done = cli("work", "--store", store, "--devices", "cpu:1", code=2)
    assert f"process {process.pid}" in done.stderr and "Traceback" not in done.stderr
    assert process.wait(240) == 0
    cli("report", tiny, *LONG, "--store", store, "--strict")
