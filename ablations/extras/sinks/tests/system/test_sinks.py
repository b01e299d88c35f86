"""`--sink tensorboard|wandb`: curves and scores with the real packages; a sink that fails or hangs harms no run."""

import importlib.util
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.jobs.coordinator.background import Background
from experiments.jobs.coordinator.work import work
from experiments.jobs.devices.slots import parse_slots
from experiments.jobs.engines.local import LIGHT, LocalEngine
from experiments.store.layout import Store
from experiments.tasks.load import task_of
from experiments.tracking.sinks import sink as sinks
from experiments.tracking.sinks.sink import SinkError, SinkProcess, folder_of
from tests.system.conftest import Cli

STUDY = """
name = "walk"
title = "A walk"
command = "python3 walk.py {lr} {seed} {metrics}"
seeds = 2

[base]
lr = 0.5

[[metric]]
name = "loss"
better = "lower"

[[variation]]
key = "base"
"""
WALK = """
import json, pathlib, sys
lr, seed, out = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
for step in range(4): print(json.dumps({"step": step, "error": lr * seed / (step + 1)}))
pathlib.Path(out).write_text(json.dumps({"loss": lr * seed}))
"""


@pytest.fixture
def walk(tmp_path: Path) -> Path:
    (tmp_path / "walk.toml").write_text(STUDY, encoding="utf-8")
    (tmp_path / "walk.py").write_text(WALK, encoding="utf-8")
    return tmp_path


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard reads in a run's folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    found = EventAccumulator(str(folder))
    found.Reload()
    return {
        name: [(event.step, float(make_ndarray(event.tensor_proto))) for event in found.Tensors(name)]
        for name in found.Tags()["tensors"]
    }


@pytest.mark.tensorboard
def test_tensorboard_shows_curves_and_scores_and_can_be_rebuilt(walk: Path, cli: Cli) -> None:
    pytest.importorskip("tensorboard")
    store = walk / "runs"
    cli("run", walk / "walk.toml", "--store", store, "--devices", "cpu:2", "--sink", "tensorboard")
    home = folder_of(Store(store), "tensorboard")
    runs = sorted((home / "walk" / "base").iterdir())
    assert [run.name[:7] for run in runs] == ["seed-1-", "seed-2-"]
    shown = scalars(runs[1])
    assert shown["train_error"] == [(step, pytest.approx(1.0 / (step + 1))) for step in range(4)]
    assert [value for _, value in shown["final/loss.test"]] == [1.0]
    before = [scalars(run) for run in runs]
    for file in home.rglob("events.*"):
        file.unlink()
    cli("ui", "--rebuild", "tensorboard", "--store", store)
    assert [scalars(run) for run in sorted((home / "walk" / "base").iterdir())] == before
    cli("ui", "--rebuild", "tensorboard", "--store", store)  # again: nothing twice
    assert [scalars(run) for run in sorted((home / "walk" / "base").iterdir())] == before


def records(log: bytes) -> Iterator[bytes]:
    """Of a .wandb file: LevelDB's log format after 7 bytes, in blocks of 32 KiB; a long record is in several parts."""
    at, whole = 7, b""
    while at + 7 <= len(log):
        length, kind = int.from_bytes(log[at + 4 : at + 6], "little"), log[at + 6]
        if 32768 - at % 32768 < 7 or not kind:  # the rest of a block is empty
            at += 32768 - at % 32768
            continue
        whole, at = whole + log[at + 7 : at + 7 + length], at + 7 + length
        if kind in (1, 4):
            yield whole
            whole = b""


@pytest.mark.wandb
def test_wandb_has_whole_runs_offline(walk: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.delenv("WANDB_MODE", raising=False)
    store = walk / "runs"
    cli("run", walk / "walk.toml", "--store", store, "--devices", "cpu:2", "--sink", "wandb")
    cli("ui", "--rebuild", "wandb", "--store", store)
    files = list(folder_of(Store(store), "wandb").glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == 2 and wandb is not None  # written again, a run takes the place of its former files
    names, errors, scores = set(), set(), set()
    for file in files:
        for data in records(file.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            if record.HasField("run"):
                names.add((record.run.project, record.run.run_group, record.run.display_name))
            for item in record.history.item:
                if "train_error" in (item.key, *item.nested_key):
                    errors.add(json.loads(item.value_json))
            for item in record.summary.update:
                if "loss.test" in (item.key, *item.nested_key):
                    scores.add(json.loads(item.value_json))
    assert names == {("walk", "base", "base-seed1"), ("walk", "base", "base-seed2")}
    assert errors == {seed * 0.5 / (step + 1) for seed in (1, 2) for step in range(4)}
    assert scores == {0.5, 1.0}


@pytest.mark.parametrize("name", ["tensorbord", "wandb"])
def test_a_sink_that_cannot_be_used_is_refused_before_anything_starts(walk: Path, cli: Cli, name: str) -> None:
    if importlib.util.find_spec(name) is not None:
        pytest.skip("wandb is installed")
    done = cli("run", walk / "walk.toml", "--store", walk / "runs", "--sink", name, code=2)
    assert f"--sink {name}" in done.stderr and not (walk / "runs").exists()


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("raise SystemExit(3)", "has ended"),
        ("import sys; sys.stdin.readline(); import os; os.kill(os.getpid(), 9)", "has ended"),
        ("import time; time.sleep(600)", "did not answer within 1 s"),
        ('import sys\nfor line in sys.stdin: print(\'{"error": "OSError: full"}\', flush=True)', "OSError: full"),
    ],
    ids=["ends", "crashes", "hangs", "fails"],
)
def test_a_bad_sink_harms_no_run(
    walk: Path, cli: Cli, program: str, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The real process is replaced by one that misbehaves; everything around it is as it runs."""
    cli("queue", walk / "walk.toml", "--store", walk / "runs")
    store = Store.open(walk / "runs")

    class Bad(SinkProcess):
        def __init__(self) -> None:
            with monkeypatch.context() as patched:
                patched.setattr(sinks, "SERVE", ["-c", program])
                super().__init__(store, "tensorboard", patience_s=1)

    begun = time.monotonic()
    background = Background(Bad, interval_s=0.2, patience_s=0, name="tensorboard", rebuild="ablations ui --rebuild x")
    summary = work(store, parse_slots("cpu:1"), task_of, engine=LocalEngine(LIGHT), sinks=[background])
    assert (summary.finished, summary.failed) == (2, 0) and time.monotonic() - begun < 500
    assert "tensorboard could not be written; the runs continue" in caplog.text and said in caplog.text
    printed = json.loads(cli("report", walk / "walk.toml", "--store", walk / "runs", "--json").stdout)
    assert printed[0]["loss_test"] == 0.75


def test_the_error_of_a_package_is_told(walk: Path, cli: Cli) -> None:
    cli("queue", walk / "walk.toml", "--store", walk / "runs")
    store = Store.open(walk / "runs")
    work(store, parse_slots("cpu:1"), task_of, engine=LocalEngine(LIGHT))
    from experiments.tracking.rebuild import tracked_runs

    process = SinkProcess(store, "tensorboard")
    (folder_of(store, "tensorboard") / "walk").write_text("a file where a folder should be", encoding="utf-8")
    expected = "Error" if importlib.util.find_spec("tensorboard") else "No module named 'tensorboard'"
    with pytest.raises(SinkError, match=expected):
        process.sync(next(iter(tracked_runs(store))))
    process.close()
