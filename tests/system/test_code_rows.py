"""Tests of rows that change code by patches, commits or parts of them.

They check the rows' git trees, what is refused, and that working copies and finished runs are not changed.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ablations.service.enqueue import enqueue, prepare, wanted
from ablations.service.selected import Selectors, choose
from experiments.store.trees import remove_unused
from experiments.tasks.own.run_code import imported_files
from tests.slow import mostly_nightly

from .conftest import Cli, as_json, command, environment

pytestmark = pytest.mark.process

TRAIN = """
import argparse, json
from net import score
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
gate = 2



bonus = 1


print("training")

last = 0
open("out.txt", "w").write("mine")
print(json.dumps({"acc": score(args.lr) + args.seed / 100 + gate + bonus + last}))
""".lstrip()
NET = "def score(lr):\n    return 10 * lr\n"
STUDY = """
name = "code"
title = "Rows of code"
command = "PYTHON train.py --lr {lr} --seed {seed}"
base = {lr = 0.1}
metric = [{name = "acc"}]
""".replace("PYTHON", sys.executable)
NO_GATE = (
    "diff --git a/train.py b/train.py\n--- a/train.py\n+++ b/train.py\n@@ -5,5 +5,5 @@ parser\n"
    ' parser.add_argument("--seed", type=int, default=0)\n args = parser.parse_args()\n-gate = 2\n+gate = 0\n \n \n'
)
MORE = "@@ -1,2 +1,2 @@\n def score(lr):\n-    return 10 * lr\n+    return 30 * lr\n"


def git(folder: Path, *words: str) -> str:
    who = {"GIT_CONFIG_GLOBAL": "/dev/null", **{f"GIT_{w}_{n}": v for w in ("AUTHOR", "COMMITTER") for n, v in _WHO}}
    done = subprocess.run(["git", *words], cwd=folder, env=os.environ | who, capture_output=True, text=True, check=True)
    return done.stdout.strip()


_WHO = (("NAME", "A"), ("EMAIL", "a@b.c"))


def commit(folder: Path, message: str) -> str:
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", message)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """Return a repository with a script, a module and a .gitignore. The study is not committed."""
    folder = tmp_path / "mine"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "train.py").write_text(TRAIN)
    (folder / "net.py").write_text(NET)
    (folder / ".gitignore").write_text("runs/\n__pycache__/\ndata/\n.venv/\n")
    commit(folder, "The script")
    return folder


def rows(*entries: str, ablate: str = "", head: str = "") -> str:
    written = "".join(f"    {entry},\n" for entry in entries)
    return f"{STUDY}{head}\nvariation = [\n{written}]\n{ablate}"


BASE = '{key = "base"}'


def whole(folder: Path) -> dict[str, str]:
    """Return the content and mode of every file of a working copy, including .git. Symbolic links are not followed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if "runs" in path.relative_to(folder).parts[:1] or path.is_dir():
            continue
        content = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
        found[str(path.relative_to(folder))] = f"{path.lstat().st_mode:o} {hashlib.sha256(content).hexdigest()}"
    return found


def accuracies(cli: Cli, folder: Path) -> dict[str, float]:
    table = as_json(cli("report", "study.toml", "--format", "json", cwd=folder))
    return {row["row"]: round(row["acc_test"], 4) for row in table}


def test_the_plan_names_commits_that_come_to_mean_others(cli: Cli, mine: Path) -> None:
    """`HEAD~1` and a branch can move; a hash and a tag cannot. A patch that does not apply has no tree to print."""
    first = git(mine, "rev-parse", "HEAD").strip()
    (mine / "net.py").write_text(NET.replace("10", "20"))
    commit(mine, "Twice the score")
    git(mine, "tag", "v1", first)
    git(mine, "branch", "side", first)
    (mine / "bad.diff").write_text(NO_GATE.replace("-gate = 2", "-gate = 7"))
    names = {"HEAD~1": True, "side": True, "v1": False, first[:9]: False}
    for name, moves in names.items():
        (mine / "study.toml").write_text(rows(BASE, f'{{key = "old", commit = "{name}"}}'))
        plan = cli("plan", "study.toml", cwd=mine).stdout
        assert (f"`{name}` is commit {first[:12]} now" in plan) is moves, name
    (mine / "study.toml").write_text(rows(BASE, '{key = "bad", patch = "bad.diff"}'))
    plan = cli("plan", "study.toml", cwd=mine, code=2).stdout
    assert "patch bad.diff" in plan and "000000" not in plan


