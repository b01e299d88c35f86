"""A record contains a repository's commit and the uncommitted changes of the code's files."""

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from experiments.store import provenance
from experiments.store.provenance import LARGEST_IN_DIFF, RepositoryState

COMMIT = "c" * 40
WHO = {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


@pytest.fixture(autouse=True)
def _nothing_is_remembered():
    provenance._revision.cache_clear()
    yield
    provenance._revision.cache_clear()


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], env=os.environ | WHO, capture_output=True, check=True)
    return done.stdout.decode().strip()


def repository(folder: Path, **files: str) -> str:
    """Make a repository with one commit of these files, named without ".py", and return the commit."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q")
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    git(folder, "add", *(f"{name}.py" for name in files))
    git(folder, "commit", "-qm", "All")
    return git(folder, "rev-parse", "HEAD")


@pytest.mark.parametrize(
    ("commit", "diff", "dirty", "digest"),
    [
        (COMMIT, "", False, None),
        (COMMIT, " \n", False, None),
        (COMMIT, "a change\n", True, hashlib.sha256(b"a change\n").hexdigest()[:16]),
        (COMMIT, None, None, None),
        (None, "", None, None),
        (None, "a change", None, None),
    ],
)
def test_whether_it_is_changed_is_known_only_of_a_commit_whose_changes_git_told(commit, diff, dirty, digest):
    found = RepositoryState("paper", commit, diff).facts()
    assert found == {"repository": "paper", "commit": commit, "dirty": dirty, "diff_digest": digest}


def test_no_repository_and_one_without_a_commit(tmp_path):
    assert provenance._revision(tmp_path, ()) == RepositoryState(None, None, "")
    provenance._revision.cache_clear()
    git(tmp_path, "init", "-q")
    assert provenance._revision(tmp_path, ()) == RepositoryState(None, None, "")


def test_changes_of_all_repositories_of_the_files_are_joined(tmp_path):
    paper = tmp_path / "paper"
    commit = repository(paper, train="x = 1\n")
    repository(paper / "lib", inner="y = 1\n")
    (paper / "train.py").write_text("x = 2\n")
    (paper / "new.py").write_text("n = 1\n")
    (paper / "lib" / "inner.py").write_text("y = 2\n")
    (tmp_path / "apart.py").write_text("z = 1\n")
    files = (paper / "train.py", paper / "new.py", paper / "lib" / "inner.py", tmp_path / "apart.py")
    found = provenance._revision(paper, tuple(map(str, files)))
    assert (found.repository, found.commit) == ("paper", commit)
    for line in ("-x = 1", "+x = 2", "+n = 1", "-y = 1", "+y = 2"):
        assert line in found.diff.splitlines()
    assert "z = 1" not in found.diff, "it is in no repository"


def test_a_large_file_is_named_and_not_in_the_diff(tmp_path):
    repository(tmp_path, train="x = 1\n")
    (tmp_path / "large.csv").write_text("0" * (LARGEST_IN_DIFF + 1))
    (tmp_path / "exact.csv").write_text("1" * LARGEST_IN_DIFF)
    found = provenance._revision(tmp_path, tuple(str(tmp_path / name) for name in ("large.csv", "exact.csv")))
    assert "# too large for this file: ?? large.csv" in found.diff.splitlines()
    assert "0" * 100 not in found.diff and "1" * 100 in found.diff


def test_files_count_only_where_the_repository_tracks_them(tmp_path):
    commit = repository(tmp_path, train="x = 1\n")
    (tmp_path / "new.py").write_text("n = 1\n")
    assert provenance._revision(tmp_path, (), tracked=tmp_path / "train.py").commit == commit
    assert provenance._revision(tmp_path, (), tracked=tmp_path / "new.py") == RepositoryState(None, None, "")
    assert provenance.revision_of((), "", None) == RepositoryState(None, None, "")
