"""Outputs as a file, a line each."""

from collections.abc import Sequence
from pathlib import Path


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """In the order given. A line feed within a line is written as a blank."""
    path.write_text("".join(line.replace("\n", " ") + "\n" for line in lines), encoding="utf-8", newline="\n")


def read_lines(path: Path) -> list[str]:
    """What `write_lines` wrote: only a line feed ends a line."""
    with path.open(encoding="utf-8", newline="\n") as file:
        return [line.removesuffix("\n") for line in file]
