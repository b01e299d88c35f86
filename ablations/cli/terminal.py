"""Safe output to the terminal: control characters in names, paths, logs and errors are printed as text.

A row's label or a line of a log may come from another person. A terminal executes control characters, which can hide
text, rename the window or type input. `guard` filters standard output and standard error. It also masks passwords in
addresses (experiments/masking.py). Control characters of this program, such as the colours of --help, are written to
the stream that `unguarded` returns.
"""

import contextlib
import json
import math
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO, cast

from typer.core import TyperCommand, TyperGroup

from experiments.masking import masked, masked_message

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def visible(text: str) -> str:
    r"""Replace control characters except newline and tab by escapes such as \u001b, which JSON reads as the same text.

    Lone surrogates, which streams cannot encode, are replaced too. They occur in file names that are not UTF-8.
    """
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class Lasting:
    """A text stream that continues without output if its reader has closed the pipe, as `head` does.

    A training must not end because nobody reads its progress any more. Any other error in writing, such as a full disk,
    raises OSError with `name` as its file name.
    """

    def __init__(self, stream: TextIO, name: str) -> None:
        self.stream, self.name, self.reader_has_left = stream, name, False

    def write(self, text: str) -> int:
        with self._lasting():
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._lasting():
            self.stream.flush()

    @contextlib.contextmanager
    def _lasting(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # The stream keeps the unwritten text and would raise the error again at the end of the process.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.stream.fileno())
            os.close(nowhere)
            if not isinstance(error, BrokenPipeError):
                raise OSError(error.errno, error.strerror, self.name) from error
            self.reader_has_left = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class Guarded:
    """A text stream that writes only `visible` text without credentials.

    `isatty` returns False, so that libraries add no colour. mask: the function that masks credentials.
    """

    def __init__(self, stream: TextIO, mask: Callable[[str], str] = masked) -> None:
        self.stream, self._mask = stream, mask

    def write(self, text: str) -> int:
        self.stream.write(visible(self._mask(text)))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def isatty(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        if name in ("buffer", "detach"):  # these attributes would bypass the filter
            raise AttributeError(name)
        return getattr(self.stream, name)


def guard() -> None:
    """Make all further output of this process `visible` and lasting (`Lasting`), and mask credentials in it."""
    sys.stdout = cast(TextIO, Guarded(_lasting(sys.stdout, "standard output")))
    sys.stderr = cast(TextIO, Guarded(_lasting(sys.stderr, "standard error"), masked_message))


def _lasting(stream: TextIO | None, name: str) -> TextIO:
    if stream is None:  # the parent process has closed the descriptor
        stream = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    below = unguarded(stream)
    return below if isinstance(below, Lasting) else cast(TextIO, Lasting(below, name))


def reader_has_left() -> bool:
    """Return whether the reader of standard output has closed the pipe. Commands that print without end then end."""
    below = unguarded(sys.stdout)
    return isinstance(below, Lasting) and below.reader_has_left


def unguarded(stream: TextIO) -> TextIO:
    """Return the stream without the filter, for control characters of this program.

    Pass all other text through `visible` first.
    """
    return stream.stream if isinstance(stream, Guarded) else stream


def for_data() -> TextIO:
    """Return standard output for data such as translations. The data are filtered only on a terminal."""
    below = unguarded(sys.stdout)
    return sys.stdout if below.isatty() else below


def print_json(value: Any) -> None:
    """Print a value as indented JSON with unescaped non-ASCII characters. NaN and infinity become null."""
    print(json.dumps(_finite(value), indent=1, ensure_ascii=False, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {name: _finite(one) for name, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


def answer(as_json: bool, facts: Any, lines: Iterable[str]) -> None:
    """Print a command's facts as JSON, or its lines of text. JSON output does not read the iterable of lines."""
    if as_json:
        print_json(facts)
    else:
        for line in lines:
            print(line)


def say(line: str) -> None:
    """Print a line on standard error. Standard output is for tables and data."""
    print(line, file=sys.stderr, flush=True)


def aligned(lines: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> list[str]:
    """Pad the cells of all lines, so that the columns are aligned. Return the lines as text.

    left: indices of the columns that are aligned at the left. The other columns are aligned at the right.
    """
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]

    def cell(place: int, text: str) -> str:
        space = " " * (widths[place] - cell_len(text))
        return text + space if place in left else space + text

    return ["  ".join(cell(*item) for item in enumerate(line)).rstrip() for line in lines]


def plain_progress(what: str, done: int, total: int) -> None:
    """Show the progress of a preparation on one line. Print nothing if standard error is not a terminal."""
    terminal = unguarded(sys.stderr)
    if terminal.isatty():
        end = "\n" if done >= total else ""
        print(f"\r{visible(what)} {done:,}/{total:,}", end=end, file=terminal, flush=True)


class Help:
    """A mixin that prints --help in colour, without the filter of `guard`."""

    def format_help(self, *arguments: Any) -> None:
        with contextlib.redirect_stdout(unguarded(sys.stdout)):
            super().format_help(*arguments)  # type: ignore[misc]


class VerbWithHelp(Help, TyperCommand):
    pass


class VerbsWithHelp(Help, TyperGroup):
    pass


DONE = 0
# A run failed or stayed in the queue, a row failed in a dry run, a verified table has changed, a table has gaps under
# --strict, `ui --rebuild` could not write a run, or this program has a bug.
FAILED = 1
MISTAKE = 2  # a mistake of the user
INTERRUPTED = 128  # the exit code is this number plus the number of the signal
