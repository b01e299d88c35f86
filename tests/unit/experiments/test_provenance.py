"""The recorded code: the user's repository for the user's files, this program's for its own; versions by import."""

import platform
import subprocess
from importlib import metadata

import pytest

from experiments.store import provenance
from experiments.store.code import root_at
from experiments.tasks.load import load_task


def git(folder, *words):
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    done = subprocess.run(["git", "-C", folder, *identity, *words], capture_output=True, check=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """A trainer and a file beside it, committed."""
    folder = tmp_path / "our-paper"
    folder.mkdir()
    (folder / "trainer.py").write_text("import numpy\nimport json\nimport beside\nfrom yaml import load\n")
    (folder / "beside.py").write_text("x = 1\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    provenance._revision.cache_clear()
    return folder


def facts(folder, *names):
    provenance._revision.cache_clear()
    return provenance.revision_of(tuple(root_at(folder / name) for name in names), None)


def test_the_users_files_are_of_the_users_commit(repository):
    found = facts(repository, "beside.py", "trainer.py")
    assert found.facts() == {
        "repository": "our-paper", "commit": git(repository, "rev-parse", "HEAD"), "dirty": False, "diff_digest": None,
    }  # fmt: skip
    assert found.diff == ""


def test_uncommitted_changes_are_kept_such_that_the_files_can_be_had_again(repository, tmp_path):
    (repository / "beside.py").write_text("x = 2\n")
    (repository / "new.py").write_text("y = 3\n")
    (repository / "unrelated.txt").write_text("not of the trainer")
    found = facts(repository, "trainer.py", "beside.py", "new.py")
    assert found.facts()["dirty"] and found.facts()["diff_digest"] and "unrelated" not in found.diff
    git(tmp_path, "clone", "-q", str(repository), "again")
    subprocess.run(["git", "-C", tmp_path / "again", "apply", "-"], input=found.diff.encode(), check=True)
    for name in ("trainer.py", "beside.py", "new.py"):
        assert (tmp_path / "again" / name).read_bytes() == (repository / name).read_bytes()


def test_files_outside_of_any_repository_have_no_commit(tmp_path):
    (tmp_path / "trainer.py").write_text("")
    found = facts(tmp_path, "trainer.py").facts()
    assert found == {"repository": None, "commit": None, "dirty": None, "diff_digest": None}


def test_a_command_that_names_no_file_is_of_its_studys_repository(repository):
    found = provenance.revision_of((), repository)
    assert found.facts()["commit"] == git(repository, "rev-parse", "HEAD")
    assert provenance.revision_of((), None).commit is None


def test_a_built_in_task_is_this_programs(repository):
    ours = provenance.revision_of(load_task("translation").code["training"], repository)
    tool = provenance.tool()
    assert (ours.commit, tool["version"]) == (tool["commit"], metadata.version("transformer-ablations"))


def test_versions_are_those_of_what_the_code_imports(repository):
    task = load_task("trainer:TASK", str(_with_task(repository)))
    assert set(task.packages()) == {"numpy", "yaml"}
    found = provenance.versions(task.packages())
    assert found["python"] == platform.python_version() and found["numpy"] == metadata.version("numpy")
    assert found["yaml"] == metadata.version("PyYAML")
    built_in = provenance.versions(load_task("translation").packages())
    assert set(built_in) == {"python", "torch", "numpy", "sentencepiece", "sacrebleu"}


def _with_task(folder):
    with (folder / "trainer.py").open("a") as text:
        text.write(
            "from dataclasses import dataclass\nfrom experiments.tasks.own.function import column, task\n"
            "@dataclass\nclass S:\n    lr: float = 0.1\n"
            "@task(S, columns=[column('a')])\ndef TASK(settings, context):\n    return {'a': 1.0}\n"
        )
    return folder


def test_nothing_is_said_of_another_programs_packages():
    assert provenance.versions(load_task("command").packages()) == {}
