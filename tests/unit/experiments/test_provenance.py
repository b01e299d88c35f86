"""Records name the user's repository for the user's files, our repository for ours, and imported versions."""

import platform
import subprocess
from importlib import metadata

import pytest

from experiments.run_spec import TrainerSpec
from experiments.store import provenance
from experiments.store.imports import local_files
from experiments.tasks.load import load_task

pytestmark = pytest.mark.process  # git's


def git(folder, *words):
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    done = subprocess.run(["git", "-C", folder, *identity, *words], capture_output=True, check=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """Make a repository with a committed trainer and another file."""
    folder = tmp_path / "our-paper"
    folder.mkdir()
    (folder / "trainer.py").write_text("import numpy\nimport json\nimport beside\nfrom yaml import load\n")
    (folder / "beside.py").write_text("x = 1\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    forget()
    return folder


def facts(folder, *names):
    forget()
    return provenance.revision_of(local_files(folder / name for name in names), str(folder / names[0]), None)


def forget():
    """Clear the cache of repositories, which a process reads once."""
    provenance._revision.cache_clear()


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
    found = provenance.revision_of((), "", repository)
    assert found.facts()["commit"] == git(repository, "rev-parse", "HEAD")
    assert provenance.revision_of((), "", None).commit is None


def test_a_built_in_task_is_this_programs(repository):
    ours = provenance.tool_revision()
    assert load_task("translation").code_paths() == ()
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
            "from dataclasses import dataclass\nfrom ablations_task import column, task\n"
            "if 0:\n    from .beside import x\n    from . import y\n"
            "@dataclass\nclass S:\n    lr: float = 0.1\n"
            "@task(S, columns=[column('a')])\ndef TASK(settings, context):\n    return {'a': 1.0}\n"
        )
    return folder


def test_nothing_is_said_of_another_programs_packages():
    assert provenance.versions(load_task("command").packages()) == {}


COMMANDS = {  # the file whose repository counts, and the program that runs it
    "../env/bin/python train.py": ("train.py", "../env/bin/python"),
    "{home}/env/bin/python3.12 -u {home}/our-paper/train.py": ("train.py", "{home}/env/bin/python3.12"),
    "env X=1 python train.py > log.txt": ("train.py", "python"),
    "../env/bin/torchrun --nproc-per-node=2 train.py": ("train.py", "../env/bin/torchrun"),
    "accelerate launch --config_file data.csv train.py": ("train.py", "accelerate"),
    "uv run train.py;": ("train.py", "uv"),
    "cat data.csv | python train.py": ("train.py", "python"),
    "python -m package": ("package/__main__.py", "python"),
    "python -m package.module --x": ("package/module.py", "python"),
    "python -c 'from train import main; main()'": ("train.py", "python"),
    "bash -c 'cd package && exec python module.py'": ("package/module.py", "python"),
    "bash run.sh": ("run.sh", "bash"),
    "./bare --x 1": ("bare", ""),
    "# it's a comment\npython train.py": ("train.py", "python"),
    "python - <<EOF\nprint('it')\nEOF": ("", ""),
    "python -c '" + "x" * 300 + "\n\n'": ("", ""),
    "python " + "x" * 300 + ".py": ("", ""),
    "python -m " + "x" * 300: ("", ""),
}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Make a repository of scripts, one of them with uncommitted changes, and an interpreter in another repository."""
    home = tmp_path_factory.mktemp("project")
    files = {
        "our-paper/train.py": "import beside\n", "our-paper/beside.py": "", "our-paper/run.sh": "python train.py\n",
        "our-paper/package/__init__.py": "", "our-paper/package/__main__.py": "", "our-paper/package/module.py": "",
        "our-paper/bare": "#!/usr/bin/env python\nimport beside\n", "our-paper/data.csv": "1,2\n",
        "our-paper/log.txt": "an old log", "env/bin/python": "", "env/bin/python3.12": "", "env/bin/torchrun": "",
        "env/pyvenv.cfg": "",
    }  # fmt: skip
    for name, text in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    for name in ("env", "our-paper"):
        git(home / name, "init", "-q")
        git(home / name, "add", ".")
        git(home / name, "commit", "-q", "-m", name)
    (home / "our-paper/train.py").write_text("import beside\nx = 2\n")
    forget()
    return home


@pytest.mark.parametrize(("command", "expected"), COMMANDS.items(), ids=[each[:40] for each in COMMANDS])
def test_the_code_of_a_command_is_its_script_and_not_its_interpreter(project, command, expected):
    home, command = project / "our-paper", command.replace("{home}", str(project))
    script, interpreter = expected
    task = load_task("command", str(home)).with_settings({}, TrainerSpec(command))
    assert task.script == (str(home / script) if script else "")
    assert not script or task.interpreter == interpreter.replace("{home}", str(project))
    found = provenance.revision_of(task.code_paths(), task.script, task.folder)
    assert (found.repository, found.commit) == ("our-paper", git(home, "rev-parse", "HEAD"))
    trains = script in ("run.sh", "train.py")
    assert ("x = 2" in found.diff) == (trains or not script)  # without a script, all of the study's folder
    names = {str(path.relative_to(home)) for path in task.code_paths()}
    assert script in names | {""} and "log.txt" not in names
    assert ("beside.py" in names) == (trains or script == "bare")


def test_a_script_in_no_repository_has_no_commit_though_its_interpreter_and_its_study_have(tmp_path, repository):
    (tmp_path / "train.py").write_text("")
    task = load_task("command", str(repository)).with_settings({}, TrainerSpec("python ../train.py beside.py"))
    assert provenance.revision_of(task.code_paths(), task.script, task.folder).commit is None


def test_files_of_several_repositories_and_large_ones(repository, monkeypatch):
    """A change in a submodule counts as a change of the trainer. Large data files are not stored with every run."""
    (repository / "lib").mkdir()
    (repository / "lib" / "inner.py").write_text("")
    git(repository / "lib", "init", "-q")
    git(repository / "lib", "add", ".")
    git(repository / "lib", "commit", "-q", "-m", "inner")
    assert facts(repository, "trainer.py", "lib/inner.py").facts()["dirty"] is False
    (repository / "lib" / "inner.py").write_text("y = 1\n")
    found = facts(repository, "trainer.py", "lib/inner.py")
    assert found.commit == git(repository, "rev-parse", "HEAD") and "y = 1" in found.diff
    (repository / "data.csv").write_bytes(b"0\n" * (1 << 20))
    monkeypatch.setenv("GIT_DIR", str(repository / "lib" / ".git"))  # this program is run by a hook of git
    large = facts(repository, "trainer.py", "data.csv")
    assert large.facts()["dirty"] and "data.csv" in large.diff and len(large.diff) < 1000
