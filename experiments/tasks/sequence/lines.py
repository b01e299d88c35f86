"""Outputs as a file, one per line."""

from collections.abc import Sequence
from pathlib import Path


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """Write lines in the given order. A line feed within a line is written as a blank."""
    path.write_text("".join(line.replace("\n", " ") + "\n" for line in lines), encoding="utf-8", newline="\n")


def read_lines(path: Path) -> list[str]:
    """Read lines of `write_lines`: only a line feed ends a line."""
    with path.open(encoding="utf-8", newline="\n") as file:
        return [line.removesuffix("\n") for line in file]
