"""Which edits count as changed code."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.store import code
from experiments.tasks.load import load_task

TASKS = ("translation", "parsing")
SOURCE = b'''
"""About the module."""
from __future__ import annotations
import math  # of Python's
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from model.stack import Stack

class Norm:
    """What it is."""
    eps: float = 1e-6

    def scale(self, x: float, *, by: "int | None" = None) -> float:
        """The formula."""
        # why so
        return math.sqrt(x + self.eps) * (by or 1)
'''
PROSE = {
    "a comment": (b"# why so", b"# another reason"),
    "the module's docstring": (b"About the module.", b"Of the module."),
    "a docstring": (b"The formula.", b""),
    "an annotation": (b'"int | None"', b"object"),
    "a field's annotation": (b"eps: float", b"eps: object"),
    "the result's annotation": (b") -> float:", b"):"),
    "what only the checker imports": (b"from model.stack import Stack", b"from model.config import ModelConfig"),
    "layout": (b"    return math", b"    return  math"),
}
CODE = {
    "a number": (b"1e-6", b"1e-5"),
    "a default": (b"= None", b"= 2"),
    "an operator": (b"x + self", b"x - self"),
    "a name": (b"sqrt", b"exp"),
    "what is imported": (b"import math", b"import cmath as math"),
}


@pytest.mark.parametrize("change", PROSE.values(), ids=PROSE)
def test_prose_does_not_count(change: tuple[bytes, bytes]) -> None:
    edited = SOURCE.replace(*change)
    assert edited != SOURCE and code.parse(edited) == code.parse(SOURCE)


@pytest.mark.parametrize("change", CODE.values(), ids=CODE)
def test_code_counts(change: tuple[bytes, bytes]) -> None:
    edited = SOURCE.replace(*change)
    assert edited != SOURCE and code.parse(edited).digest != code.parse(SOURCE).digest


def test_a_docstring_that_is_read_counts() -> None:
    reader = b'"""Usage: train LR"""\nimport docopt\nprint(docopt.docopt(__doc__))\n'
    assert code.parse(reader).digest != code.parse(reader.replace(b"LR", b"RATE")).digest


def test_what_is_no_python_counts_by_its_bytes(tmp_path: Path) -> None:
    for name, text in (("train.sh", "# a comment\ntrue\n"), ("torn.py", "def (:  # a comment\n")):
        file = tmp_path / name
        file.write_text(text)
        before = code.code_digest([str(file)])
        file.write_text(text.replace("a comment", "another"))
        assert code.code_digest([str(file)]) != before


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of this program's source, for the digests."""
    for package in ("model", "experiments"):
        shutil.copytree(code.ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(code, "ROOT", tmp_path)
    return tmp_path


def digests(task: str) -> dict[str, str]:
    loaded = load_task(task)
    return code.code_digests({"training": loaded.training_code, **loaded.evaluation_code})


@pytest.mark.parametrize("task", TASKS)
def test_a_docstring_edited_in_every_file_leaves_nothing_stale(copy: Path, task: str) -> None:
    before, edited = digests(task), 0
    for file in copy.rglob("*.py"):
        text = file.read_text("utf-8")
        found = next((node for node in ast.walk(ast.parse(text)) if _docstring(node)), None)
        if found is not None:
            lines = text.splitlines(keepends=True)
            row = found.body[0].lineno - 1
            lines[row] = lines[row].replace('"""', '"""Edited. ', 1)
            file.write_text("".join(lines) + "# edited\n", "utf-8")
            edited += 1
    assert edited > 150
    assert digests(task) == before


def _docstring(node: ast.AST) -> str | None:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return ast.get_docstring(node) if isinstance(node, documented) else None


EDITS = {  # file, what is edited, the parts that become stale
    "a metric": ("experiments/evaluation/score/translations.py", "CHRF()", "CHRF(word_order=2)", {"score"}),
    "EVALB": ("experiments/evaluation/score/evalb/score.py", "100 * ", "99 * ", {"score"}),
    "the search": ("experiments/evaluation/decode/finished.py", "(5 +", "(6 +", {"decode"}),
    "the loss": ("experiments/training/loss.py", "1 - ", "2 - ", {"training"}),
    "the network": ("model/parts/positions.py", "10000", "9999", {"training", "likelihood", "decode"}),
    "the queue": ("experiments/jobs/queue/states.py", "waiting", "queued", set()),
    "storage": ("experiments/store/sealed.py", "indent=1", "indent=2", set()),
}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edit_marks_the_parts_that_it_can_change(
    copy: Path, task: str, edit: tuple[str, str, str, set[str]]
) -> None:
    name, old, new, expected = edit
    before, file = digests(task), copy / name
    text = file.read_text("utf-8")
    assert old in text
    file.write_text(text.replace(old, new), "utf-8")
    of_this_task = expected - ({"score"} if ("evalb" in name) != (task == "parsing") else set())
    after = digests(task)
    assert {part for part in before if before[part] != after[part]} == of_this_task


def test_a_damaged_cache_costs_only_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    roots = ("model.parts.softmax",)
    first = code.code_digest(roots)
    [cache] = (tmp_path / "ablations").iterdir()
    for damage in (b"", b"{}", b"[1]", cache.read_bytes()[:-5], cache.read_bytes().replace(b"1", b"2")):
        cache.write_bytes(damage)
        assert code.code_digest(roots) == first
    (tmp_path / "ablations").chmod(0o500)
    assert code.code_digest(roots) == first
    monkeypatch.setenv("XDG_CACHE_HOME", "nowhere")
    monkeypatch.chdir(tmp_path)
    assert code.code_digest(roots) == first and not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("version", ["3.12", "3.13"])
@pytest.mark.process
def test_another_python_gives_the_same_digest(version: str) -> None:
    found = shutil.which(f"python{version}")
    if found is None or subprocess.run([found, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"no Python {version} here")
    text = Path(code.__file__).read_text("utf-8")
    start = text.index("_SKIPPED = ")
    body = text[start : text.index("\n", start)] + "\n" + text[text.index("def _plain") : text.index("def _imports")]
    program = (
        "import ast, hashlib, sys\nfrom typing import Any\nfrom collections.abc import Iterator\n" + body + "\n"
        "print(hashlib.sha256(','.join(_plain(ast.parse(open(sys.argv[1]).read()), True)).encode()).hexdigest())\n"
    )
    for file in ("experiments/config.py", "model/sublayers/attention.py", "experiments/training/trainer.py"):
        done = subprocess.run([found, "-c", program, str(code.ROOT / file)], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == code.parse((code.ROOT / file).read_bytes()).digest
    assert sys.version_info >= (3, 11)
