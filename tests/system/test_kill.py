"""If `run` is killed and repeated, no training is repeated or lost, and the table is equal."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from experiments.events.event_log import read_events
from reports.audit.verify import lasting

from .conftest import Cli, command, environment

pytestmark = pytest.mark.slow

OPTIONS = ["--devices", "cpu:1", "--set", "training.train_steps=240", "--set", "training.checkpoint_steps=20"]


def events(store: Path) -> list[dict[str, object]]:
    return [event for folder in sorted(store.glob("runs/*/attempts/*")) for event in read_events(folder)]


def wait_for(store: Path, what: str, count: int, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while sum(event["kind"] == what for event in events(store)) < count:
        assert time.monotonic() < end, f"no {count} × {what} within {seconds} s"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def study(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kill") / "kill.toml"
    path.write_text(tiny.read_text(encoding="utf-8").split('[[variation]]\nkey = "untrained"')[0], encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def whole(cli: Cli, study: Path) -> str:
    """Return the table of an undisturbed run."""
    return cli("run", study, "--store", study.parent / "undisturbed", *OPTIONS).stdout


@pytest.mark.parametrize(
    "everything",
    [pytest.param(False, id="coordinator alone", marks=pytest.mark.nightly), pytest.param(True, id="its children too")],
)
def test_kill_and_run_again(cli: Cli, study: Path, whole: str, tmp_path: Path, everything: bool) -> None:
    disturbed = tmp_path / "disturbed"
    with subprocess.Popen(
        command("run", study, "--store", disturbed, *OPTIONS), env=environment(), start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as running:  # fmt: skip
        wait_for(disturbed, "finished", 1)  # the first row is finished
        wait_for(disturbed, "checkpoint", 15)  # the second row is training
        running.kill()
    if everything:
        for event in events(disturbed):
            if event["kind"] == "started":
                try:
                    os.kill(int(str(event["pid"])), signal.SIGKILL)
                except ProcessLookupError:
                    continue
    again = cli("run", study, "--store", disturbed, *OPTIONS)
    trained = [event for event in events(disturbed) if event["kind"] == "trained"]
    resumed = [event for event in events(disturbed) if event["kind"] == "resumed"]
    assert len(trained) == 2  # the finished row was not trained again
    assert len(resumed) == 1 and int(str(resumed[0]["step"])) >= 20
    assert lasting(again.stdout, "markdown") == lasting(whole, "markdown")
