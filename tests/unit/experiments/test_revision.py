"""What a record says of a repository, by the answers that git gives (with git itself: test_provenance.py)."""

import hashlib
from pathlib import Path

import pytest

from experiments.store import provenance
from experiments.store.provenance import LARGEST_IN_DIFF, Revision

COMMIT = "c" * 40


@pytest.fixture
def git(monkeypatch, tmp_path):
    """Answers by the folder and the first words of a command; asked: what git was asked for. None: it fails."""
    answers, asked = {}, []

    def answer(folder, *words, ends_with=0):
        asked.append((Path(folder).name, *words))
        known = [text for (name, *first), text in answers.items() if (name, *first) == asked[-1][: 1 + len(first)]]
        return known[0] if known else None

    monkeypatch.setattr(provenance, "_git", answer)
    provenance._top.cache_clear()
    provenance._revision.cache_clear()
    yield answers, asked
    provenance._top.cache_clear()
    provenance._revision.cache_clear()


def repository(folder, answers, **more):
    """A folder that is a repository with these changes: `diff`, `new` names, `large` ones."""
    folder.mkdir(parents=True, exist_ok=True)
    answers[folder.name, "rev-parse", "--show-toplevel"] = f"{folder}\n"
    answers[folder.name, "rev-parse", "HEAD"] = f"{COMMIT}\n"
    answers[folder.name, "diff", "HEAD"] = more.get("diff", "")
    answers[folder.name, "ls-files"] = "".join(f"{name}\0" for name in more.get("new", ()))
    answers[folder.name, "diff", "--no-index"] = more.get("added", "")
    answers[folder.name, "status"] = more.get("large", "")
    return folder


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
    found = Revision("paper", commit, diff).facts()
    assert found == {"repository": "paper", "commit": commit, "dirty": dirty, "diff_digest": digest}


def test_no_repository_and_one_without_a_commit(git, tmp_path):
    answers, _ = git
    assert provenance._revision(tmp_path, ()) == Revision(None, None, "")
    provenance._top.cache_clear(), provenance._revision.cache_clear()
    answers[tmp_path.name, "rev-parse", "--show-toplevel"] = f"{tmp_path}\n"
    assert provenance._revision(tmp_path, ()) == Revision(None, None, "")


def test_changes_of_all_repositories_of_the_files_are_joined(git, tmp_path):
    answers, asked = git
    paper = repository(tmp_path / "paper", answers, diff="outer\n", new=["new.py"], added="+added\n")
    inner = repository(paper / "lib", answers, diff="inner\n")
    for path in (paper / "train.py", inner / "x.py", tmp_path / "apart.py"):
        path.write_text("")
    found = provenance._revision(paper, tuple(map(str, (paper / "train.py", inner / "x.py", tmp_path / "apart.py"))))
    assert found == Revision("paper", COMMIT, "outer\n+added\ninner\n")
    assert ("paper", "diff", "HEAD", "--", str(paper / "train.py")) in asked
    assert ("lib", "diff", "HEAD", "--", str(inner / "x.py")) in asked
    assert ("paper", "diff", "--no-index", "--", "/dev/null", "new.py") in asked
    assert not any(name == tmp_path.name and words[0] == "diff" for name, *words in asked), "it is in none"


@pytest.mark.parametrize("lost", [("diff", "HEAD"), ("ls-files",), ("status",)])
def test_what_git_does_not_tell_is_unknown(git, tmp_path, lost):
    answers, _ = git
    paper = repository(tmp_path / "paper", answers, diff="x\n")
    (paper / "small.py").write_text("")
    (paper / "data.csv").write_bytes(b"0" * (LARGEST_IN_DIFF + 1))
    paths = (str(paper / "small.py"), str(paper / "data.csv"))
    assert provenance._revision(paper, paths).diff == "x\n"
    provenance._revision.cache_clear()
    answers["paper", *lost] = None
    assert provenance._revision(paper, paths) == Revision("paper", COMMIT, None)


def test_a_large_file_is_named_and_a_folder_is_not_listed(git, tmp_path):
    answers, asked = git
    paper = repository(tmp_path / "paper", answers, large=" M data.csv\n!! more.csv\n")
    (paper / "data.csv").write_bytes(b"0" * (LARGEST_IN_DIFF + 1))
    (paper / "exact.csv").write_bytes(b"0" * LARGEST_IN_DIFF)
    found = provenance._changes(paper, [paper / "data.csv"])
    assert found == "# too large for this file:  M data.csv\n# too large for this file: !! more.csv\n"
    assert [words[0] for _, *words in asked] == ["status"], "nothing else is asked of it"
    asked.clear()
    assert provenance._changes(paper, [paper / "exact.csv"]) == ""
    assert [words[0] for _, *words in asked] == ["diff", "ls-files"]
    asked.clear()
    assert provenance._changes(paper, [paper]) == "" and [words[0] for _, *words in asked] == ["diff"]


def test_this_programs_files_are_its_own_only_where_a_repository_tracks_them(git):
    answers, _ = git
    provenance.tool_revision.cache_clear()
    try:
        assert provenance.tool() == {
            "version": provenance._version(provenance.DISTRIBUTION), "commit": None, "dirty": None, "diff_digest": None,
        }  # fmt: skip
        provenance.tool_revision.cache_clear()
        answers["store", "ls-files", "--error-unmatch"] = "provenance.py\n"
        answers["store", "rev-parse", "--show-toplevel"] = "/nowhere/checkout\n"
        answers["store", "rev-parse", "HEAD"] = f"{COMMIT}\n"
        assert provenance.tool()["commit"] == COMMIT
    finally:
        provenance.tool_revision.cache_clear()
    assert provenance.revision_of((), "", None) == Revision(None, None, "")