@pytest.mark.extra("bundles")
def test_rows_of_patches_and_commits_have_trees_of_their_own(cli: Cli, mine: Path) -> None:
    (mine / "net.py").write_text(NET.replace("10", "20"))
    old = git(mine, "rev-parse", "HEAD")
    commit(mine, "Twice the score")
    # this uncommitted change is part of base's code
    (mine / "train.py").write_text(TRAIN.replace("last = 0", "last = 100"))
    (mine / "no-gate.diff").write_text(NO_GATE)
    entries = (BASE, '{key = "no-gate", patch = "no-gate.diff"}', f'{{key = "old", commit = "{old[:8]}"}}')
    small = '{key = "both", patch = "no-gate.diff", set = {lr = 0.2}}'
    text = rows(*entries, small, head='columns = {code_lines = "lines", lr = "lr"}')
    (mine / "study.toml").write_text(text)
    before = whole(mine)
    plan = cli("plan", "study.toml", cwd=mine).stdout
    assert "uncommitted changes in train.py" in plan and "patch no-gate.diff (" in plan
    cli("run", "study.toml", "--devices", "cpu:2", cwd=mine)
    assert accuracies(cli, mine) == {"base": 105.01, "no-gate": 103.01, "old": 4.01, "both": 105.01}
    assert whole(mine) == before
    table = cli("report", "study.toml", cwd=mine).stdout
    assert "patch no-gate.diff, lr = 0.2" in table and f"commit {old[:7]} The script" in table and "lines" in table
    head = git(mine, "rev-parse", "HEAD").strip()[:10]
    assert f"commit {head} with uncommitted changes (kept beside the run)" in table
    assert f"commit {head} with the row's change (kept beside the run)" in table and f"commit {old[:10]}" in table
    records = as_json(cli("report", "study.toml", "--format", "json", cwd=mine))
    assert [row["settings"].get("code_lines") for row in records] == [0, 2, 4, 2]
    behind = as_json(cli("explain", "study.toml", "no-gate.acc", "--json", cwd=mine))
    assert [line for line in behind["diff"] if line[:1] in "+-"][2:] == ["-gate = 2", "+gate = 0"]
    assert "-gate = 2" in cli("explain", "study.toml", "no-gate", "--full", cwd=mine).stdout
    cli("report", "study.toml", "--format", "html", "--out", "page.html", cwd=mine)
    assert "-gate = 2\n+gate = 0" in (mine / "page.html").read_text()
    # Each run keeps the files that it wrote but not its copy of the code, and records the commit of its code.
    for record in mine.glob("runs/runs/*/result.json"):
        run = json.loads(record.read_text())
        work = record.parent / "attempts/0001/final/work"
        assert [path.name for path in work.rglob("*") if path.is_file()] == ["out.txt"]
        is_old = run["revision"]["commit"] == old
        assert run["revision"]["dirty"] is not is_old
    cli("bundle", "study.toml", "--out", "table.tar.gz", cwd=mine)
    assert "+gate = 0" in cli("explain", "table.tar.gz", "no-gate", "--full", cwd=mine).stdout
    cli("bundle", "study.toml", "--anonymous", "--out", "blind.tar.gz", cwd=mine)
    blind = cli("explain", "blind.tar.gz", "old", "--full", cwd=mine).stdout
    assert old[:7] not in blind and "The script" not in blind and "diff --git" not in blind
    # No run trains again, even after a commit that changes no file's content.
    git(mine, "add", "-u")
    git(mine, "add", "study.toml", "no-gate.diff")
    git(mine, "commit", "-qm", "The study, its patch and what was uncommitted")
    assert "nothing to train" in cli("run", "study.toml", cwd=mine).stderr


def test_ten_commits_of_a_script_are_one_study(cli: Cli, mine: Path) -> None:
    commits = []
    for number in range(1, 11):
        (mine / "net.py").write_text(NET.replace("10 * lr", f"10 * lr + {number}"))
        if number == 7:
            # the same code as number 6, so no separate run
            (mine / "net.py").write_text(NET.replace("10 * lr", "10 * lr + 6"))
            (mine / "empty").touch()
        if number == 8:
            (mine / "empty").unlink()
        commits.append(commit(mine, f"Number {number}"))
    entries = [f'{{key = "c{n}", commit = "{one[:10]}"}}' for n, one in enumerate(commits, start=1)]
    (mine / "study.toml").write_text(rows(BASE, *entries))
    plan = as_json(cli("plan", "study.toml", "--json", cwd=mine))
    # the last commit is base's
    assert [run["row"] for run in plan] == ["base", *(f"c{n}" for n in range(1, 10))]
    assert "c10 equals base and is printed once" in cli("plan", "study.toml", cwd=mine).stdout
    cli("run", "study.toml", "--devices", "cpu:2", cwd=mine)
    found = accuracies(cli, mine)
    assert found == {"base": 14.01} | {f"c{n}": pytest.approx(4.01 + (6 if n == 7 else n)) for n in range(1, 10)}
    behind = as_json(cli("explain", "study.toml", "c3.acc", "--json", cwd=mine))
    assert "-    return 10 * lr + 10" in behind["diff"] and "+    return 10 * lr + 3" in behind["diff"]


