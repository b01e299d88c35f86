"""Ask a script's own parser for its options. The trainer's interpreter runs this file, which imports none of ours.

    python ask_child.py ANSWER.json WORDS.json SCRIPT [WORD …]     or     … -m MODULE [WORD …]

The script runs up to its first call of argparse's parse_args, or of a command of click. There its parser is asked
without options, and with the words of each setting in turn. The answer is written, and the process ends at once.
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
    """A value for JSON: itself, or what it prints."""
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return repr(value)


def _tried(parse: Callable[[list[str]], dict[str, Any]], words: list[str]) -> dict[str, Any] | str:
    """The values that the parser makes of words, or a text: why it refuses them."""
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(errors):
            return parse(words)
    except SystemExit:
        lines = errors.getvalue().strip().splitlines()
        return lines[-1] if lines else "it ends the script"
    except Exception as error:  # a parser of the user's may raise anything
        return f"{type(error).__name__}: {error}"


def _answer(parse: Callable[[list[str]], dict[str, Any]], answer: Path, questions: Path) -> NoReturn:
    """Write what the parser makes of no options, and what each setting's words change in that."""
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

        if not isinstance(kind, type):  # a function: it would be called with its options
            return original(kind, *others, **more)
        _answer(parse, answer, questions)

    setattr(tyro, "cli", cli)  # noqa: B010


def _fields(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The attributes of an object and of those in it, by dotted name."""
    for name, inner in vars(value).items():
        if dataclasses.is_dataclass(inner):
            yield from _fields(inner, f"{prefix}{name}.")
        else:
            yield prefix + name, _plain(inner)


def main() -> None:
    """Run the script of the command line as Python does, with its parsers watched."""
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
