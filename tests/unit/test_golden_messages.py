"""Complete messages of a user's first hour and of failures.

golden_messages.txt has each command and its output. Other tests check only exit codes and the values in a message.
After a change of wording, write the file again and read the difference: GOLDEN_MESSAGES=write pytest
tests/unit/test_golden_messages.py
"""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from ablations.cli.main import main
from experiments.jobs.queue.job import Ending, Member, Outcome, State
from experiments.jobs.queue.work_queue import WorkQueue
from experiments.store.layout import Store
from tests.made_jobs import made_job

GOLDEN = Path(__file__).with_name("golden_messages.txt")
CASES = re.findall(r"^\$ ablations (.*)\n((?:(?!\$ ).*\n)*)", GOLDEN.read_text(encoding="utf-8"), re.MULTILINE)
HEAD = 'name = "mine"\ntitle = "Mine"\n'
TWO_ROWS = '[[variation]]\nkey = "base"\n[[variation]]\nkey = "h4"\nset = {model.num_heads = 4}\n'
OWN = 'command = "python train.py --lr {lr}"\nbase = {lr = 0.1}\n'
OWN += 'metric = [{name = "acc"}]\nvariation = [{key = "base"}]\n'
FILES = {
    "mine.toml": HEAD + TWO_ROWS,
    "broken.toml": 'name = "mine"\ntitle = "Mine\n',
    "misspelt.toml": HEAD.replace("title", "titel") + TWO_ROWS,
    "equal.toml": HEAD + '[[variation]]\nkey = "base"\n[[variation]]\nkey = "same"\n',
    "twice.toml": HEAD + '[[variation]]\nkey = "base"\n[[variation]]\nkey = "base"\n',
    "nothing.toml": HEAD + TWO_ROWS.replace("4}", "4, model.nothing = 1}"),
    "unread.toml": HEAD + TWO_ROWS.replace("4}", "4, model.position_clip = 2}"),
    "patched.toml": HEAD + OWN.replace('{key = "base"}', '{key = "base"}, {key = "p", patch = "absent.patch"}'),
    "metric.toml": HEAD + '[[metric]]\nname = "chrff"\n' + TWO_ROWS,
    "own.toml": HEAD + OWN,
    "no-place.toml": HEAD + OWN.replace(" --lr {lr}", ""),
    "old/store.json": '{"version": 999}',
    "thesis/thesis.tex": "",
    "unequal/train.de": "ein Haus\n" * 121,
    "empty/dev.de": "",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with invalid studies and corpora, and a store with a failed, a waiting and a finished run."""
    folder = tmp_path_factory.mktemp("golden")
    for corpus in ("unequal", "empty"):
        (folder / corpus).mkdir()
        for name in ("train.en", "train.de", "dev.en", "dev.de"):
            (folder / corpus / name).write_text("a house\n" * 120)
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    store = Store.open(folder / "store")
    with WorkQueue(store.queue_db) as queue:
        names = {"a1" * 8: "waiting", "c3" * 8: "failed", "d4" * 8: "finished"}
        members = {run_id: (Member("mine", "exact", "builtin", row, ""),) for run_id, row in names.items()}
        config = {"training": {"train_steps": 10}}
        queue.enqueue([made_job(run_id, "translation", config, members=members[run_id], steps=10) for run_id in names])
        for run_id, state, error in (
            ("c3" * 8, State.FAILED, "the loss of step 3 is nan"),
            ("d4" * 8, State.FINISHED, ""),
        ):
            attempt, _ = store.new_attempt(run_id)
            queue.claim(run_id, attempt, "cpu:0", "cpu")
            queue.end(run_id, attempt, Ending(state, Outcome.DIVERGED if error else Outcome.FINISHED, error), (0, 3))
    return folder


@pytest.mark.parametrize(("command", "expected"), CASES, ids=[command for command, _ in CASES])
def test_a_message_is_as_written(
    command: str,
    expected: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = sorted(folder.rglob("*"))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "argv", ["ablations", *shlex.split(command)])
    with pytest.raises(SystemExit) as end:
        main()
    printed = capsys.readouterr()
    message = (printed.out + printed.err).replace(str(folder), "FOLDER").replace("\n$ ", "\n ")
    message = re.sub(r"built-in study \(.*?\)", "built-in study (…)", message)  # extras have some of them
    message = re.sub(r"about \d+ s left", "about N s left", message)
    text = f"{message}exit code {end.value.code}\n\n"
    assert end.value.code != 2 or sorted(folder.rglob("*")) == before, "a refused command writes nothing"
    if os.environ.get("GOLDEN_MESSAGES") == "write":
        whole, head = GOLDEN.read_text(encoding="utf-8"), f"$ ablations {command}\n"
        GOLDEN.write_text(whole.replace(head + expected, head + text), encoding="utf-8")
    else:
        assert text == expected
