"""The watcher of a run's imports records the right files, and the user's code cannot see it."""

import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from experiments.tasks.own.run_code import environment, imported_files, watched

from .conftest import Cli

pytestmark = pytest.mark.process

SCRIPT = """
import importlib.util, multiprocessing, os, runpy, signal, sys
sys.path[:0] = ["lib", "links", "packed.zip", "old"]
import package.module, linked, zipped, sourceless, installed
spec = importlib.util.spec_from_file_location("by_path", "by_path.py")
spec.loader.exec_module(importlib.util.module_from_spec(spec))
runpy.run_path("run_path.py")
exec(compile(open("executed.py").read(), "executed.py", "exec"))
exec("value = 1")
open("read_only.py").read()

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=package.module.work)
    process.start()
    process.join()
    END
"""
FILES = {
    "lib/package/__init__.py": "",
    "lib/package/module.py": "def work():\n    import only_in_a_child\n",
    "lib/only_in_a_child.py": "",
    "elsewhere/linked.py": "",
    "by_path.py": "",
    "run_path.py": "",
    "executed.py": "",
    "read_only.py": "",
    "results/generated.py": "",
    "env/site-packages/installed.py": "",
}


def run(script: Path, *words: str, code: int = 0) -> str:
    """Run a script as a run's command, and return its standard error."""
    given = environment() | {"PYTHONPYCACHEPREFIX": str(script.parent / "cache")}
    done = subprocess.run(
        [*(words or [sys.executable]), script.name], cwd=script.parent, env=given, capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    return done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    for name, text in FILES.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    (project / "links").symlink_to("elsewhere")
    (project / "old").mkdir()
    (project / "sourceless.py").touch()
    compiled = "import py_compile; py_compile.compile('sourceless.py', 'old/sourceless.pyc', 'gone.py')"
    subprocess.run([sys.executable, "-c", compiled], cwd=project, check=True)
    (project / "sourceless.py").unlink()
    with zipfile.ZipFile(project / "packed.zip", "w") as packed:
        packed.writestr("zipped.py", "")
    return project


@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)", "pass"])
def test_every_module_is_recorded_however_it_is_imported_and_however_the_process_ends(project: Path, end: str) -> None:
    script = project / "train.py"
    lead = 'import sys; sys.path[:0] = ["env/site-packages", "results"]; import generated\n'
    script.write_text(lead + SCRIPT.replace("END", end))
    expected = {"train.py", "elsewhere/linked.py", "packed.zip", "old/sourceless.pyc", *FILES}
    expected -= {"read_only.py", "results/generated.py", "env/site-packages/installed.py"}
    code = -signal.SIGKILL if "SIGKILL" in end else 0
    for number in range(2):  # the second run uses cached bytecode
        attempt = project / f"results/{number}"
        attempt.mkdir()
        assert imported_files(attempt) is None
        with watched(attempt, project, [project / "results"]):
            assert run(script, code=code) == ""
        assert imported_files(attempt) == {project.resolve() / name for name in expected}


def test_the_users_code_does_not_see_the_watcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "look.py").write_text(
        "import sys\nprint(sorted({*sys.modules} - {'atexit'}), sys.path, len(sys.meta_path), file=sys.stderr)\n"
        "try:\n    import sitecustomize\nexcept ImportError as error:\n    print(error, file=sys.stderr)\n"
    )
    without = run(tmp_path / "look.py")
    assert "No module named 'sitecustomize'" in without or "sitecustomize" in without.splitlines()[0]
    with watched(tmp_path, tmp_path, []):
        assert run(tmp_path / "look.py") == without
    assert imported_files(tmp_path) == {tmp_path.resolve() / "look.py"}
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("OWN = 1\nimport json\n")
    (tmp_path / "look.py").write_text(
        "import json.decoder, sitecustomize, sys\nprint(sitecustomize, file=sys.stderr)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(own))
    without = run(tmp_path / "look.py")
    with watched(tmp_path, tmp_path, []):
        assert run(tmp_path / "look.py") == without and str(own) in without


def test_other_code_is_refused_also_from_cached_bytecode(tmp_path: Path) -> None:
    tree, attempt = tmp_path / "runs/tree", tmp_path / "runs"
    tree.mkdir(parents=True)
    (tmp_path / "net.py").write_text("")
    (tree / "net.py").write_text("")
    (tree / "train.py").write_text(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport net\n")
    run(tree / "train.py")  # writes the bytecode
    with watched(attempt, tree, [attempt], tmp_path):
        assert f"{tmp_path.resolve()}/net.py lies in the working copy" in run(tree / "train.py", code=1)
        assert (attempt / "watch/imported-elsewhere.txt").read_text() == f"{tmp_path.resolve()}/net.py\n"
        (tree / "train.py").write_text("import net\n")
        run(tree / "train.py")
    assert imported_files(attempt) == {tree.resolve() / "train.py", tree.resolve() / "net.py"}


def test_a_report_that_is_no_file_is_no_report(tmp_path: Path) -> None:
    (tmp_path / "look.py").write_text("")
    (tmp_path / "watch").mkdir()
    os.mkfifo(tmp_path / "watch/modules.txt")
    with watched(tmp_path, tmp_path, []):
        run(tmp_path / "look.py")
    assert imported_files(tmp_path) is None


FUNCTION = """
from dataclasses import dataclass
from ablations_task import column, task
import net

@dataclass
class Settings:
    lr: float = 0.1

@task(Settings, columns=[column("acc", "acc")])
def TASK(settings, context):
    import late
    return {"acc": 1}
"""


@pytest.mark.parametrize("kind", ["command", "function"])
def test_an_attempt_has_the_files_that_its_trainer_imported(cli: Cli, tmp_path: Path, kind: str) -> None:
    script = tmp_path / "walking.py"
    for name in ("net.py", "late.py", "never.py"):
        (tmp_path / name).write_text("")
    if kind == "command":
        script.write_text("import net, late, os\nprint('{\"acc\": 1}', flush=True)\nos._exit(0)\n")
        head = f'command = "{sys.executable} walking.py"\nmetric = [{{name = "acc"}}]\n'
    else:
        script.write_text(FUNCTION)
        head = 'task = "walking:TASK"\n'
    (tmp_path / "study.toml").write_text(f'name = "w"\ntitle = "W"\n{head}variation = [{{key = "base"}}]\n')
    cli("run", "study.toml", "--devices", "cpu:1", "--seeds", "1", cwd=tmp_path)
    (attempt,) = tmp_path.glob("runs/runs/*/attempts/0001")
    assert imported_files(attempt) == {tmp_path.resolve() / name for name in ("walking.py", "net.py", "late.py")}
