"""Commits between runs of a study: which rows train again, become stale or stay finished (docs/code-rows.md).

The trainer records its starts in a file outside the repository, so that tests do not rely on the program's reports.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import Cli, as_json, command, environment

pytestmark = pytest.mark.slow

TRAIN = """
import argparse, json, os, time
from net import score
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
with open(os.environ["STARTS"], "a") as starts:
    starts.write(f"{args.lr}\\n")
gate = 2
# a hunk's context
# ends here
if os.environ.get("SLOW"):
    open(os.environ["SLOW"], "w").close()
    time.sleep(60)
print(json.dumps({"acc": score(args.lr) + gate}))
""".lstrip()
NET = "def score(lr):\n    return 10 * lr\n"
STUDY = """
name = "day"
title = "A day of commits"
command = "PYTHON train.py --lr {lr} --seed {seed}"
base = {lr = 0.1}
metric = [{name = "acc"}]
variation = [
    {key = "base"},
    {key = "lr2", set = {lr = 0.2}},
    {key = "no-gate", patch = "no-gate.diff"},
    {key = "old", commit = "old"},
]
""".replace("PYTHON", sys.executable)
NO_GATE = """diff --git a/train.py b/train.py
index 1111111..2222222 100644
--- a/train.py
+++ b/train.py
@@ -7,5 +7,5 @@
 with open(os.environ["STARTS"], "a") as starts:
     starts.write(f"{args.lr}\\n")
-gate = 2
+gate = 0
 # a hunk's context
 # ends here
