"""Ensembles on the command line: killed and run again they equal undisturbed ones; every verb knows them."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from experiments.events.event_log import read_events
from experiments.store.layout import Store
from reports.audit.verify import lasting

from .conftest import TINY, Cli, as_json, command, environment

pytestmark = pytest.mark.slow

STUDY = (
    TINY.partition("[[variation]]")[0]
    + """
[[variation]]
key = "base"

[[variation]]
key = "three"
ensemble = {of = "base", seeds = [1, 2, 3]}

[[variation]]
key = "wide"
ensemble = {of = "base", seeds = [1, 2, 3]}
set = {evaluation.beam_size = 8}
"""
)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    (tmp_path / "tiny.toml").write_text(STUDY)
    return tmp_path / "tiny.toml"


def events(store: Path, run_id: str) -> list[dict[str, object]]:
    folders = sorted(store.glob(f"runs/{run_id}/attempts/*"))
    return [event for folder in folders for event in read_events(folder)]


def test_killed_and_run_again_it_equals_an_undisturbed_one(cli: Cli, study: Path, tmp_path: Path) -> None:
    disturbed, undisturbed = tmp_path / "disturbed", tmp_path / "undisturbed"
    planned = as_json(cli("plan", study, "--store", disturbed, "--json"))
    three = next(run for run in planned if run["row"] == "three")
    with subprocess.Popen(
        command("run", study, "--store", disturbed, "--devices", "cpu:1"), env=environment(), start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as running:  # fmt: skip
        end = time.monotonic() + 120
        while not any(event["kind"] == "progress" for event in events(disturbed, three["run_id"])):
            assert time.monotonic() < end
            time.sleep(0.01)
        running.kill()
    for event in events(disturbed, three["run_id"]):
        if event["kind"] == "started":
            try:
                os.kill(int(str(event["pid"])), signal.SIGKILL)
            except ProcessLookupError:
                continue
    assert not [event for event in events(disturbed, three["run_id"]) if event["kind"] == "finished"]
    again = cli("run", study, "--store", disturbed, "--devices", "cpu:1")
    whole = cli("run", study, "--store", undisturbed, "--devices", "cpu:2")
    assert lasting(again.stdout, "markdown") == lasting(whole.stdout, "markdown")
    assert all(Store.open(disturbed).attempts(run_id) == [1] for run_id in three["members"])
    assert len(Store.open(disturbed).attempts(three["run_id"])) == 2
    assert [run["state"] for run in as_json(cli("plan", study, "--store", disturbed, "--json"))] == ["finished"] * 5
    files = [sorted(store.glob("runs/*/evaluations/*/translations.txt")) for store in (disturbed, undisturbed)]
    assert len(files[0]) == 3
    assert [file.read_text() for file in files[0]] == [file.read_text() for file in files[1]]


@pytest.mark.nightly
