"""External text (names, paths, logs, errors) never controls a terminal, tested on a real pseudo-terminal."""

import io
import json
import math
import os
import pty
import re
import sys
import threading
from pathlib import Path

import pytest

from ablations.cli import main as cli
from ablations.cli.terminal import Guarded, Lasting, print_json, visible
from experiments.events.event_log import EventWriter
from experiments.jobs.queue.job import Ending, Member, Outcome, State
from experiments.jobs.queue.work_queue import WorkQueue
from experiments.store.layout import Store
from tests.made_jobs import made_job

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\x08\x7f\r"
SENT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
COLOUR = re.compile("\x1b\\[[0-9;]*m")  # of the table that `report` prints
STUDY = """
name = "mine"
title = "A title TITLE"
[base]
model = {num_layers = 1, d_model = 8, d_ff = 16, num_heads = 2, d_k = 4, d_v = 4}
[[variation]]
key = "base"
"""


@pytest.fixture
def study(tmp_path):
    path = tmp_path / f"evil{EVIL}.toml"
    path.write_text(STUDY, encoding="utf-8")
    return path


@pytest.fixture
def titled(study):
    """Return the study with the control sequence in its title, as TOML may write it."""
    path = study.parent / "titled.toml"
    path.write_text(STUDY.replace("TITLE", "".join(f"\\u{ord(c):04x}" for c in EVIL)), encoding="utf-8")
    return path


@pytest.fixture
def store(tmp_path):
    """Make a failed run with control sequences in its table's name, error, event and log."""
    store = Store.open(tmp_path / "store")
    work_queue = WorkQueue(store.queue_db)
    members = (Member(f"table{EVIL}", "demo", "builtin", f"row{EVIL}", ""),)
    jobs = [made_job(f"{n}" * 16, "translation", members=members) for n in (1, 2)]
    work_queue.enqueue(jobs)
    attempt, folder = store.new_attempt("1" * 16)
    work_queue.claim("1" * 16, attempt, "cpu:0", "cpu")
    (folder / "log.txt").write_text(f"log {EVIL}\n", encoding="utf-8", newline="")
    EventWriter(folder).emit("checkpoint_skipped", path=f"step{EVIL}", reason=EVIL)
    work_queue.end("1" * 16, attempt, Ending(State.FAILED, Outcome.BUG, f"error {EVIL}", f"detail {EVIL}"), (0, 3))
    work_queue.close()
    return store.root


def on_a_terminal(monkeypatch, *arguments):
    """Return the bytes that the command writes to a terminal, and its exit code."""
    ours, theirs = pty.openpty()
    sent = []

    def read():
        try:
            while data := os.read(ours, 1 << 16):
                sent.append(data)
        except OSError:  # the other end is closed
            return

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", terminal)
        patched.setattr(sys, "stderr", terminal)
        patched.setattr(sys, "argv", ["ablations", *map(str, arguments)])
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code
    reader.join()
    os.close(ours)
    return b"".join(sent).decode("utf-8").replace("\r\n", "\n"), code


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["plan", "{study}", "--store", "{store}"], 0),
        (["report", "{study}", "--store", "{store}"], 0),
        (["plan", "{titled}", "--store", "{store}"], 2),
        (["status", "--store", "{store}"], 0),
        (["status", "--json", "--store", "{store}"], 0),
        (["log", "1111", "--store", "{store}"], 0),
        (["retry", "all", "--store", "{store}"], 0),
        (["cancel", "all", "--store", "{store}"], 0),
        (["log", EVIL, "--store", "{store}"], 2),
        (["plan", f"none{EVIL}.toml"], 2),
        (["status", f"--none{EVIL}"], 2),
        (["report", "{study}", "--rows", EVIL], 2),
        (["report", "{study}", "--store", f"{{store}}/{EVIL}", "--set", f"model.{EVIL}=1"], 2),
    ],
)
@pytest.mark.process
def test_no_control_sequence_reaches_the_terminal(monkeypatch, study, titled, store, words, code):
    given = [word.format(study=study, titled=titled, store=store) for word in words]
    text, ended = on_a_terminal(monkeypatch, *given)
    assert ended == code, text
    assert not SENT.search(COLOUR.sub("", text)), text
    if words[0] in ("log", "status") and code == 0:
        assert "\\u001b]0;owned\\u0007" in text  # shown, not swallowed


