"""Ensembles that are killed and run again equal undisturbed ones, and every command supports them."""

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


@pytest.mark.nightly
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
@pytest.mark.extra("bundles")
@pytest.mark.extra("imports")
def test_every_verb_knows_it(cli: Cli, study: Path, tmp_path: Path) -> None:
    store = ("--store", tmp_path / "store")
    table = cli("run", study, *store, "--devices", "cpu:2", "--notes", "full").stdout
    assert "three: ensemble of base, seeds 1, 2, 3" in table
    planned = cli("plan", study, *store).stdout
    assert "ensemble" in planned and "of base, seeds 1, 2, 3" in planned and "base   seed 3" in planned
    assert "seed 0" not in planned + table + cli("status", *store).stdout
    explained = cli("explain", study, "three.ppl", "--full", *store).stdout
    assert "ensemble member 3" in explained and "seed 0" not in explained
    page = tmp_path / "table.tex"
    cli("report", study, *store, "--format", "latex", "--out", page)
    assert "all equal to the store's" in cli("verify", page, study, *store).stdout
    packed = tmp_path / "tiny.tar.gz"
    assert "5 runs" in cli("bundle", study, *store, "--out", packed).stdout
    assert cli("report", packed, "--notes", "full").stdout.partition("\n\n")[2] == table
    assert "4 runs imported" in cli("import", packed, "--store", tmp_path / "other").stdout
    assert cli("report", study, "--store", tmp_path / "other", "--notes", "full").stdout == table
    told = cli("generate", study, "--row", "three", *store, code=2).stderr
    assert "is an ensemble, which has no weights. Name a member: --run " in told
    again = cli("evaluate", study, *store, "--set", "evaluation.beam_size=3", "--rows", "three", "--json").stdout
    assert '"row": "three"' in again
    assert "nothing to train" in cli("run", study, *store).stderr