def test_rows_without_each_part_of_a_change_and_with_each_alone(cli: Cli, mine: Path) -> None:
    git(mine, "checkout", "-qb", "feature")
    (mine / "train.py").write_text(TRAIN.replace("gate = 2", "gate = 20").replace("last = 0", "last = 300"))
    commit(mine, "Gate and last")
    (mine / "net.py").write_text(NET.replace("10 *", "1000 *"))
    commit(mine, "Score")
    patch = git(mine, "diff", "main", "feature") + "\n"
    (mine / "everything.diff").write_text(patch)
    parts = '[[ablate]]\npatch = "everything.diff"\n'
    by_file = '[[ablate]]\nkey = "file"\npatch = "everything.diff"\nby = "file"\n'
    alone = '[[ablate]]\npatch = "everything.diff"\nonly = true\nseeds = 1\n'
    commits = '[[ablate]]\nkey = "commit"\ncommits = "main..feature"\n'
    (mine / "study.toml").write_text(rows(BASE, ablate=parts + by_file + alone + commits))
    score, gate, last = 100.0, 20.0, 300.0
    full = score + gate + last + 1.01
    hashes = git(mine, "log", "--reverse", "--format=%h", "--abbrev=7", "main..feature").split()
    expected = {
        "base": full,
        "without-1": full - score + 1, "without-2": full - gate + 2, "without-3": full - last,
        "file-2": score + 2 + 1.01,
        "only-1": score + 2 + 1.01, "only-2": 1 + gate + 1.01, "only-3": 1 + 2 + last + 1.01,
    }  # fmt: skip
    plan = as_json(cli("plan", "study.toml", "--json", cwd=mine))
    rows_planned = {run["row"] for run in plan}
    # The other rows have the same trees as these, because parts by file and by commit are the same here.
    assert rows_planned == {"base", "without-1", "without-2", "without-3", "only-2", "only-3", "file-2"}
    said = cli("plan", "study.toml", cwd=mine).stdout
    assert "without hunk 2 (train.py, line 4)" in said.replace("line 5", "line 4")
    assert f"commit-{hashes[0]}" in said and f"commit-{hashes[1]}" in said and "only-1" in said
    cli("run", "study.toml", "--devices", "cpu:2", cwd=mine)
    found = accuracies(cli, mine)
    assert found == {row: pytest.approx(expected[row]) for row in found}
    # The same test, with the code without the patch as base.
    git(mine, "checkout", "-q", "main")
    (mine / "study.toml").write_text(rows(BASE, ablate=parts))
    plan = as_json(cli("plan", "study.toml", "--json", cwd=mine))
    assert {run["row"]: run["state"] for run in plan if run["row"] == "base"} == {"base": "stale"}
    cli("run", "study.toml", "--devices", "cpu:2", "--stale", "rerun", cwd=mine)
    found = accuracies(cli, mine)
    assert found.pop("base") == pytest.approx(4.01)
    assert found == {row: pytest.approx(expected[row]) for row in found} and len(found) == 3


FUNCTION = """
from dataclasses import dataclass
from pathlib import Path
from ablations_task import column, task
from net import score

@dataclass
class Settings:
    lr: float = 0.1
    data: str = "data/number.txt"

@task(Settings, columns=[column("acc", "acc", digits=2)])
def TASK(settings, context):
    number = float((Path(__file__).parent / settings.data).read_text())
    return {"acc": score(settings.lr) + number}
"""


def test_a_function_of_a_subfolder_with_links(cli: Cli, mine: Path) -> None:
    sub = mine / "project"
    (sub / "data").mkdir(parents=True)
    (sub / "walking.py").write_text(FUNCTION)
    (sub / "net.py").write_text(NET)
    commit(mine, "A function")
    (sub / "data/number.txt").write_text("7")  # git ignores it
    patch = (
        "diff --git a/project/net.py b/project/net.py\n--- a/project/net.py\n+++ b/project/net.py\n@@ -1,2 +1,2 @@\n"
    )
    (sub / "more.diff").write_text(patch + " def score(lr):\n-    return 10 * lr\n+    return 30 * lr\n")
    head = 'name = "w"\ntitle = "W"\ntask = "walking:TASK"\nlinks = ["data"]\n'
    (sub / "study.toml").write_text(f'{head}variation = [{BASE}, {{key = "more", patch = "more.diff"}}]\n')
    cli("run", "study.toml", "--devices", "cpu:2", cwd=sub)
    assert accuracies(cli, sub) == {"base": 8.0, "more": 10.0}
    assert {run["state"] for run in as_json(cli("plan", "study.toml", "--json", cwd=sub))} == {"finished"}
    (sub / "data/number.txt").write_text("8")  # linked files count as part of a run's code
    assert {run["state"] for run in as_json(cli("plan", "study.toml", "--json", cwd=sub))} == {"stale"}
    recorded = [json.loads(file.read_text()) for file in sub.glob("runs/runs/*/result.json")]
    files = {"project/walking.py", "project/net.py", "project/data/number.txt"}
    assert all(set(one["code_files"]) == files for one in recorded)
    (changed,) = [one for one in recorded if "base_files" in one]
    differ = {name for name, its in changed["base_files"].items() if its != changed["code_files"][name]}
    assert differ == {"project/net.py"}


@pytest.mark.parametrize("by", ["command", "function"])
def test_code_of_the_working_copy_is_not_tested_in_the_name_of_a_row(cli: Cli, mine: Path, by: str) -> None:
    """The import path leads to the working copy, as after an editable install."""
    lead = f"import sys\nsys.path.insert(0, {str(mine)!r})\n"
    name, text = (
        ("train.py", TRAIN) if by == "command" else ("walking.py", FUNCTION.replace("data/number.txt", "n.txt"))
    )
    (mine / "n.txt").write_text("1")
    (mine / name).write_text(lead + text)
    commit(mine, "A path")
    (mine / "no-gate.diff").write_text(f"diff --git a/net.py b/net.py\n--- a/net.py\n+++ b/net.py\n{MORE}")
    text = rows(BASE, '{key = "no-gate", patch = "no-gate.diff"}')
    if by == "function":
        head = 'name = "w"\ntitle = "W"\ntask = "walking:TASK"\n'
        text = f'{head}variation = [{BASE}, {{key = "no-gate", patch = "no-gate.diff"}}]\n'
    (mine / "study.toml").write_text(text)
    cli("run", "study.toml", "--devices", "cpu:2", cwd=mine, code=1)
    log = cli("log", "no-gate", cwd=mine).stdout
    assert f"imported {mine / 'net.py'}, which lies in the working copy" in log.replace("\n", " ")


