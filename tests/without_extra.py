"""Show that the core works without an extra: `python -m tests.without_extra [NAME | --together] [--all]`.

Copies the tracked files without the extra's folder, and checks in the copy that:

- `ablations --help` lists none of the extra's commands;
- names that the extra added are refused with the list of installed names;
- no other module imports the extra;
- a subset of the everyday tests passes (with --all, all everyday tests).

Without NAME, the day of the commit selects the extra. CI therefore checks every extra within as many days as there are
extras, and checks the same extra again for the same commit. With --together, the copy has no extras.
"""

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = Path("ablations") / "extras"
DAY_S = 86_400
SUBSET = (
    "tests/unit/test_docs.py",
    "tests/unit/test_architecture.py",
    "tests/unit/ablations/test_options.py",
    "tests/unit/ablations/test_study_file.py",
    "tests/unit/reports/test_extensions.py",
)
# A program that loads objects by kind and name, and prints the message of each one that is refused.
REFUSED = """
import sys
import tempfile
from pathlib import Path
import ablations
from experiments.errors import UserError
from experiments.jobs.engines.by_name import engine_class
from experiments.tasks.load import load_task
from experiments.tracking.sinks.sink import check_sink
from model.config import ModelConfig
from ablations.study.sections import section_named
from ablations.study.study import load_study

def load_row(name):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "study.toml"
        file.write_text(f'name = "x"\\ntitle = "X"\\n[[variation]]\\nkey = "base"\\n{name} = []\\n')
        load_study(str(file))

KINDS = {
    "tasks": load_task, "sinks": check_sink, "engines": engine_class, "sections": section_named,
    "layers": lambda name: ModelConfig(encoder=name), "changes": load_row,
}
for kind, name in (word.split(":") for word in sys.argv[1:]):
    try:
        KINDS[kind](name)
    except (UserError, ValueError) as error:
        print(f"refused {kind}:{name} {error}")
"""


def in_turn(names: list[str]) -> str:
    """Return the extra that the day of the commit selects, or the first one if there is no repository."""
    seconds = _git("log", "-1", "--format=%ct") or "0"
    return names[int(seconds) // DAY_S % len(names)]


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout


def copy_without(names: Sequence[str], folder: Path) -> None:
    """Copy the files of the working tree that git tracks, except the folders of these extras."""
    for file in filter(None, _git("ls-files", "-z").split("\0")):
        source, target = ROOT / file, folder / file
        if source.is_file() and not any(Path(file).is_relative_to(EXTRAS / name) for name in names):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


class Copy:
    """A copy of the project in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, *words: str, code: int | None = 0) -> str:
        """Run Python in the copy and return its output. Raise AssertionError for another exit code than `code`."""
        environment = {**os.environ, "PYTHONPATH": str(self._folder), "COLUMNS": "200"}
        done = subprocess.run(
            [sys.executable, *words], cwd=self._folder, env=environment, capture_output=True, text=True, check=False
        )
        output = done.stdout + done.stderr
        assert code is None or done.returncode == code, f"{' '.join(words)}: exit {done.returncode}\n{output[-6000:]}"
        return output


def check(names: Sequence[str], everything: bool = False) -> None:
    """Check the core without these extras. Raise AssertionError if a check fails."""
    declared = [tomllib.loads((ROOT / EXTRAS / name / "extra.toml").read_text(encoding="utf-8")) for name in names]
    with tempfile.TemporaryDirectory(prefix="without-") as folder:
        copy_without(names, Path(folder))
        copy = Copy(Path(folder))
        for command in commands_of(declared):
            assert f"│ {command} " not in copy.run("-m", "ablations", "--help"), command
            refused = copy.run("-m", "ablations", command, code=2)
            assert f"There is no command {command!r}" in refused and "plan" in refused, refused
            print(f"refused command {command}")
        kinds = ("tasks", "sinks", "engines", "sections", "layers", "changes")
        named = [f"{kind}:{one}" for each in declared for kind in kinds for one in each.get(kind, ())]
        refused = copy.run("-c", REFUSED, *named) if named else ""
        assert all(f"refused {one} " in refused for one in named), refused
        print(refused, end="")
        files = sorted(Path(folder).rglob("*.py"))
        importing = [str(file) for file in files if any(imports_extra(file, name) for name in names)]
        assert not importing, f"these files import a deleted extra: {', '.join(importing)}"
        tests = () if everything else SUBSET
        print(copy.run("-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)[-3000:])


def imports_extra(file: Path, name: str) -> bool:
    """Return whether a module imports the extra at import time. Imports inside functions are allowed."""
    found: set[str] = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return any(f"{module}.".startswith(f"ablations.extras.{name}.") for module in found)


def commands_of(declared: Sequence[dict[str, dict[str, str]]]) -> list[str]:
    """Return the names of the commands that extras add."""
    code = "import sys; from model.extensions import load; print(*(n for p in sys.argv[1:] for n in load(p)))"
    places = [place for each in declared for place in each.get("commands", {}).values()]
    found = subprocess.run(
        [sys.executable, "-c", code, *places], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return found.split()


def main() -> None:
    """Check the extra that the command line names, the one whose turn it is, or all of them at once."""
    names = sorted(file.parent.name for file in (ROOT / EXTRAS).glob("*/extra.toml"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", choices=names)
    parser.add_argument("--together", action="store_true", help="delete all extras at once")
    parser.add_argument("--all", action="store_true", help="run all everyday tests, not a subset")
    asked = parser.parse_args()
    if asked.together and asked.name:
        parser.error("--together deletes all extras: leave out the name")
    deleted = names if asked.together else [asked.name or in_turn(names)]
    print(f"without {', '.join(deleted)}:", flush=True)
    check(deleted, asked.all)


if __name__ == "__main__":
    main()
