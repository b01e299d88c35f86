"""The way to the terminal: control characters in names, paths, logs and errors are shown, never sent.

A row's label or a line of a log may come from somebody else, and a terminal obeys what it is sent: it can be told to
hide text, to rename its window, to answer as if typed. `guard` puts one filter on standard output and standard error.
What this program itself sends (colours of --help, a line that is written over) goes through `unguarded`.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from typer.core import TyperCommand, TyperGroup

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def visible(text: str) -> str:
    r"""Control characters but newline and tab as \u001b: valid in JSON too, where that means the same text.

    Lone surrogates as well: names of files that are no UTF-8 hold them, and no stream takes them.
    """
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class Guarded:
    """A text stream that writes only `visible` text. It says that it is no terminal, so that nobody colours it."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(visible(text))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def isatty(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        if name in ("buffer", "detach"):  # the bytes below, past the filter
            raise AttributeError(name)
        return getattr(self.stream, name)


def guard() -> None:
    """From now on all of this process's output is `visible`."""
    sys.stdout, sys.stderr = (cast(TextIO, Guarded(unguarded(stream))) for stream in (sys.stdout, sys.stderr))


def unguarded(stream: TextIO) -> TextIO:
    """The stream itself, for control characters of our own. What others wrote must pass `visible` before."""
    return stream.stream if isinstance(stream, Guarded) else stream


def for_data() -> TextIO:
    """Standard output for text that a program reads on (translations): unchanged, but visible on a terminal."""
    below = unguarded(sys.stdout)
    return sys.stdout if below.isatty() else below


class Help:
    """--help in colour: it holds nothing but our own words."""

    def format_help(self, *arguments: Any) -> None:
        with _unguarded_output():
            super().format_help(*arguments)  # type: ignore[misc]


class VerbWithHelp(Help, TyperCommand):
    pass


class VerbsWithHelp(Help, TyperGroup):
    pass


@contextmanager
def _unguarded_output() -> Iterator[None]:
    before = sys.stdout
    sys.stdout = unguarded(before)
    try:
        yield
    finally:
        sys.stdout = before
