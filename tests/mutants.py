"""Measure how many small faults in the core the tests detect.

    pip install pytest-cov
    python -m pytest -n 2 --cov --cov-branch --cov-context=test --cov-report= [more tests: -m slow PATH --cov-append]
    python -m tests.mutants --mutants 200 --out results.json

A mutant is the code with one operator, comparison, condition or number changed. For each mutant, the tests that reach
its line according to `.coverage` run in a copy of the tree, unit tests first. The mutant is killed if one of them
fails. The choice of mutants depends only on the seed and on the names and texts of definitions, so files may move
between two measurements.
"""

import argparse
import ast
import hashlib
import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
CORE = {  # folders and files by what their faults would affect
    "numbers": (
        "model", "experiments/training", "experiments/evaluation", "experiments/data/batching.py",
        "experiments/data/collate.py", "experiments/data/shapes.py",
        "ablations/extras/language_models/windows.py", "ablations/extras/parsing/evalb.py", "experiments/data/encoding",
        "reports/results",
    ),
    "identity": ("experiments/identity.py", "experiments/config", "ablations/planning"),
    "durability": ("experiments/store", "experiments/events", "experiments/jobs/attempts", "experiments/jobs/queue"),
    "statistics": (
        "reports/results/dunnett.py", "reports/results/resampling.py", "reports/results/significance.py",
    ),
}  # fmt: skip
COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.MatMult: ast.Mult,
}  # fmt: skip
MOST_TESTS = 25  # tests to run per mutant, at most
PATIENCE_S = 180  # limit of processor time, which detects an endless loop also on a loaded machine


class Mutant(NamedTuple):
    """One change of an expression.

    `place` is the index of the expression in `ast.walk` over the file's syntax tree.
    """

    area: str
    file: str
    definition: str
    place: int
    line: int
    before: str
    after: str


def changed(node: ast.AST) -> ast.AST | None:
    """Return the mutated form of an expression, or None if it has none."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=right) if type(op) in COMPARISONS:
            return ast.Compare(left, [COMPARISONS[type(op)]()], right)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            text = any(isinstance(side, ast.Constant | ast.JoinedStr) and not _number(side) for side in (left, right))
            return None if text else ast.BinOp(left, OPERATORS[type(op)](), right)
        case ast.BoolOp(op=op, values=values):
            return ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case ast.Constant(value=bool(value)):
            return ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            return ast.Constant(value + 1)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return ast.IfExp(test, orelse, body)
    return None


def _number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def mutants(area: str, path: Path) -> Iterator[Mutant]:
    """Yield all mutants of the bodies of a file's functions. Signatures and module constants are not changed."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {id(child): function.name for function in functions for line in function.body for child in ast.walk(line)}
    for place, node in enumerate(ast.walk(tree)):
        if id(node) in inside and (new := changed(node)) is not None:
            before, after = ast.unparse(node), ast.unparse(ast.fix_missing_locations(new))
            yield Mutant(area, str(path.relative_to(ROOT)), inside[id(node)], place, node.lineno, before, after)  # type: ignore[attr-defined]


def chosen(number: int, seed: int) -> list[Mutant]:
    """Choose the same number of mutants from each area, in the order of a hash that does not include file names."""

    def rank(mutant: Mutant) -> str:
        words = (seed, mutant.definition, mutant.before, mutant.after)
        return hashlib.sha256(repr(words).encode()).hexdigest()

    picked: list[Mutant] = []
    for area, places in CORE.items():
        files = [
            f for place in places for f in ([ROOT / place] if place.endswith(".py") else (ROOT / place).rglob("*.py"))
        ]
        found = sorted((mutant for file in files for mutant in mutants(area, file)), key=rank)
        picked += found[: number // len(CORE)]
    return picked


def covering() -> dict[str, dict[int, list[str]]]:
    """Read from `.coverage` the tests that execute each line, by file."""
    import coverage

    data = coverage.CoverageData(str(ROOT / ".coverage"))
    data.read()
    lines: dict[str, dict[int, list[str]]] = {}
    for file in filter(lambda name: Path(name).is_relative_to(ROOT), data.measured_files()):
        by_line = data.contexts_by_lineno(file)
        names = {line: [name.partition("|")[0] for name in tests if name] for line, tests in by_line.items()}
        lines[str(Path(file).relative_to(ROOT))] = names
    return lines


def outcome(mutant: Mutant, tests: list[str], tree: Path) -> str:
    """Return "killed", "survived" or "not reached" (no test executes the line)."""
    if not tests:
        return "not reached"
    file = tree / mutant.file
    source = file.read_text(encoding="utf-8")
    parsed = ast.parse(source)
    nodes = list(ast.walk(parsed))
    old, new = nodes[mutant.place], changed(nodes[mutant.place])
    for parent in nodes:
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
            elif isinstance(value, list) and any(item is old for item in value):
                value[[item is old for item in value].index(True)] = new
    file.write_text(ast.unparse(ast.fix_missing_locations(parsed)), encoding="utf-8")
    try:
        words = ["-x", "-n", "0", "-p", "no:cacheprovider", "-m", "", "--no-cov", *tests]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words],
            cwd=tree,
            capture_output=True,
            timeout=10 * PATIENCE_S,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (PATIENCE_S, PATIENCE_S)),
        )
        return "survived" if done.returncode == 0 else "killed"
    except subprocess.TimeoutExpired:  # the mutant waits forever
        return "killed"
    finally:
        file.write_text(source, encoding="utf-8")


def main() -> None:
    """Choose mutants, run their tests, and print the outcomes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--mutants", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    lines, picked = covering(), chosen(asked.mutants, asked.seed)
    trees: Queue[Path] = Queue()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(asked.at_once) as pool:
        for number in range(asked.at_once):
            tree = Path(folder, str(number))
            shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".venv*", ".git", "runs", ".*cache"))
            trees.put(tree)

        def run(mutant: Mutant) -> dict[str, Any]:
            tests = sorted(lines.get(mutant.file, {}).get(mutant.line, []))
            # the same choice every time if more than MOST_TESTS reach the line
            random.Random(asked.seed).shuffle(tests)
            tests.sort(key=lambda name: not name.startswith("tests/unit"))
            tree = trees.get()
            try:
                return {**mutant._asdict(), "outcome": outcome(mutant, tests[:MOST_TESTS], tree)}
            finally:
                trees.put(tree)

        results = []
        for result in pool.map(run, picked):
            results.append(result)
            print(
                f"{result['outcome']:12} {result['file']}:{result['line']} {result['before']} → {result['after']}",
                flush=True,
            )
    counts = {area: Counter(r["outcome"] for r in results if r["area"] == area) for area in CORE}
    print(json.dumps({"seed": asked.seed, "outcomes": counts}, indent=1))
    if asked.out:
        asked.out.write_text(json.dumps({"seed": asked.seed, "outcomes": counts, "mutants": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
