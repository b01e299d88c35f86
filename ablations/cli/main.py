"""The command `ablations`: its verbs, and its handling of errors.

A bug prints its traceback and saves it to a file for a report.
"""

import ast
import errno
import os
import signal
import sys
import tempfile
import time
import traceback
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from ablations.cli import exits, terminal
from ablations.service.opened_bundles import opened_bundles
from experiments.errors import UserError

VERBS = {  # by name, in the order of --help: the module here, and its function
    "studies": ("studies", "studies"),
    "tables": ("tables", "tables"),
    "new": ("new", "new"),
    "layers": ("layers", "layers"),
    "plan": ("plan", "plan"),
    "probe": ("probe", "probe"),
    "noise": ("noise", "noise"),
    "run": ("run", "run"),
    "queue": ("run", "queue"),
    "work": ("run", "work_command"),
    "tune": ("tune", "tune"),
    "evaluate": ("evaluate", "evaluate"),
    "status": ("status", "status"),
    "cancel": ("requests", "cancel"),
    "retry": ("requests", "retry"),
    "drain": ("requests", "drain"),
    "log": ("log", "log"),
    "report": ("report", "report"),
    "cases": ("cases", "cases"),
    "figures": ("figures", "figures"),
    "verify": ("inspect", "verify"),
    "explain": ("inspect", "explain"),
    "compare": ("compare", "compare"),
    "bundle": ("bundle", "bundle"),
    "import": ("bundle", "import_"),
    "translate": ("translate", "translate"),
    "sample": ("sample", "sample"),
    "export": ("export", "export"),
    "attention": ("attention", "attention"),
    "ui": ("ui", "ui"),
    "adopt": ("adopt", "adopt"),
    "forget": ("forget", "forget"),
    "prune": ("prune", "prune"),
    "rebuild": ("prune", "rebuild"),
    "demo": ("demo", "demo"),
}


class Verbs(terminal.VerbsWithHelp):
    """The verbs. A verb's module is imported when the verb is called: together they take a second."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, verb(name) if name in VERBS else command, rest


def verb(name: str) -> Any:
    """The command of a verb, with its options."""
    from ablations.cli import options  # as the verb does: settings and their checks take half a second

    module, function = VERBS[name]
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    called = getattr(import_module(f"ablations.cli.{module}"), function)
    alone.command(name, cls=terminal.VerbWithHelp)(options.spread(called))
    return typer.main.get_command(alone)


@cache
def _docstrings(module: str) -> dict[str, str]:
    """Of a module's functions, without importing it."""
    tree = ast.parse(Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8"))
    return {node.name: ast.get_docstring(node) or "" for node in tree.body if isinstance(node, ast.FunctionDef)}


app = typer.Typer(
    name="ablations",
    cls=Verbs,
    help="Ablation tables as code: describe a table's rows, train them, print the table.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for name, (module, function) in VERBS.items():  # names and descriptions alone, for --help
    app.command(name, help=_docstrings(module)[function])(lambda: None)


RIGHTS, SPACE = "Check its owner and its permissions.", "Free some space, or name another disk."
DISK = {  # errors of the disk, never of the program
    errno.EACCES: RIGHTS,
    errno.EPERM: RIGHTS,
    errno.EROFS: "Name a place on another disk.",
    errno.ENOSPC: SPACE,
    errno.EDQUOT: SPACE,
    errno.EIO: "Check the disk.",
    errno.ESTALE: "Check the network disk.",
}


def main() -> None:
    """Entry point of the console script."""
    terminal.guard()
    opened_bundles.clear()
    try:
        app()
    except UserError as error:
        _say(str(error))
        sys.exit(exits.MISTAKE)
    except KeyboardInterrupt:
        sys.exit(exits.INTERRUPTED + signal.SIGINT)
    except BrokenPipeError:  # `ablations plan … | head`: the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(exits.DONE)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK and error.filename is not None:
            _say(f"{error.filename}: {error.strerror}. {DISK[error.errno]} Nothing that was finished is lost.")
            sys.exit(exits.MISTAKE)
        if opened_bundles:
            _say(
                f"{' and '.join(opened_bundles)}: its records contain something that this program does not write "
                f"({type(error).__name__}: {error}). Request the bundle again from its author, or install the version "
                f"that wrote it. If you wrote it yourself, this is a bug: the traceback is in {_keep_traceback()}."
            )
            sys.exit(exits.MISTAKE)
        traceback.print_exc()
        _say(f"This is a bug in ablations, not a mistake of yours. The traceback is in {_keep_traceback()}.")
        sys.exit(exits.FAILED)


def _say(text: str) -> None:
    print(f"ablations: {text}", file=sys.stderr)


def _keep_traceback() -> Path:
    handle, name = tempfile.mkstemp(prefix=f"ablations-{time.strftime('%Y%m%d-%H%M%S')}-", suffix=".log")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(f"{' '.join(sys.argv)}\n\n{traceback.format_exc()}")
    return Path(name)


if __name__ == "__main__":
    main()
