"""Report the values that the parser of a script parses from given words.

    python ask_child.py ANSWER.json WORDS.json SCRIPT [WORD …]     or     … -m MODULE [WORD …]

The trainer's interpreter runs this file, so the file imports no other module of this program. The script runs up to its
first call of argparse's parse_args, of tyro.cli, or of a command of click or typer. There, the parser parses the
command without options, and then with the words of each setting in turn. The process writes the results and ends.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import io
import json
import os
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn


def _plain(value: Any) -> Any:
    """Return a value that JSON can represent: the value, or its repr."""
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return repr(value)


def _tried(parse: Callable[[list[str]], dict[str, Any]], words: list[str]) -> dict[str, Any] | str:
    """Return the values that the parser parses from the words. If it refuses them, return the reason as a text."""
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(errors):
            return parse(words)
    except SystemExit:
        lines = errors.getvalue().strip().splitlines()
        return lines[-1] if lines else "it ends the script"
    except Exception as error:  # a user's parser may raise any exception
        return f"{type(error).__name__}: {error}"


def _answer(parse: Callable[[list[str]], dict[str, Any]], answer: Path, questions: Path) -> NoReturn:
    """Ask the parser, write its answers to a file, and end the process.

    If the parser refuses the command without options, the file has the reason. Otherwise, the file has the values that
    the words of each setting change, or the reason why the parser refuses these words. answer: the file to write.
    questions: the file with the words of the settings.
    """
    asked = json.loads(questions.read_text(encoding="utf-8"))
    plain = _tried(parse, asked["given"])
    refused = plain if isinstance(plain, str) else None
    before = {} if isinstance(plain, str) else plain
    found: dict[str, Any] = {"plain": refused, "settings": {}}
    for name, words in () if refused else asked["settings"].items():
        made = _tried(parse, words)
        if isinstance(made, str):
            found["settings"][name] = {"refused": made}
        else:
            keys = [key for key in {**before, **made} if before.get(key) != made.get(key)]
            found["settings"][name] = {"changed": {key: [before.get(key), made.get(key)] for key in keys}}
    answer.write_text(json.dumps(found), encoding="utf-8")
    os._exit(0)


def _watch_argparse(answer: Path, questions: Path) -> None:
    original = argparse.ArgumentParser.parse_known_args

    def parse_known_args(parser: Any, args: Any = None, namespace: Any = None) -> Any:
        def parse(words: list[str]) -> dict[str, Any]:
            found, rest = original(parser, list(words), None)
            if rest:
                raise ValueError("unrecognized arguments: " + " ".join(rest))
            return {name: _plain(value) for name, value in vars(found).items()}

        if args is not None and list(args) != sys.argv[1:]:
            return original(parser, args, namespace)
        _answer(parse, answer, questions)

    argparse.ArgumentParser.parse_known_args = parse_known_args  # type: ignore[assignment, method-assign]


def _watch_click(answer: Path, questions: Path) -> None:
    kinds: list[Any] = []
    with contextlib.suppress(ImportError):
        kinds += [importlib.import_module("click").Command]
    with contextlib.suppress(ImportError):
        core = importlib.import_module("typer.core")
        kinds += [core.TyperCommand, core.TyperGroup]

    def main(command: Any, *args: Any, **more: Any) -> Any:
        def parse(words: list[str]) -> dict[str, Any]:
            found: dict[str, Any] = {}
            context = command.make_context("script", list(words))
            while context is not None:
                found.update({name: _plain(value) for name, value in context.params.items()})
                rest = [*getattr(context, "_protected_args", ()), *context.args]
                if not rest or not hasattr(context.command, "resolve_command"):
                    break
                name, below, rest = context.command.resolve_command(context, rest)
                context = below.make_context(name, rest, parent=context)
            return found

        _answer(parse, answer, questions)

    for kind in kinds:
        kind.main = main


def _watch_tyro(answer: Path, questions: Path) -> None:
    try:
        tyro = importlib.import_module("tyro")
    except ImportError:
        return
    original = tyro.cli

    def cli(kind: Any, *others: Any, **more: Any) -> Any:
        def parse(words: list[str]) -> dict[str, Any]:
            return dict(_fields(original(kind, *others, **{**more, "args": words})))

        if not isinstance(kind, type):  # a function, which tyro would call after parsing
            return original(kind, *others, **more)
        _answer(parse, answer, questions)

    setattr(tyro, "cli", cli)  # noqa: B010


def _fields(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object and of the dataclasses in it, by dotted name."""
    for name, inner in vars(value).items():
        if dataclasses.is_dataclass(inner):
            yield from _fields(inner, f"{prefix}{name}.")
        else:
            yield prefix + name, _plain(inner)


def main() -> None:
    """Run the script of the command line as Python does, after replacing the entry points of parsers."""
    answer, questions, *words = sys.argv[1:]
    _watch_argparse(Path(answer), Path(questions))
    _watch_click(Path(answer), Path(questions))
    _watch_tyro(Path(answer), Path(questions))
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path[0] = str(Path.cwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path[0] = str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
