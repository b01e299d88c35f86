"""A copy of an attempt's spec can be run again by hand, after its coordinator has ended."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.events.event_log import read_events
from experiments.identity import run_identity
from experiments.processes.process_identity import identify
from experiments.store.checksummed import write_json
from experiments.store.layout import Store
from experiments.tasks.load import load_task

TRAINER = """
import os, time
from dataclasses import dataclass
from ablations_task import column, task

@dataclass
class Settings:
    steps: int = 1

@task(Settings, columns=[column("accuracy", "accuracy")])
def TASK(settings, context):
    end = time.monotonic() + float(os.environ["FOR_S"])
    while time.monotonic() < end and not context.should_stop():
        time.sleep(0.05)
    (context.folder / "asked_to_stop").write_text(str(context.should_stop()))
    return {"accuracy": 1.0}
"""


@pytest.mark.process
def test_alone_a_copied_spec_runs_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "patient_trainer.py").write_text(TRAINER)
    name, gone = "patient_trainer:TASK", subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    coordinator = identify(gone.pid)
    gone.communicate(b"\n")
    store = Store.open(tmp_path / "store")
    config = load_task(name, str(tmp_path)).config_type.model_validate_json(json.dumps({"task": name}))
    run_id = run_identity(config, {})
    number, folder = store.new_attempt(run_id)
    spec = {
        "store": str(store.root), "run_id": run_id, "attempt": number, "task": name, "folder": str(tmp_path),
        "config": config.model_dump(mode="json"), "inputs": {}, "train": True, "evaluations": [],
        "device": {"kind": "cpu", "threads": 1}, "coordinator": coordinator,
    }  # fmt: skip
    write_json(folder / "spec.json", spec)
    asked = {}
    # A child looks for its coordinator every half second.
    for options, for_s in (([], "100"), (["--alone"], "2")):
        copy = tmp_path / f"copy{len(options)}"
        copy.mkdir()
        (copy / "spec.json").write_bytes((folder / "spec.json").read_bytes())
        command = [sys.executable, "-m", "experiments.child.run", *options, str(copy / "spec.json")]
        assert subprocess.run(command, env={**os.environ, "FOR_S": for_s}, check=False).returncode == 0
        assert read_events(copy)[-1]["kind"] == "finished"
        [said] = copy.rglob("asked_to_stop")
        asked[len(options)] = said.read_text()
    assert asked == {0: "True", 1: "False"}
    assert [path.name for path in folder.iterdir()] == ["spec.json"]  # the attempt itself stays as it was