"""
WHO = {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
STATE = dict.fromkeys(("base", "lr2", "no-gate", "old"), "finished")


class Day:
    """A working copy, and the file in which its trainer records its starts."""

    def __init__(self, folder: Path, cli: Cli) -> None:
        self.folder, self.cli = folder, cli
        self.starts = folder.parent / "starts.txt"

    def git(self, *words: str) -> str:
        """Run git in the working copy without the user's configuration, and return its output."""
        own = {**os.environ, **WHO, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_EDITOR": "true"}
        done = subprocess.run(["git", *words], cwd=self.folder, env=own, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"git {words}: {done.stderr}"
        return done.stdout.strip()

    def write(self, name: str, text: str) -> None:
        """Write a file of the working copy."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def commit(self, message: str, **files: str) -> None:
        """Write files and commit all changes. In the arguments' names, "__" stands for a dot and "___" for a slash."""
        for name, text in files.items():
            self.write(name.replace("___", "/").replace("__", "."), text)
        self.git("add", "-A")
        self.git("commit", "-qm", message)

    def trained(self, *options: str) -> list[str]:
        """Run the study and return the learning rates with which the trainer started."""
        before = self._lines()
        self.cli("run", "study.toml", "--devices", "cpu:2", *options, cwd=self.folder)
        return sorted(self._lines()[len(before) :])

    def states(self) -> dict[str, str]:
        """Return the state of each row in the plan."""
        plan = as_json(self.cli("plan", "study.toml", "--json", cwd=self.folder))
        return {run["row"]: run["state"] for run in plan}

    def accuracies(self) -> dict[str, float]:
        """Return the printed accuracy of each row."""
        table = as_json(self.cli("report", "study.toml", "--format", "json", cwd=self.folder))
        return {row["row"]: round(row["acc_test"], 4) for row in table}

    def changes(self) -> dict[str, float | None]:
        """Return the printed change from base of each row."""
        table = as_json(self.cli("report", "study.toml", "--format", "json", cwd=self.folder))
        return {row["row"]: row["acc_test_change"] for row in table}

    def _lines(self) -> list[str]:
        return self.starts.read_text().splitlines() if self.starts.exists() else []


@pytest.fixture
def day(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Iterator[Day]:
    """Return a repository whose study has four trained rows: base, a setting, a patch and a commit."""
    folder = tmp_path / "mine"
    folder.mkdir()
    it = Day(folder, cli)
    monkeypatch.setenv("STARTS", str(it.starts))
    it.git("init", "-q", "-b", "main")
    it.commit("The script", train__py=TRAIN, net__py=NET.replace("10", "5"), __gitignore="runs/\n__pycache__/\n")
    it.git("tag", "old")
    files = {"study__toml": STUDY, "no-gate__diff": NO_GATE, "paper__tex": "Draft.\n", "tools__py": "# not imported\n"}
    it.commit("The network and the study", net__py=NET, **files)
    assert it.trained() == ["0.1", "0.1", "0.1", "0.2"]
    assert it.accuracies() == {"base": 3.0, "lr2": 4.0, "no-gate": 1.0, "old": 2.5}
    yield it


def test_what_changes_no_number_trains_nothing(day: Day) -> None:
    text = STUDY
    for step in range(1, 15):
        if step == 1:
            day.commit("Ignore more", __gitignore="runs/\n__pycache__/\nscratch/\n")
        elif step == 2:
            day.commit("The paper", paper__tex="Written.\n")
        elif step == 3:
            text = text.replace("A day of commits", "Another title")
            day.commit("The title", study__toml=text)
        elif step == 4:
            text = text.replace("metric = [", 'columns = {lr = "rate"}\nmetric = [')
            day.commit("A column", study__toml=text)
        elif step == 5:
            day.commit("A tool that no run imports", tools__py="print(1)\n")
        elif step == 6:
            day.write("scratch/notes.txt", "ignored\n")
        elif step == 7:
            day.commit("Requirements", requirements__txt="numpy\n", docs___page__md="Text.\n")
        elif step == 8:
            day.git("commit", "--amend", "-qm", "Another message")
        elif step == 9:
            day.git("checkout", "-qb", "side", "HEAD~2")
            day.commit("A side branch", notes__md="Side.\n")
            day.git("checkout", "-q", "main")
            day.git("merge", "-q", "--no-edit", "side")
        elif step == 10:  # all commits get new hashes, with the same trees
            day.git("rebase", "-q", "--force-rebase", "old")
        elif step == 11:  # another commit with the tree of `old`
            tree = day.git("rev-parse", "old^{tree}")
            day.git("tag", "-f", "old", day.git("commit-tree", tree, "-m", "Equal code"))
        elif step == 12:  # the same patch in the format of another git version
            other = NO_GATE.replace("index 1111111..2222222 100644\n", "").replace("+7,5 @@", "+7,5 @@ x")
            day.commit("The patch, printed again", **{"no-gate__diff": other})
        elif step == 13:
            day.write("paper.tex", "Not committed.\n")
        else:
            day.git("mv", "paper.tex", "article.tex")
        assert (step, day.trained()) == (step, [])
        assert (step, day.states()) == (step, STATE)
        assert day.accuracies() == {"base": 3.0, "lr2": 4.0, "no-gate": 1.0, "old": 2.5}
    assert len(day.git("log", "--oneline").splitlines()) >= 8


def test_changed_code_makes_results_stale_and_its_return_makes_them_valid(day: Day) -> None:
    stale = {**STATE, "base": "stale", "lr2": "stale", "no-gate": "stale"}
    day.cli("report", "study.toml", "--format", "latex", "--out", "table.tex", cwd=day.folder)
    assert "all equal" in day.cli("verify", "table.tex", cwd=day.folder).stdout
    day.commit("Another network", net__py=NET.replace("10", "20"))
    assert day.states() == stale  # `old` has its own tree and is not affected
    # the printed numbers still equal those of the runs
    verified = day.cli("verify", "table.tex", cwd=day.folder).stdout
    assert "all equal" in verified and "other code than the present: base, lr2, no-gate" in verified
    assert day.trained() == []
    assert day.accuracies()["base"] == 3.0
    day.git("revert", "--no-edit", "HEAD")
    assert day.states() == STATE and day.trained() == []
    day.write("net.py", NET.replace("10", "30"))  # not committed
    assert day.states() == stale
    day.git("checkout", "net.py")
    assert day.states() == STATE
    day.git("checkout", "-qb", "side")
    day.commit("The script", train__py=f"{TRAIN}\n# a comment: other text, other code\n")
    day.git("checkout", "-q", "main")
    day.git("merge", "-q", "--no-edit", "side")
    assert day.states() == stale and day.trained() == []


def test_rows_of_other_code_are_not_compared_until_they_are_trained_again(day: Day) -> None:
    day.commit("Another network", net__py=NET.replace("10", "20"))
    more = STUDY.replace('{key = "old"', '{key = "lr3", set = {lr = 0.3}},\n    {key = "old"')
    day.commit("A row more", study__toml=more)
    assert day.trained() == ["0.3"]
    assert day.accuracies() == {"base": 3.0, "lr2": 4.0, "no-gate": 1.0, "lr3": 8.0, "old": 2.5}
    changes = day.changes()
    assert changes["lr3"] is None  # lr3 has another network than base
    assert round(changes["lr2"] or 0, 4) == 1.0 and round(changes["no-gate"] or 0, 4) == -2.0
    assert "--stale rerun" in day.cli("report", "study.toml", cwd=day.folder).stdout
    assert day.trained("--stale", "rerun") == ["0.1", "0.1", "0.2"]
    assert day.states() == {**STATE, "lr3": "finished"}
    assert day.accuracies() == {"base": 4.0, "lr2": 6.0, "no-gate": 2.0, "lr3": 8.0, "old": 2.5}
    assert round(day.changes()["lr3"] or 0, 4) == 4.0
    assert day.trained("--stale", "rerun") == []


def test_a_run_killed_before_a_commit_goes_on_with_its_own_code(day: Day, tmp_path: Path) -> None:
    more = STUDY.replace('{key = "old"', '{key = "lr3", set = {lr = 0.3}},\n    {key = "old"')
    day.commit("A row more", study__toml=more)
    running = tmp_path / "running"
    own = {**environment(), "SLOW": str(running), "STARTS": str(day.starts)}
    arguments = command("run", "study.toml", "--devices", "cpu:2")
    process = subprocess.Popen(arguments, cwd=day.folder, env=own, start_new_session=True, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while not running.exists() and time.monotonic() < until:
        time.sleep(0.2)
    assert running.exists()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    day.commit("Another network", net__py=NET.replace("10", "20"))
    assert day.trained() == ["0.3"]  # trained again with the tree of its first attempt
    assert day.accuracies()["lr3"] == 5.0
    assert day.states() == {**STATE, "base": "stale", "lr2": "stale", "no-gate": "stale", "lr3": "stale"}
    assert round(day.changes()["lr3"] or 0, 4) == 2.0  # all rows were trained with the same code
