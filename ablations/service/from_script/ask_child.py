"""Ask a script's own parser for its options: run by the trainer's interpreter, imports nothing of this program.

    python ask_child.py ANSWER.json WORDS.json SCRIPT [WORD …]     or     … -m MODULE [WORD …]

The script runs up to its first call of argparse's parse_args, or of a command of click. There the parser is asked twice:
without options, and with the words of each setting in turn. The answer is written, and the process ends at once.
"""

import argparse
import contextlib
import io
import json
import os
import runpy
import sys


def _plain(value):
    """A value for JSON: itself, or what it prints."""
    if isinstance(value, bool) or value is None or isinstance(value, (int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return repr(value)


def _tried(parse, words):
    """The values that the parser makes of words; a text: why it refuses them."""
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(errors):
            return parse(words)
    except SystemExit:
        lines = errors.getvalue().strip().splitlines()
        return lines[-1] if lines else "the parser refuses it"
    except Exception as error:
        return "%s: %s" % (type(error).__name__, error)


def _answer(parse):
    """Write what the parser makes of no options, and what each setting's words change in that."""
    with open(os.environ.pop("ABLATIONS_ASK_WORDS"), encoding="utf-8") as stream:
        asked = json.load(stream)
    plain = _tried(parse, asked["given"])
    answer = {"plain": plain if isinstance(plain, str) else None, "settings": {}}
    if not isinstance(plain, str):
        answer["values"] = plain
        for name, words in asked["settings"].items():
            made = _tried(parse, words)
            if isinstance(made, str):
                answer["settings"][name] = {"refused": made}
            else:
                changed = [key for key in made if made[key] != plain.get(key)]
                changed += [key for key in plain if key not in made]
                answer["settings"][name] = {"changed": {key: [plain.get(key), made.get(key)] for key in changed}}
    with open(os.environ.pop("ABLATIONS_ASK_ANSWER"), "w", encoding="utf-8") as stream:
        json.dump(answer, stream)
    os._exit(0)


def _of_argparse(parser, args=None, namespace=None):
    original = _of_argparse.original

    def parse(words):
        found, rest = original(parser, list(words), None)
        if rest:
            raise ValueError("unrecognized arguments: " + " ".join(rest))
        return {name: _plain(value) for name, value in vars(found).items()}

    if args is not None and list(args) != sys.argv[1:]:
        return original(parser, args, namespace)
    _answer(parse)


def _of_click(command, args=None, *others, **more):
    def parse(words):
        context = command.make_context("script", list(words))
        found = {}
        while context is not None:
            found.update({name: _plain(value) for name, value in context.params.items()})
            words = list(getattr(context, "protected_args", ())) + list(getattr(context, "args", ()))
            group = context.command
            if not words or not hasattr(group, "resolve_command"):
                break
            name, below, rest = group.resolve_command(context, words)
            context = below.make_context(name, rest, parent=context)
        return found

    _answer(parse)


def main():
    os.environ["ABLATIONS_ASK_ANSWER"], os.environ["ABLATIONS_ASK_WORDS"] = sys.argv[1:3]
    words = sys.argv[3:]
    _of_argparse.original = argparse.ArgumentParser.parse_known_args
    argparse.ArgumentParser.parse_known_args = _of_argparse
    with contextlib.suppress(ImportError):
        import click

        getattr(click, "BaseCommand", click.Command).main = _of_click
        click.Command.main = _of_click
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
