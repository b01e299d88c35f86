"""The wheel works if the user has a package `model`, and in a folder with model/, reports/ and queue.py."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.unit.reports.test_extensions import DECLARED, PACKAGE

from .test_working_directory import occupied

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of an environment with the wheel. Dependencies come from the current environment."""
    home = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-index"]
    wheel = [*pip, "wheel", "--no-build-isolation", *offline, "--wheel-dir", str(home), str(_sources(home))]
    subprocess.run(wheel, check=True, capture_output=True)
    venv.create(home / "env", with_pip=False)
    python = home / "env" / "bin" / "python"
    theirs = Path(_run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    [file] = home.glob("transformer_ablations-*.whl")
    (theirs / "model").mkdir(parents=True)
    (theirs / "model" / "__init__.py").write_text("SIZE = 2\n")
    subprocess.run([*pip, "install", *offline, "--target", str(theirs), str(file)], check=True, capture_output=True)
    (theirs / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")  # .pth files in that folder are not read
    return python


def _sources(home: Path) -> Path:
    """Copy the files that git does not ignore, so that building writes nothing to the checkout."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if name.startswith(("ablations/", "model/", "experiments/", "reports/")) or "/" not in name:
            (home / "src" / name).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_file():
                (home / "src" / name).write_bytes((ROOT / name).read_bytes())
    return home / "src"


def _run(*argv: object, cwd: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        list(map(str, argv)), cwd=cwd, env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _command(installed: Path) -> Path:
    command = installed.with_name("ablations")
    if not command.exists():  # pip's --target puts scripts into another folder
        command.write_text(f"#!{installed}\nfrom ablations.cli.main import main\nmain()\n")
        command.chmod(0o755)
    return command


def test_an_installed_package_of_the_same_name_stays_the_users(installed: Path, tmp_path: Path) -> None:
    """The user's function imports the user's `model`, and our processes import ours.

    `ablations_task` can be imported directly, which editors need.
    """
    tops = _run(installed, "-P", "-c", "import ablations_task, model; print(model.SIZE)")
    assert tops.strip() == "2"
    command = _command(installed)
    _run(command, "new", "walk", cwd=tmp_path)
    trainer = tmp_path / "walk_task.py"
    text = trainer.read_text()
    trainer.write_text("import model\nassert model.SIZE == 2, model.__file__\n" + text)
    [row] = json.loads(_run(command, "run", "walk.toml", "--rows", "base", "--seeds", "1", "--json", cwd=tmp_path))
    assert row["n"] == 1 and row["accuracy_test"] > 0
    page = _run(command, "report", "walk.toml", "--rows", "base", "--seeds", "1", "--format", "html", cwd=tmp_path)
    assert "<style>" in page and "<script>" in page
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "__init__.py").touch()
    with pytest.raises(AssertionError, match=r"experiments/__init__.py hides this program's package"):
        _run(installed, "-c", "import ablations; ablations.load", cwd=tmp_path)


def test_studies_of_every_kind_in_an_occupied_folder(installed: Path, tmp_path: Path, tiny: Path) -> None:
    """Tests a built-in task, a function that imports the user's `model`, and a command whose script does."""
    where = _run(installed, "-P", "-c", "import ablations, experiments; print(experiments.__file__)")
    assert where.startswith(str(installed.parents[1])) and "/ablations/packages/" in where
    command = _command(installed)
    folder = occupied(tmp_path)
    (folder / "tiny.toml").write_text(tiny.read_text())
    for words in (["walk"], ["script", "--command"]):
        _run(command, "new", *words, cwd=folder)
    (folder / "model" / "__init__.py").write_text("SIZE = 1\n")
    trainer = folder / "walk_task.py"
    trainer.write_text("from model import SIZE\nimport queue\n" + trainer.read_text())
    for name, column in {"tiny.toml": "ppl", "walk.toml": "accuracy_test", "script.toml": "accuracy_test"}.items():
        if name == "script.toml":  # Python itself makes a script import from its own folder first
            for module in ("json.py", "random.py"):
                (folder / module).unlink()
        options = ("--rows", "base", "--seeds", "1", "--json")
        [row] = json.loads(_run(command, "run", name, *options, cwd=folder))
        assert row["n"] == 1 and row[column] > 0


def test_the_wheel_has_the_extras_without_their_tests(installed: Path) -> None:
    [file] = installed.parents[2].glob("transformer_ablations-*.whl")
    with zipfile.ZipFile(file) as wheel:
        packed = {name for name in wheel.namelist() if name.startswith("ablations/extras/")}
    kinds = (".py", ".toml", ".md")
    files = [path for path in (ROOT / "ablations" / "extras").rglob("*") if path.suffix in kinds and path.is_file()]
    assert packed == {str(path.relative_to(ROOT)) for path in files if "tests" not in path.parts}


def test_a_package_that_pip_installs_adds_a_command_a_layer_and_a_section(installed: Path, tmp_path: Path) -> None:
    """Tests the package of docs/extending.md."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "my_package.py").write_text(PACKAGE)
    project = '[project]\nname = "my-package"\nversion = "1.0"\n[tool.setuptools]\npy-modules = ["my_package"]\n'
    (source / "pyproject.toml").write_text(project + "\n".join(DECLARED))
    theirs = _run(installed, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--no-build-isolation", "--target", theirs, str(source)], check=True, capture_output=True)
    command = _command(installed)
    assert _run(command, "rows", "table3", cwd=tmp_path).split()[0] == "base"
    (tmp_path / "small.toml").write_text(
        'name = "small"\ntitle = "Small"\n[venue]\nname = "ACL"\n'
        '[base]\nmodel.encoder = "N * (self_attention, gated)"\n[[variation]]\nkey = "base"\n'
    )
    assert "base" in _run(command, "plan", "small.toml", cwd=tmp_path)
