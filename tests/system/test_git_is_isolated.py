"""No program of a repository or of the user's git configuration is executed, and no record depends on them."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from experiments.errors import UserError
from experiments.store import provenance
from experiments.store.repository import Repository

from .conftest import Cli, as_json, command, environment
from .test_code_rows import BASE, NET, NO_GATE, TRAIN, accuracies, commit, git, rows, whole

pytestmark = pytest.mark.process


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "train.py").write_text(TRAIN)
    (folder / "net.py").write_text(NET)
    (folder / ".gitignore").write_text("runs/\n__pycache__/\n")
    (folder / ".gitattributes").write_text("net.py filter=touch diff=touch\ntrain.py diff=touch\n")
    commit(folder, "The script")
    return folder


def arm(folder: Path, touched: Path) -> None:
    """Set every program in a repository's configuration to one that writes to the file `touched`."""
    program = folder.parent / "touch.sh"
    program.write_text(f'#!/bin/sh\necho "$0 $@" >> {touched}\ncat\n')
    program.chmod(0o755)
    executed = (
        "filter.touch.clean", "filter.touch.smudge", "filter.touch.process", "diff.touch.textconv",
        "diff.touch.command", "diff.external", "core.fsmonitor", "gpg.program", "core.pager", "core.editor",
        "core.sshCommand",
        "credential.helper", "uploadpack.packObjectsHook", "merge.touch.driver", "interactive.diffFilter",
    )  # fmt: skip
    for name in executed:
        git(folder, "config", name, str(program))
    settings = {
        "log.showSignature": "true", "diff.noprefix": "true", "color.ui": "always", "diff.mnemonicPrefix": "true",
        "filter.touch.required": "true", "core.untrackedCache": "true", "index.version": "4", "diff.renames": "copies",
        "log.follow": "true", "diff.algorithm": "patience", "core.quotePath": "true", "log.date": "raw",
    }  # fmt: skip
    for name, value in settings.items():
        git(folder, "config", name, value)
    for hook in ("post-index-change", "pre-commit", "post-checkout", "fsmonitor-watchman", "reference-transaction"):
        (folder / ".git/hooks" / hook).write_text(program.read_text())
        (folder / ".git/hooks" / hook).chmod(0o755)


SIGNED = "gpgsig -----BEGIN PGP SIGNATURE-----\n \n iQEzBAABCAAdFiEE\n -----END PGP SIGNATURE-----\n"


def sign(folder: Path) -> str:
    """Sign the last commit, so that log.showSignature starts a program. Return the new commit."""
    head, _, message = git(folder, "cat-file", "commit", "HEAD").partition("\n\n")
    written = folder.parent / "commit"
    written.write_text(f"{head}\n{SIGNED}\n{message}\n")
    signed = git(folder, "hash-object", "-t", "commit", "-w", str(written))
    git(folder, "update-ref", "refs/heads/main", signed)
    return signed


@pytest.mark.extra("agents")
@pytest.mark.extra("bundles")
@pytest.mark.extra("paper")
def test_no_program_of_a_repository_runs_and_it_stays_as_it_is(cli: Cli, mine: Path, tmp_path: Path) -> None:
    old = sign(mine)
    (mine / "train.py").write_text(TRAIN.replace("bonus = 1", "bonus = 2"))
    commit(mine, "A bonus")
    sign(mine)
    (mine / "train.py").write_text(TRAIN.replace("last = 0", "last = 100"))
    (mine / "no-gate.diff").write_text(NO_GATE)
    changes = f'{{key = "no-gate", patch = "no-gate.diff"}}, {{key = "old", commit = "{old}"}}'
    ablate = '[[ablate]]\ncommits = "main~1..main"\nseeds = 1\n'
    (mine / "study.toml").write_text(rows(BASE, changes, ablate=ablate, head="seeds = 1"))
    (mine / "paper.tex").write_text("% nothing\n")
    touched = tmp_path / "touched"
    arm(mine, touched)
    os.utime(mine / "net.py")  # git's index no longer knows that the file is unchanged
    before = whole(mine)
    plan = cli("plan", "study.toml", cwd=mine).stdout
    assert f"commit {old[:7]} The script" in plan and "uncommitted changes in train.py" in plan
    cli("run", "study.toml", "--devices", "cpu:2", cwd=mine)
    found = accuracies(cli, mine)
    assert (found["base"], found["no-gate"], found["old"]) == (104.01, 102.01, 4.01)
    assert f"commit {old[:7]} The script" in cli("report", "study.toml", cwd=mine).stdout
    as_json(cli("explain", "study.toml", "no-gate.acc", "--json", cwd=mine))
    cli("status", "study.toml", cwd=mine)
    cli("bundle", "study.toml", "--out", str(tmp_path / "table.tar.gz"), cwd=mine)
    for words in (["verify", "paper.tex"], ["explain", "study.toml", "old", "--full"], ["ledger"]):
        subprocess.run(command(*words), cwd=mine, env=environment(), capture_output=True)  # with any exit code
    assert whole(mine) == before and not touched.exists()


def recorded(folder: Path) -> str:
    provenance._revision.cache_clear()
    found = provenance._revision(folder, (str(folder),))
    assert found.diff is not None
    return found.diff