@pytest.mark.parametrize(
    ("words", "said"),
    mostly_nightly(
        [
            ("PYTHONPATH=src {python} train.py", ""),
            ('awk \'BEGIN {{ print "{{\\"acc\\": 4}}" }}\'', ""),
            ("env -i ./start.sh {python}", "not known whose code trained"),
            ("{python} train.py", ""),
            ("sh -c 'PYTHONPATH=src:$PYTHONPATH; export PYTHONPATH; {python} train.py'", ""),
            ("{python} -S train.py", "not known whose code trained"),
            ("{python} -E train.py", "not known whose code trained"),
        ],
        3,
    ),
)
def test_a_row_whose_python_reported_nothing_fails(cli: Cli, mine: Path, words: str, said: str) -> None:
    (mine / "train.py").write_text("import net, sys\nprint('{\"acc\": 4}')\n")
    (mine / "start.sh").write_text('#!/bin/sh\nexec "$1" -c "import time; time.sleep(1)\nprint(\'{\\"acc\\": 4}\')"\n')
    (mine / "start.sh").chmod(0o755)
    commit(mine, "Only one number")
    (mine / "p.diff").write_text(NEW.format("new.txt", "100644", "new"))
    line = json.dumps(words.format(python=sys.executable))
    text = f'name = "c"\ntitle = "C"\ncommand = {line}\nmetric = [{{name = "acc"}}]\nvariation = [{PATCHED}]\n'
    (mine / "study.toml").write_text(text)
    cli("run", "study.toml", "--devices", "cpu:1", "--seeds", "1", cwd=mine, code=1 if said else 0)
    log = cli("log", "p", cwd=mine).stdout.replace("\n", " ")
    assert said in log and "sitecustomize" not in log
    (attempt,) = mine.glob("runs/runs/*/attempts/0001")
    if "train.py" in words and not said:
        assert {path.name for path in imported_files(attempt) or ()} == {"train.py", "net.py"}
    elif not said:
        assert imported_files(attempt) is None


