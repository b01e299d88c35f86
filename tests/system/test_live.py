"""Output during training: in a pseudo-terminal, in a followed log, and after `work --drain`."""

import json
import os
import pty
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from .conftest import TINY, Cli, as_json, command, environment

pytestmark = pytest.mark.slow
LONG = TINY.replace("train_steps = 6,", "train_steps = 3000,")


@pytest.fixture
def long(tmp_path: Path) -> Path:
    (tmp_path / "long.toml").write_text(LONG.replace('name = "tiny"', 'name = "long"'))
    return tmp_path / "long.toml"


def on_a_terminal(words: list[str], until: str, limit_s: float = 120) -> str:
    """Run a command in a terminal of 120 columns until a text appears, interrupt it, and return its output."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        words, stdin=slave, stdout=slave, stderr=slave, env={**environment(), "COLUMNS": "120", "TERM": "xterm"},
        start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    seen, deadline = "", time.monotonic() + limit_s
    while not re.search(until, seen) and time.monotonic() < deadline:
        try:
            seen += os.read(master, 65536).decode(errors="replace")
        except OSError:  # the command has ended
            break
    process.send_signal(signal.SIGINT)
    while process.poll() is None:
        try:
            os.read(master, 65536)
        except OSError:
            process.wait(60)
    os.close(master)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen)


def test_a_terminal_shows_bars_numbers_and_the_tables_own_counts(
    cli: Cli, tiny: Path, long: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    cli("run", tiny, "--store", store, "--devices", "cpu:2")  # another table with three finished runs
    words = command("run", long, "--rows", "base,h1", "--store", store, "--devices", "cpu:1x1")
    seen = on_a_terminal(words, r"tokens/s, \d+ (s|min) left")
    screens = seen.split("long: ")
    last = screens[-1]
    assert "1 waiting" in last and "1 running" in last and "finished" not in last
    assert "about " in last, "the table's time is known although none of its runs has ended"
    assert re.search(r"(base|h1) \(seed 1\)\s+[━╸╺ ]+ training step [\d,]+/3,000 loss [\d.]+, ppl [\d.]+", last)


def test_a_followed_log_shows_the_curve_and_json_all_of_it(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    study = tmp_path / "points.toml"
    study.write_text(TINY.replace("train_steps = 6,", "train_steps = 400,"))
    store = tmp_path / "store"
    going = subprocess.Popen(
        command("run", study, "--rows", "base", "--store", store, "--devices", "cpu:1x1"), env=environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while not any(store.glob("runs/*/attempts/0001/events.jsonl")):
        assert going.poll() is None
        time.sleep(0.05)
    followed = cli("log", "base", "--follow", "--store", store).stdout
    assert going.wait(120) == 0
    points = json.loads(cli("log", "base", "--json", "--store", store).stdout)["points"]
    shown = re.findall(r"^step ([\d,]+)  .*loss ([\d.]+)", followed, re.MULTILINE)
    assert shown and shown[-1][0] == f"{points[-1]['step']}" == "400"
    assert float(shown[-1][1]) == pytest.approx(points[-1]["loss"], rel=1e-4)
    assert followed.count("step 400  ") == 1, "each point once"


@pytest.mark.nightly
def test_a_drained_table_is_not_done(cli: Cli, long: Path, tmp_path: Path) -> None:
    """After `work --drain`, `run` does not end with exit code 0, and the same command trains the remaining rows."""
    store = tmp_path / "store"
    long.write_text(long.read_text().replace("3000", "300"))
    short = ("--store", store, "--devices", "cpu:1x1")
    going = subprocess.Popen(
        command("run", long, *short), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not any(store.glob("runs/*/attempts/0001/events.jsonl")):
        assert going.poll() is None
        time.sleep(0.05)
    cli("work", "--drain", "--store", store)
    _, said = going.communicate(timeout=120)
    states = [job["state"] for job in as_json(cli("status", "--store", store, "--json"))]
    assert sorted(states) == ["finished", "waiting", "waiting"]
    assert going.returncode == 1 and "2 runs still queued" in said
    cli("run", long, *short)


def test_settings_are_those_of_the_task_and_can_be_set(cli: Cli, tmp_path: Path) -> None:
    for name in ("translation", "table3"):
        found = as_json(cli("settings", name, "--json"))
        assert {"name", "default", "values", "meaning"} == set(found[0])
        assert all(one["meaning"] for one in found if name != "table3"), [one for one in found if not one["meaning"]]
    lines = cli("settings", "table3", "model.d_").stdout.splitlines()
    assert [line.split(" = ")[0] for line in lines] == ["model.d_model", "model.d_ff", "model.d_k", "model.d_v"]
    assert lines[0].startswith("model.d_model = 512  (integer ≥ 1): ")
    command_study = tmp_path / "c.toml"
    command_study.write_text(
        'name = "c"\ntitle = "t"\ncommand = "echo {rate} {metrics}"\n[base]\nrate = 3\n[[metric]]\nname = "a"\n'
        '[[variation]]\nkey = "base"\n'
    )
    assert cli("settings", command_study).stdout.startswith("rate = 3  (integer")
    assert "Nearest" in cli("settings", "translation", "modle.", code=2).stderr
    assert "Nearest names: translation" in cli("settings", "translaton", code=2).stderr
