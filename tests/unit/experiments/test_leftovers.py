"""Only files that killed processes left behind are removed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.jobs.coordinator.work import sweep
from experiments.store import locks
from experiments.store.checksummed import write_json
from experiments.store.durable import folder_beside, whole_file
from experiments.store.layout import Store
from experiments.tracking.artifacts import artifacts

RUN, OTHER = "a" * 16, "b" * 16
KILLED = """
import os, signal, sys
from pathlib import Path
from experiments.store.durable import folder_beside, whole_file, whole_folder

root, run = map(Path, sys.argv[1:])
homes = [(root, ".mlflow-"), (root, ".queue.db."), (root, ".probe-"), (run / "evaluations", ".taking-")]
attempt = run / "attempts" / "0001"
places = [root, root / "tuning", root / "corpora", run, attempt, run / "evaluations" / ("e" * 16)]
places += [attempt / "evaluations" / ("e" * 16), attempt / "final"]
homes.append((attempt / "checkpoints", ".step-00000001.", ".partial"))
(attempt / "checkpoints" / ".step-00000001.partial").mkdir()  # it was being discarded
begun = [folder_beside(*home) for home in homes] + [whole_file(place / "result.json") for place in places]
begun += [whole_folder(place) for place in (run / "evaluations" / ("f" * 16), run / "attempts" / "0002")]
begun.append(whole_folder(root / "runs" / ("c" * 16)))
for one in begun:
    one.__enter__()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.open(tmp_path / "store")
    (store.root / "tuning").mkdir()
    for run_id in (RUN, OTHER):
        _, attempt = store.new_attempt(run_id)
        for inside in ("checkpoints", "final", f"evaluations/{'e' * 16}"):
            (attempt / inside).mkdir(parents=True)
        store.evaluation_folder(run_id, "e" * 16).mkdir(parents=True)
        write_json(store.run_folder(run_id) / "result.json", {"attempt": 1})
    return store


def leave(store: Store, run_id: str) -> set[Path]:
    """Create the files that a process leaves if it is killed while it writes."""
    before = set(store.root.rglob("*"))
    process = subprocess.run([sys.executable, "-c", KILLED, store.root, store.run_folder(run_id)])
    assert process.returncode == -signal.SIGKILL
    left = set(store.root.rglob("*")) - before
    for path in left:  # a file system's clock may tick too seldom to tell them from what comes next
        os.utime(path, (path.stat().st_mtime - 1,) * 2)
    return left


@pytest.mark.process
def test_what_a_killed_process_left_is_swept_by_the_next_coordinator(store: Store) -> None:
    files = set(store.root.rglob("*"))
    left = leave(store, RUN)
    assert len(left) >= 13
    with store.coordinator_lock():
        assert sweep(store, running=()) == len(left)
    assert set(store.root.rglob("*")) == files | {store.root / locks.FILE}


@pytest.mark.process
def test_what_a_living_process_makes_or_may_make_is_left_alone(store: Store) -> None:
    left = leave(store, RUN)
    with folder_beside(store.root, ".mlflow-") as living, whole_file(store.root / "result.json") as file:
        file.write(b"whole")
        before = time.time() - 60
        os.utime(living, (before, before))
        with store.coordinator_lock():
            new = store.root / f".config.json.{'0' * 16}"  # younger than the coordinator
            new.touch()
            os.utime(new, (time.time() + 60, time.time() + 60))
            others = {path for path in left if not path.is_relative_to(store.run_folder(RUN))}
            assert sweep(store, running=[RUN]) == len(others)
            assert new.exists() and living.exists()
    assert (store.root / "result.json").read_bytes() == b"whole"
    assert {path for path in left if path.exists()} == left - others


@pytest.mark.parametrize(
    "name", [".result.json.keep", ".cache.metadata", ".result.json", "result.json.0123456789abcdef"]
)
def test_other_hidden_files_stay(store: Store, name: str) -> None:
    path = store.attempt_folder(RUN, 1) / name
    path.touch()
    with store.coordinator_lock():
        assert sweep(store, running=()) == 0
    assert path.exists()


def test_what_a_killed_process_left_is_no_artifact_of_mlflow(store: Store) -> None:
    place = store.evaluation_folder(RUN, "e" * 16)
    write_json(place / "result.json", {"eval_id": "e" * 16, "run_id": RUN, "set": "dev", "metrics": {"bleu": 1.0}})
    (place / f".result.json.{'0' * 16}").touch()
    assert [path.name for path, _ in artifacts(store, RUN) if path.parent == place] == ["result.json"]