@pytest.mark.parametrize("kind", ["command", pytest.param("function", marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("act", "said"),
    [
        ("open('net.py', 'a').write('# more')", "changed net.py in its copy"),
        ("os.rename('eval', 'old'); shutil.copytree('old', 'eval'); open('eval/score.py', 'a').write('x = 2')",
         "changed eval/score.py in its copy"),
        ("os.rename('eval', 'old'); os.symlink('old', 'eval')", "changed eval/score.py in its copy"),
        ("open('new.txt', 'w').write('of the run'); os.makedirs('eval/__pycache__', exist_ok=True)", ""),
    ],
)  # fmt: skip
def test_a_run_that_changed_its_own_tree_is_failed(cli: Cli, mine: Path, act: str, said: str, kind: str) -> None:
    (mine / "eval").mkdir()
    (mine / "eval/score.py").write_text("x = 1\n")
    act = f"import os, shutil\nos.chdir(os.path.dirname(os.path.abspath(__file__)))\n{act}\n"
    if kind == "command":
        (mine / "train.py").write_text(f"import net\n{act}print('{{\"acc\": 4}}')\n")
        head = f'command = "{sys.executable} train.py"\nmetric = [{{name = "acc"}}]\n'
    else:
        inside = "".join(f"    {line}\n" for line in act.splitlines())
        text = FUNCTION.replace("    number = float", f"{inside}    return {{'acc': 4}}\n    number = float")
        (mine / "walking.py").write_text(text)
        head = 'task = "walking:TASK"\n'
    commit(mine, "A trainer")
    (mine / "p.diff").write_text(NEW.format("other.txt", "100644", "new"))
    text = f'name = "c"\ntitle = "C"\n{head}variation = [{PATCHED}]\n[protected]\npaths = ["eval/"]\n'
    (mine / "study.toml").write_text(text)
    cli("run", "study.toml", "--devices", "cpu:1", "--seeds", "1", cwd=mine, code=1 if said else 0)
    assert said in cli("log", "p", cwd=mine).stdout.replace("\n", " ")
    assert (mine / "eval/score.py").read_text() == "x = 1\n" and (mine / "net.py").read_text() == NET
    (attempt,) = mine.glob("runs/runs/*/attempts/0001")
    assert [*attempt.rglob("train.py"), *attempt.rglob("walking.py")] == []


def test_no_study_sets_the_code_of_a_run(cli: Cli, mine: Path) -> None:
    for code, settings in {True: ("code_tree", "code_base"), False: ("code_tree",)}.items():
        row = PATCHED if code else '{key = "p", set = {lr = 0.2}}'
        for name in settings:
            given = f'{name} = "../../x"'
            texts = {
                "set": rows(BASE, row.replace('key = "p"', f'key = "p", fixed = {{{given}}}')),
                "row": rows(BASE, f'{{key = "q", set = {{{given}}}}}', row),
                "base": rows(BASE, row).replace("base = {lr = 0.1}", f"base = {{lr = 0.1, {given}}}"),
                "profile": rows(BASE, row, ablate=f"[profile.small]\nset = {{{given}}}\n"),
                "tune": rows(BASE, row, ablate=f'[tune]\ntrials = 2\nrange = {{{name} = ["a", "b"]}}\n'),
            }
            for place, text in texts.items():
                (mine / "p.diff").write_text(NO_GATE)
                (mine / "study.toml").write_text(text)
                words = ("--profile", "small") if place == "profile" else ()
                verb = "tune" if place == "tune" else "plan"
                said = cli(verb, "study.toml", *words, cwd=mine, code=2).stderr
                assert name in said and "Traceback" not in said, (place, said)
            (mine / "study.toml").write_text(rows(BASE, row))
            assert name in cli("plan", "study.toml", "--set", f"{name}=../../x", cwd=mine, code=2).stderr
    (mine / "walking.py").write_text(
        FUNCTION.replace("lr: float = 0.1", 'lr: float = 0.1\n    code_tree: str = "../x"')
    )
    commit(mine, "A trainer with such a setting")
    text = 'name = "w"\ntitle = "W"\ntask = "walking:TASK"\nvariation = [{{key = "base"}}{}]\n'
    (mine / "study.toml").write_text(text.format(f", {PATCHED}"))
    plan = as_json(cli("plan", "study.toml", "--json", cwd=mine))
    assert [run["overrides"] for run in plan] == [{}, {}] and plan[0]["code_tree"] != plan[1]["code_tree"]
    (mine / "study.toml").write_text(text.format(', {key = "q", set = {code_tree = "../y"}}'))
    plan = as_json(cli("plan", "study.toml", "--json", cwd=mine))
    assert [run["overrides"] for run in plan] == [{}, {"code_tree": "../y"}]


def test_forget_removes_the_trees_that_no_run_has(cli: Cli, mine: Path) -> None:
    (mine / "no-gate.diff").write_text(NO_GATE)
    (mine / "study.toml").write_text(rows(BASE, '{key = "p", patch = "no-gate.diff"}'))
    cli("run", "study.toml", "--devices", "cpu:2", cwd=mine)
    trees, before = mine / "runs/trees", accuracies(cli, mine)
    found = {run["row"]: run["code_tree"] for run in as_json(cli("plan", "study.toml", "--json", cwd=mine))}
    assert len(list(trees.glob("*.tar"))) == 2
    (trees / f"{'a' * 40}.tar").touch()  # remains of a kill: an archive without its facts, and an incomplete file
    (trees / f".{'b' * 40}.tar.0123456789abcdef").touch()
    cli("forget", "study.toml", "--rows", "p", "--yes", cwd=mine)
    assert {path.suffix for path in trees.iterdir()} == {".tar", ".json"} and len(list(trees.iterdir())) == 2
    assert found["p"] not in {path.stem for path in trees.iterdir()}
    # Restored runs are printed without their trees. A training packs its tree again.
    for folder in (mine / "runs/forgotten").iterdir():
        folder.rename(mine / "runs/runs" / folder.name)
    assert accuracies(cli, mine) == before and len(list(trees.iterdir())) == 2
    assert "nothing to forget" in cli("forget", "study.toml", "--gone", "--yes", cwd=mine).stdout
    cli("forget", "study.toml", "--yes", cwd=mine)
    assert list(trees.iterdir()) == []
    cli("run", "study.toml", "--devices", "cpu:2", cwd=mine)
    assert accuracies(cli, mine) == before and len(list(trees.iterdir())) == 4


def test_queued_runs_keep_their_trees_while_others_are_forgotten(cli: Cli, mine: Path) -> None:
    """`queue` packs trees while `forget` removes unused ones. Every waiting run still finds its tree."""
    patches = {f"p{n}": NO_GATE.replace("gate = 0", f"gate = {n}0") for n in range(1, 9)}
    for name, patch in patches.items():
        (mine / f"{name}.diff").write_text(patch)
    entries = [f'{{key = "{name}", patch = "{name}.diff"}}' for name in patches]
    (mine / "study.toml").write_text(rows(BASE, *entries))
    cli("queue", "study.toml", "--rows", "base", cwd=mine)
    stop = mine / "stop"
    loop = f"until [ -e {stop} ]; do {' '.join(command('forget', 'study.toml', '--gone', '--yes'))}; done"
    forgetting = subprocess.Popen(
        ["bash", "-c", loop], cwd=mine, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    for name in patches:
        cli("queue", "study.toml", "--rows", name, cwd=mine)
    stop.touch()
    forgetting.wait()
    assert len(list((mine / "runs/trees").glob("*.json"))) == 9
    cli("work", "--devices", "cpu:2", cwd=mine)
    assert accuracies(cli, mine) == {"base": 4.01} | {
        name: pytest.approx(2.01 + 10 * int(name[1:])) for name in patches
    }


def test_a_tree_that_is_removed_before_its_run_is_described_is_packed_again(mine: Path) -> None:
    (mine / "no-gate.diff").write_text(NO_GATE)
    (mine / "study.toml").write_text(rows('{key = "p", patch = "no-gate.diff"}'))
    chosen = choose(str(mine / "study.toml"), Selectors(store=mine / "runs"))
    runs = wanted(chosen.plan, "keep")
    prepare(chosen, runs, lambda words: None)
    packed = {path.name for path in (mine / "runs/trees").iterdir()}
    remove_unused(chosen.store)
    assert len(packed) == 4 and not list((mine / "runs/trees").iterdir())  # including base's tree
    enqueue(chosen, chosen.plan, runs, "keep")
    remove_unused(chosen.store)
    assert {path.name for path in (mine / "runs/trees").iterdir()} == packed


def test_packages_are_recorded_and_a_patch_of_their_names_installs_nothing(cli: Cli, mine: Path) -> None:
    (mine / "requirements.txt").write_text("numpy\n")
    commit(mine, "Requirements")
    files = (
        ("requirements.txt", "@@ -1 +1,2 @@\n numpy\n+scipy\n"),
        ("net.py", "@@ -1 +1,2 @@\n+import yaml\n def score(lr):\n"),
    )
    patch = "".join(f"diff --git a/{name} b/{name}\n--- a/{name}\n+++ b/{name}\n{hunk}" for name, hunk in files)
    (mine / "p.diff").write_text(patch)
    (mine / "study.toml").write_text(rows(BASE, '{key = "p", patch = "p.diff"}'))
    assert "nothing is installed for rows that change requirements.txt" in cli("plan", "study.toml", cwd=mine).stdout
    cli("run", "study.toml", "--devices", "cpu:2", cwd=mine)
    found = [json.loads(path.read_text())["versions"] for path in mine.glob("runs/runs/*/result.json")]
    python = ".".join(map(str, sys.version_info[:3]))
    assert [one["python"] for one in found] == [python] * 2
    assert sorted("yaml" in one for one in found) == [False, True]  # pyyaml's version, under its import name


def refused(cli: Cli, folder: Path, text: str, patch: str | bytes | None = None) -> str:
    (folder / "study.toml").write_text(text)
    if patch is not None:
        (folder / "p.diff").write_bytes(patch if isinstance(patch, bytes) else patch.encode())
    done = cli("run", "study.toml", cwd=folder, code=2)
    assert not (folder / "runs").exists() and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    return done.stderr


PATCHED = '{key = "p", patch = "p.diff"}'
NEW = "diff --git a/{0} b/{0}\nnew file mode {1}\n--- /dev/null\n+++ b/{0}\n@@ -0,0 +1 @@\n+{2}\n"


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        (NO_GATE.replace("gate = 2", "gate = 3").replace("a/train", "i/train").replace("b/train", "w/train"),
         "hunk 1 (train.py, line 5)"),
        (NO_GATE.replace("gate = 2", "gate = 3"), "p.diff does not apply to base's code: hunk 1 (train.py, line 5)"),
        (NO_GATE.replace("train.py", "there/no.py"), "there/no.py: does not exist in index"),
        (NO_GATE.replace("\n", "\r\n"), "(CRLF)"),
        (NO_GATE.replace("train.py", "../train.py"), "../train.py: does not exist in index"),
        (NEW.format("../x.py", "100644", "x = 1"), "invalid path '../x.py'"),
        (NEW.format("link.py", "120000", "/etc/passwd"), "link.py is a link to /etc/passwd, which leads out"),
        (NEW.format("a/link", "120000", "../../out"), "a/link is a link to ../../out"),
        (NEW.format("eval/score.py", "100644", "x = 1"), "changes eval/score.py, which [protected] lists"),
        (NEW.format("data/x.txt", "100644", "x"), "data/x.txt"),
        ("diff --git a/a.bin b/a.bin\nnew file mode 100644\nindex 000..123\nBinary files /dev/null and b/a.bin differ\n"
         , "git diff --binary"),
        ("nothing\n", "No valid patches"),
        (NO_GATE.replace("a/", "").replace("b/", ""), "no prefixes a/ and b/"),
        (NO_GATE.replace("diff", "\x1b[1mdiff"), "colour codes"),
        (NO_GATE.replace("train.py", "study.toml"), "changes study.toml, which is the study"),
        (NO_GATE.replace("train.py", "p.diff"), "changes p.diff, which is the study, a patch or a link"),
    ],
)  # fmt: skip
def test_patches_that_are_refused(cli: Cli, mine: Path, patch: str, said: str) -> None:
    (mine / "data").mkdir()
    (mine / "data/x.txt").write_text("7")
    text = rows(BASE, PATCHED, head='links = ["data"]', ablate='[protected]\npaths = ["eval/"]\n')
    assert said in refused(cli, mine, text, patch)


def test_a_pipe_as_a_patch_is_refused(cli: Cli, mine: Path) -> None:
    os.mkfifo(mine / "pipe.diff")
    said = refused(cli, mine, rows(BASE, '{key = "x", patch = "pipe.diff"}'))
    assert "pipe.diff cannot be read: it is not a regular file" in said


def test_studies_that_are_refused(cli: Cli, mine: Path, tmp_path: Path) -> None:
    said = refused(cli, mine, rows(BASE, '{key = "gone", commit = "1234567890"}'))
    assert "gone: " in said and "has no commit '1234567890'" in said
    for name in ("code_tree", "code_base", "code_lines"):
        wrong = rows(BASE, f'{{key = "x", patch = "p.diff", set = {{{name} = "../../x"}}}}')
        assert f"there is no setting {name}" in refused(cli, mine, wrong, NO_GATE)
        cli("plan", "study.toml", "--set", f"{name}=../../x", cwd=mine, code=2)
    assert "lies outside the repository" in refused(cli, mine, rows(BASE, '{key = "x", patch = "../p.diff"}'))
    (mine / "out.diff").symlink_to(tmp_path / "p.diff")
    assert "lies outside the repository" in refused(cli, mine, rows(BASE, '{key = "x", patch = "out.diff"}'))
    assert "cannot be read" in refused(cli, mine, rows(BASE, '{key = "x", patch = "no.diff"}'))
    assert "one of `patch`" in refused(cli, mine, rows(BASE, '{key = "x", patch = "a.diff", commit = "main"}'))
    assert 'commits = "main..feature"' in refused(cli, mine, rows(BASE, ablate="[[ablate]]\n"))
    assert "contains no change" in refused(cli, mine, rows(BASE, ablate='[[ablate]]\npatch = "p.diff"\n'), "nothing\n")
    assert "expected a range" in refused(cli, mine, rows(BASE, ablate='[[ablate]]\ncommits = "main"\n'))
    own = 'name = "t"\ntitle = "T"\nvariation = [{key = "base"}, {key = "x", commit = "main"}]\n'
    assert "only for your own command or function" in refused(cli, mine, own)
    bare = tmp_path / "bare"
    bare.mkdir()
    assert "is not in a git repository" in refused(cli, bare, rows(BASE, '{key = "x", commit = "main"}'))
    git(bare, "init", "-q")
    assert "has no commit" in refused(cli, bare, rows(BASE, '{key = "x", commit = "main"}'))


def test_submodules_and_pointers_are_said(cli: Cli, mine: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    (other / "o.py").write_text("x = 1\n")
    commit(other, "Other")
    git(mine, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(other), "lib")
    commit(mine, "A submodule")
    text = rows(BASE, PATCHED)
    assert "lib is a submodule, exported as an empty folder" in refused(cli, mine, text, NO_GATE)
    (mine / "study.toml").write_text(rows(BASE, PATCHED, head='links = ["lib"]'))
    assert "2 runs: 2 missing" in cli("plan", "study.toml", cwd=mine).stdout
    git(mine, "rm", "-qf", "lib")
    (mine / ".gitattributes").write_text("*.bin filter=lfs\n")
    (mine / "w.bin").write_text("version https://git-lfs.github.com/spec/v1\n")
    commit(mine, "A pointer")
    assert "w.bin is a pointer of git LFS" in refused(cli, mine, text)


def test_a_part_that_needs_another_is_named_with_it(cli: Cli, mine: Path) -> None:
    git(mine, "checkout", "-qb", "feature")
    for number, line in enumerate(("first = 1", "second = first", "third = 3"), start=1):
        with (mine / ("net.py" if number < 3 else "other.py")).open("a") as file:
            file.write(f"{line}\n")
        commit(mine, f"Number {number}")
    said = refused(cli, mine, rows(BASE, ablate='[[ablate]]\ncommits = "main..feature"\n'))
    assert "Number 2 does not apply without" in said and "Number 1" in said.partition("without")[2]
    only = '[[ablate]]\ncommits = "main..feature"\nonly = true\n'
    assert "Number 2 does not apply without" in refused(cli, mine, rows(BASE, ablate=only))


# No run sees another run's files, and the working copy does not change, even after kill -9.


PROBE = """
import hashlib, json, pathlib, random
import lib
files = {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(pathlib.Path(".").rglob("*")) if p.is_file()
         and "__pycache__" not in p.parts}
pathlib.Path(f"mine-{random.random()}").write_text("a file that no other run may see")
whole = hashlib.sha256(json.dumps([files, lib.VALUE], sort_keys=True).encode()).hexdigest()
print(json.dumps({"acc": int(whole[:12], 16)}))
"""


def random_changes(folder: Path, number: int, seed: int) -> tuple[list[str], dict[str, int]]:
    """Write patches of random files and lines next to the study.

    Return the rows, and the number that a run of each row must print.
    """
    import random

    draw = random.Random(seed)
    (folder / "probe.py").write_text(PROBE)
    contents = {f"f{n}.txt": [f"{draw.random()}\n" for _ in range(30)] for n in range(5)}
    contents |= {"lib.py": ["VALUE = 0\n"], "probe.py": [PROBE], ".gitignore": ["runs/\n__pycache__/\n"]}
    for name, lines in contents.items():
        (folder / name).write_text("".join(lines))
    commit(folder, "Random files")
    entries, expected = [BASE], {"base": printed(contents)}
    for row in range(number):
        changed = {name: list(lines) for name, lines in contents.items()}
        changed["lib.py"] = [f"VALUE = {row + 1}\n"]
        for _ in range(draw.randint(1, 4)):
            lines = changed[f"f{draw.randrange(5)}.txt"]
            place = draw.randrange(len(lines))
            lines[place : place + draw.randrange(3)] = [f"{row} {draw.random()}\n" for _ in range(draw.randrange(3))]
        if draw.random() < 0.3:
            changed[f"new-{row}/n.txt"] = [f"new {row}\n"]
        patch = []
        for name, lines in changed.items():
            if lines != contents.get(name):
                patch.append(as_patch(name, contents.get(name), lines))
        (folder / "patches").mkdir(exist_ok=True)
        (folder / f"patches/{row}.diff").write_text("".join(patch))
        entries.append(f'{{key = "r{row}", patch = "patches/{row}.diff"}}')
        expected[f"r{row}"] = printed(changed)
    return entries, expected


def as_patch(name: str, old: list[str] | None, new: list[str]) -> str:
    import difflib

    lines = list(difflib.unified_diff(old or [], new, f"a/{name}" if old else "/dev/null", f"b/{name}"))
    return f"diff --git a/{name} b/{name}\n{'' if old else 'new file mode 100644' + chr(10)}{''.join(lines)}"


def printed(contents: dict[str, list[str]]) -> int:
    files = {name: hashlib.sha256("".join(lines).encode()).hexdigest() for name, lines in contents.items()}
    value = int(contents["lib.py"][0].split("=")[1])
    whole_ = hashlib.sha256(json.dumps([files, value], sort_keys=True).encode()).hexdigest()
    return int(whole_[:12], 16)


@pytest.mark.parametrize(
    "number", [pytest.param(40, marks=pytest.mark.slow), pytest.param(1000, marks=pytest.mark.nightly)]
)
def test_no_run_sees_the_files_of_another(cli: Cli, tmp_path: Path, number: int) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    git(mine, "init", "-q")
    entries, expected = random_changes(mine, number, seed=number)
    text = rows(*entries).replace("train.py --lr {lr} --seed {seed}", "probe.py").replace("base = {lr = 0.1}\n", "")
    (mine / "study.toml").write_text(text)
    before = whole(mine)
    # takes longer than the time limit of `cli`
    words = command("run", "study.toml", "--devices", "cpu:4", "--notes", "none")
    subprocess.run(words, cwd=mine, env=environment(), check=True, timeout=3600, capture_output=True)
    table = as_json(cli("report", "study.toml", "--format", "json", cwd=mine))
    assert {row["row"]: int(row["acc_test"]) for row in table} == expected
    assert whole(mine) == before


@pytest.mark.nightly
def test_a_kill_leaves_the_working_copy_as_it_was(cli: Cli, mine: Path) -> None:
    (mine / "train.py").write_text(TRAIN.replace('print("training")', "import time; time.sleep(1)"))
    commit(mine, "Slow")
    (mine / "net.py").write_text(NET + "# not committed\n")
    (mine / "new.py").write_text("# not tracked\n")
    (mine / "no-gate.diff").write_text(NO_GATE)
    (mine / "study.toml").write_text(rows(BASE, '{key = "p", patch = "no-gate.diff"}', head="seeds = 3"))
    before = whole(mine)
    for wait in (0.5, 1.5, 2.5, 4.0):
        words = command("run", "study.toml", "--devices", "cpu:2")
        process = subprocess.Popen(
            words, cwd=mine, env=environment(), start_new_session=True, stderr=subprocess.DEVNULL
        )
        time.sleep(wait)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert whole(mine) == before
    cli("run", "study.toml", "--devices", "cpu:2", cwd=mine)
    assert accuracies(cli, mine) == {"base": pytest.approx(4.02), "p": pytest.approx(2.02)}
    assert whole(mine) == before


RESUMING = """
import argparse, json, pathlib, time
from net import score
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--dir", type=pathlib.Path)
args = parser.parse_args()
gate = 2



state = args.dir / "state"
if not state.exists():
    state.write_text(str(score(args.lr)))
    print(json.dumps({"step": 1, "loss": 1.0, "checkpoint": True}), flush=True)
    time.sleep(600)
print(json.dumps({"acc": float(state.read_text()) + score(args.lr) + gate}))
""".lstrip()


def test_a_resume_has_the_tree_of_the_first_attempt_whatever_was_committed_since(cli: Cli, mine: Path) -> None:
    (mine / "train.py").write_text(RESUMING)
    commit(mine, "A trainer that resumes")
    patch = NO_GATE.replace("@@ -5,5 +5,5 @@", "@@ -6,5 +6,5 @@").replace(
        ' parser.add_argument("--seed", type=int, default=0)\n', ' parser.add_argument("--dir", type=pathlib.Path)\n'
    )
    (mine / "no-gate.diff").write_text(patch)
    text = rows(BASE, '{key = "p", patch = "no-gate.diff"}').replace("--seed {seed}", "--dir {folder}")
    (mine / "study.toml").write_text(text)
    process = subprocess.Popen(
        command("run", "study.toml", "--devices", "cpu:2"), cwd=mine, env=environment(), start_new_session=True
    )
    until = time.monotonic() + 240
    while len(list(mine.glob("runs/runs/*/attempts/0001/final/state"))) < 2 and time.monotonic() < until:
        time.sleep(0.2)
    time.sleep(1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (mine / "net.py").write_text(NET.replace("10", "30"))
    (mine / "README.md").write_text("Read me\n")
    commit(mine, "Three times the score")
    cli("run", "study.toml", "--devices", "cpu:2", cwd=mine)
    assert accuracies(cli, mine) == {"base": 4.0, "p": 2.0}, "no number of half old and half new code"
    assert {run["state"] for run in as_json(cli("plan", "study.toml", "--json", cwd=mine))} == {"stale"}
    (mine / "net.py").write_text(NET)
    assert {run["state"] for run in as_json(cli("plan", "study.toml", "--json", cwd=mine))} == {"finished"}