@pytest.mark.parametrize("content", [b"x = 2\n", "x = 'é'\n".encode("latin-1"), bytes(range(256)), b"x = 1\r\n", b""])
def test_the_recorded_diff_applies_whatever_the_configuration_says(mine: Path, tmp_path: Path, content: bytes) -> None:
    (mine / "new name.py").write_bytes(content + b"y = 1")
    git(mine, "add", "-N", "new name.py")
    arm(mine, tmp_path / "touched")
    (mine / "train.py").write_bytes(content)
    (mine / "net.py").unlink()
    (mine / ".gitignore").chmod(0o755)
    diff = recorded(mine)
    clean = tmp_path / "clean"
    git(tmp_path, "-c", "core.attributesFile=/dev/null", "clone", "-q", "--no-local", str(mine), str(clean))
    subprocess.run(["git", "apply"], cwd=clean, input=diff.encode(), check=True)
    expected = whole(mine)
    found = whole(clean)
    for name in ("train.py", "new name.py", ".gitignore"):
        assert found[name] == expected[name]
    assert "net.py" not in found and not (tmp_path / "touched").exists()


def test_a_file_that_only_a_filter_can_compare_is_named(cli: Cli, mine: Path, tmp_path: Path) -> None:
    arm(mine, tmp_path / "touched")
    assert Repository(mine).uncommitted() == []
    (mine / "net.py").write_text(NET + "# edited\n")
    (mine / "study.toml").write_text(rows(BASE, '{key = "p", commit = "main"}'))
    said = cli("plan", "study.toml", cwd=mine, code=2).stderr
    assert "net.py" in said and "the git filter touch" in said and "git add" in said
    assert "net.py" in recorded(mine) and "edited" not in recorded(mine)
    git(mine, "config", "--unset", "filter.touch.process")
    # git compares a file by content if it is as new as the index
    os.utime(mine / "net.py", (1_000_000_000, 1_000_000_000))
    git(mine, "-c", "filter.touch.clean=sed s/10/20/", "add", "net.py")
    (tmp_path / "touched").unlink(missing_ok=True)
    repository = Repository(mine)  # the content that git would commit
    (name,) = [name for path, _, name in repository.entries(repository.nothing, repository.base()) if path == "net.py"]
    assert repository.git("cat-file", "blob", name).decode() == NET.replace("10", "20") + "# edited\n"
    assert not (tmp_path / "touched").exists()


def test_line_ends_that_attributes_ask_for_are_no_change(mine: Path) -> None:
    (mine / ".gitattributes").write_text("*.py text eol=crlf\n")
    commit(mine, "Line ends")
    (mine / "net.py").write_bytes(NET.replace("\n", "\r\n").encode())
    assert Repository(mine).uncommitted() == []
    (mine / "net.py").write_bytes(NET.replace("\n", "\r\n").encode() + b"y = 1\r\n")
    assert [one.path for one in Repository(mine).uncommitted()] == ["net.py"]


def test_a_copied_repository_a_linked_working_copy_and_a_shallow_clone_are_read(mine: Path, tmp_path: Path) -> None:
    commit(mine, "Nothing") if git(mine, "status", "--porcelain") else None
    shutil.copytree(mine, tmp_path / "copied")
    git(mine, "worktree", "add", "-q", str(tmp_path / "linked"), "-b", "side")
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{mine}", str(tmp_path / "shallow"))
    git(mine, "pack-refs", "--all")
    (tmp_path / "linked/train.py").write_text("pass\n")
    trees = {name: Repository(tmp_path / name) for name in ("mine", "copied", "linked", "shallow")}
    assert len({one.head for one in trees.values()}) == 1
    assert [one.uncommitted() != [] for one in trees.values()] == [False, False, True, False]
    assert trees["mine"].commit("side") == trees["mine"].head
    with pytest.raises(UserError, match="has no commit 'nowhere'"):
        trees["linked"].commit("nowhere")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a repository to another user")
def test_a_repository_of_another_user_needs_no_permission(mine: Path) -> None:
    for path in (mine, *mine.rglob("*")):
        os.lchown(path, 12345, 12345)
    refused = subprocess.run(["git", "status"], cwd=mine, capture_output=True, text=True)
    assert "dubious ownership" in refused.stderr
    assert Repository(mine).uncommitted() == [] and recorded(mine) == ""


def test_a_repository_that_cannot_be_read_says_so(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: "objects" not in str(path))
    with pytest.raises(UserError, match=r"cannot be read.*chmod"):
        Repository(mine)


def test_a_pipe_in_place_of_a_tracked_file_is_no_file(mine: Path) -> None:
    (mine / "net.py").unlink()
    os.mkfifo(mine / "net.py")
    repository = Repository(mine)
    assert [(one.path, one.mode) for one in repository.uncommitted()] == [("net.py", "0")]
    assert "net.py" not in [path for path, *_ in repository.entries(repository.nothing, repository.base())]


def test_the_tree_is_that_of_git(mine: Path) -> None:
    """If no attribute changes content, `git add -u` and `git write-tree` make the same tree."""
    (mine / ".gitattributes").write_text("")
    commit(mine, "No attributes")
    (mine / "sub").mkdir()
    (mine / 'sub/[a] "b"\\c.txt').write_text("1")
    (mine / "link").symlink_to("sub")
    commit(mine, "Names")
    (mine / 'sub/[a] "b"\\c.txt').write_text("2")
    (mine / "link").unlink()
    (mine / "link").symlink_to("train.py")
    (mine / "train.py").unlink()
    (mine / "train.py").mkdir()
    (mine / "train.py/now.py").write_text("x = 1\n")
    (mine / "net.py").chmod(0o755)
    git(mine, "add", "train.py")
    ours = Repository(mine).base()
    git(mine, "add", "-u")
    assert git(mine, "write-tree") == ours
    assert hashlib.sha1(b"tree 0\0").hexdigest() == Repository(mine).nothing