def test_report_fits_the_terminal_and_is_markdown_elsewhere(monkeypatch, study, store, capsys):
    """No runs: gaps alone. The pseudo-terminal has 80 columns if it says nothing else."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "50")
    text, code = on_a_terminal(monkeypatch, "report", study, "--store", store)
    lines = COLOUR.sub("", text).split("\n")
    assert code == 0 and "\x1b[" in text and not any(line.startswith("|") for line in lines)
    assert max(map(len, lines)) <= 50 and any(line.startswith("base") for line in lines)
    assert "more notes: --notes full" in " ".join(text.split())
    chosen, _ = on_a_terminal(monkeypatch, "report", study, "--store", store, "--format", "markdown")
    assert "\n| base" in chosen
    monkeypatch.setattr(sys, "argv", ["ablations", "report", str(study), "--store", str(store)])
    with pytest.raises(SystemExit):
        cli.main()
    assert "| base" in capsys.readouterr().out


def test_json_has_null_for_what_it_lacks(capsys):
    print_json({"a": [math.inf, -math.inf, (math.nan, 1.5)], "b": 2})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {"a": [None, None, [None, 1.5]], "b": 2}


def test_json_means_the_same_text(monkeypatch, store):
    text, _ = on_a_terminal(monkeypatch, "status", "--json", "--store", store)
    assert json.loads(text)[0]["members"][0]["row"] == f"row{EVIL}"


def test_a_traceback_is_escaped_too(monkeypatch, tmp_path):
    def fail(*_):
        raise RuntimeError(f"a bug {EVIL}")

    monkeypatch.setattr("ablations.cli.status._of_queue", fail)
    text, code = on_a_terminal(monkeypatch, "status", "--store", Store.open(tmp_path / "store").root)
    assert code == 1 and "RuntimeError" in text
    assert not SENT.search(text)


def test_text_passes_as_it_is_and_names_that_are_no_utf8_are_printed():
    assert visible("Zeile\n\tä – ± 表 \u200f") == "Zeile\n\tä – ± 表 \u200f"
    raw = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    print(os.fsdecode(b"caf\xe9"), file=Guarded(raw), flush=True)
    assert raw.buffer.getvalue() == b"caf\\udce9\n"
    assert not hasattr(Guarded(raw), "buffer")


def test_output_without_a_reader_is_dropped():
    """`ablations run … | head` trains to the end."""
    reading, writing = os.pipe()
    stream = Lasting(os.fdopen(writing, "w", encoding="utf-8", buffering=1), "standard output")
    stream.write("one\n")
    assert os.read(reading, 10) == b"one\n" and not stream.reader_has_left
    os.close(reading)
    for _ in range(3):
        stream.write("lost\n")
    stream.flush()
    assert stream.reader_has_left
    stream.stream.close()  # nothing unwritten is left that would raise an error here


@pytest.mark.parametrize("words", [["--help"], ["studies"], ["settings", "table3"]])
def test_a_command_whose_reader_has_left_succeeds(monkeypatch, capfd, words):
    reading, writing = os.pipe()
    os.close(reading)
    monkeypatch.setattr(sys, "argv", ["ablations", *words])
    with os.fdopen(writing, "w", encoding="utf-8") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        monkeypatch.setattr(sys, "stderr", sys.__stderr__)
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert ended.value.code in (None, 0)
    assert capfd.readouterr().err == ""


def test_a_full_disk_below_standard_output_is_the_users_mistake(monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", ["ablations", "studies"])
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        monkeypatch.setattr(sys, "stderr", sys.__stderr__)
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert ended.value.code == 2
    assert capfd.readouterr().err.startswith("ablations: standard output: No space left on device. ")
