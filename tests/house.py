"""Report the size and the structure of the product: `python -m tests.house`, which `make check` runs.

It prints, for the core and for each extra, the number of files and their lines of code (without blank lines, comments
and docstrings). It also prints the share of public names that have a docstring, and circular imports between files. The
exit code is 1 if there is a circular import or if too few public names have a docstring. Lines and files are not
limited.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import grimp
import networkx

ROOT = Path(__file__).parents[1]
PACKAGES = ("ablations", "model", "experiments", "reports")
EXTRAS = ROOT / "ablations" / "extras"  # one folder per optional feature; all other files are the core
LEAST_DOCUMENTED = 0.91
_FILE = re.compile(r"[\w/.-]+\.(?:py|toml|md)\b")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source: str) -> int:
    """Return the number of lines with code, without blank lines, comments and docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Definition | ast.Module) and ast.get_docstring(node, clean=False) is not None:
            prose = node.body[0]
            lines.difference_update(range(prose.lineno, (prose.end_lineno or prose.lineno) + 1))
    return len(lines)


def public(body: list[ast.stmt]) -> Iterator[Definition]:
    """Yield public functions and classes, and the public methods of those classes.

    Skip definitions inside functions.
    """
    for node in body:
        if isinstance(node, Definition) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public(node.body)


def circles() -> list[list[str]]:
    """Return groups of files that import each other, including imports for annotations only."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    imports = networkx.DiGraph((a, b) for a in graph.modules for b in graph.find_modules_directly_imported_by(a))
    return [sorted(circle) for circle in networkx.strongly_connected_components(imports) if len(circle) > 1]


def named_files(page: str) -> list[str]:
    """Return the files that a page names.

    A name without a folder belongs to the folder of the previous name in the same table cell.
    """
    found = []
    for line in page.splitlines():
        for cell in line.split(" | "):
            folder = Path()
            for name in _FILE.findall(cell):
                folder = Path(name).parent if "/" in name or name == "pyproject.toml" else folder
                found.append(str(folder / Path(name).name))
    return found


def part_of(file: Path) -> str:
    """Return the part of the product that a file belongs to: "core", or "extra NAME"."""
    inner = file.relative_to(EXTRAS).parts if file.is_relative_to(EXTRAS) else ()
    return f"extra {inner[0]}" if len(inner) > 1 else "core"


def main() -> int:
    """Print the report. Return 1 for a circular import or too few docstrings, else 0."""
    files = [path for top in PACKAGES for path in sorted((ROOT / top).rglob("*.py"))]
    sources = {path: path.read_text(encoding="utf-8") for path in files if "tests" not in path.parts}
    names = [node for source in sources.values() for node in public(ast.parse(source).body)]
    documented = sum(ast.get_docstring(node) is not None for node in names) / len(names)
    round_ = circles()
    counts: dict[str, list[int]] = {"core": []}
    for path, text in sources.items():
        counts.setdefault(part_of(path), []).append(code_lines(text))
    for part, lines in sorted(counts.items()):
        print(f"{part}: {sum(lines):,} lines of code in {len(lines)} files;")
    print(f"{documented:.1%} of {len(names):,} public names have a docstring (at least {LEAST_DOCUMENTED:.0%});")
    print(f"{len(round_)} circular imports" + "".join(f"\n  {' ↔ '.join(circle)}" for circle in round_))
    return int(documented < LEAST_DOCUMENTED or bool(round_))


if __name__ == "__main__":
    sys.exit(main())
