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
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from ablations.cli import terminal
from ablations.cli.terminal import DONE, FAILED, INTERRUPTED, MISTAKE
from experiments.errors import UserError
from experiments.masking import masked_message


class Verb(NamedTuple):
    """Where a verb stands: the module here and its function, its group in --help, and an example."""

    module: str
    function: str
    group: str
    example: str  # after "ablations "


DESCRIBE, RUN, PRINT = "Describe a table", "Train its rows", "Print, check and share it"
MODELS, STORE = "Use trained models", "Look into a store, and keep it in order"
VERBS = {  # by name, in the order of --help
    "studies": Verb("describe", "studies", DESCRIBE, "studies"),
    "new": Verb("describe", "new", DESCRIBE, "new my_study"),
    "settings": Verb("describe", "settings", DESCRIBE, "settings translation"),
    "plan": Verb("plan", "plan", DESCRIBE, "plan table3 --profile small --corpus my-corpus"),
    "modules": Verb("plan", "modules", DESCRIBE, "modules table3 'encoder.layers.*.self_attention'"),
    "noise": Verb("plan", "noise", DESCRIBE, "noise table3 --seeds 5"),
    "run": Verb("run", "run", RUN, "run table3 --rows base,A --seeds 3 --devices cuda:0,1"),
    "queue": Verb("run", "queue", RUN, "queue table3 --seeds 3 --priority 5"),
    "work": Verb("run", "work_command", RUN, "work --devices cuda:*x3"),
    "tune": Verb("run", "tune", RUN, "tune my_study.toml --trials 20"),
    "evaluate": Verb("run", "evaluate", RUN, "evaluate table3 --set evaluation.beam_size=8"),
    "cancel": Verb("status", "cancel", RUN, "cancel big A-h16:2"),
    "retry": Verb("status", "retry", RUN, "retry all"),
    "report": Verb("report", "report", PRINT, "report table3 --format latex --out table3.tex"),
    "verify": Verb("inspect", "verify", PRINT, "verify table3.csv table3"),
    "explain": Verb("inspect", "explain", PRINT, "explain table3 A-h16.bleu"),
    "compare": Verb("inspect", "compare", PRINT, "compare table3 old-table3.tar.gz"),
    "tabulate": Verb("tabulate", "tabulate", PRINT, "tabulate runs.csv --row optimizer --metric acc"),
    "fill": Verb("paper", "fill", PRINT, "fill draft.md table3 --out paper.md"),
    "paper": Verb("paper", "paper", PRINT, "paper table3 table4 --out paper"),
    "bundle": Verb("exchange", "bundle", PRINT, "bundle table3 --out table3.tar.gz"),
    "import": Verb("exchange", "import_", PRINT, "import theirs.toml --from scores.csv"),
    "generate": Verb("models", "generate", MODELS, "generate table3 input.txt --row base > output.txt"),
    "export": Verb("exchange", "export", MODELS, "export table3 german-english --row base"),
    "attention": Verb("models", "attention", MODELS, "attention table3 'The law is good.' --row base"),
    "tables": Verb("store", "tables", STORE, "tables"),
    "status": Verb("status", "status", STORE, "status"),
    "log": Verb("status", "log", STORE, "log A-h16:2 --follow"),
    "mcp": Verb("mcp", "mcp", STORE, "mcp --store runs --allow studies"),
    "ui": Verb("ui", "ui", STORE, "ui table3"),
    "budget": Verb("budget", "budget", STORE, "budget --hours 8 --runs 40 --until 07:00"),
    "ledger": Verb("budget", "ledger", STORE, "ledger my_study.toml"),
    "forget": Verb("store", "forget", STORE, "forget table3 --rows big"),
}


WITH_REASON = ("run", "queue", "work", "tune", "evaluate", "cancel", "retry", "forget", "budget")


class Verbs(terminal.VerbsWithHelp):
    """The verbs. A verb's module is imported when the verb is called: together they take a second."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, verb(name) if name in VERBS else command, rest


def verb(name: str) -> Any:
    """The command of a verb, with its options."""
    from ablations.cli import options  # as the verb does: settings and their checks take half a second

    found = VERBS[name]
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    called = getattr(import_module(f"ablations.cli.{found.module}"), found.function)
    epilog = f"Example: ablations {found.example}"
    spread = options.spread(called, name if name in WITH_REASON else "")
    alone.command(name, cls=terminal.VerbWithHelp, epilog=epilog, context_settings=HELP)(spread)
    return typer.main.get_command(alone)


@cache
def _docstrings(module: str) -> dict[str, str]:
    """Of a module's functions, without importing it."""
    tree = ast.parse(Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8"))
    return {node.name: ast.get_docstring(node) or "" for node in tree.body if isinstance(node, ast.FunctionDef)}


HELP = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(
    name="ablations",
    cls=Verbs,
    no_args_is_help=True,
    context_settings=HELP,
    epilog="A verb's own help has its options and an example: ablations plan -h",
    pretty_exceptions_enable=False,
)
for name, about in VERBS.items():  # names and descriptions alone, for --help
    app.command(name, help=_docstrings(about.module)[about.function], rich_help_panel=about.group)(lambda: None)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"ablations {version('transformer-ablations')}")
        raise typer.Exit


@app.callback()
def ablations(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Ablation tables as code: describe a table's rows, train them, print the table."""


RIGHTS, SPACE = "Check its owner and its permissions.", "Free some space, or name another disk."
DISK = {  # errors of the disk, never of the program
    errno.EACCES: RIGHTS,
    errno.EPERM: RIGHTS,
    errno.EROFS: "Name a place on another disk.",
    errno.ENOSPC: SPACE,
    errno.EDQUOT: SPACE,
    errno.EIO: "Check the disk.",
    errno.ESTALE: "Check the network disk.",
    errno.ENAMETOOLONG: "Take a shorter name.",
}


def main() -> None:
    """Entry point of the console script."""
    terminal.guard()
    if sys.platform != "linux":
        _say(f"This program runs on Linux only; this is {sys.platform}. Use a Linux machine, a container or WSL 2.")
        sys.exit(MISTAKE)
    _opened_bundles().clear()
    try:
        app()
    except UserError as error:
        _say(str(error))
        sys.exit(MISTAKE)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED + signal.SIGINT)
    except BrokenPipeError:  # `ablations plan … | head`: the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(DONE)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK and error.filename is not None:
            _say(f"{error.filename}: {error.strerror}. {DISK[error.errno]} Nothing that was finished is lost.")
            sys.exit(MISTAKE)
        if opened_bundles := _opened_bundles():
            _say(
                f"{' and '.join(opened_bundles)}: its records contain something that this program does not write "
                f"({type(error).__name__}: {error}). Request the bundle again from its author, or install the version "
                f"that wrote it. If you wrote it yourself, this is a bug: the traceback is in {_keep_traceback()}."
            )
            sys.exit(MISTAKE)
        traceback.print_exc()
        _say(f"This is a bug in ablations, not a mistake of yours. The traceback is in {_keep_traceback()}.")
        sys.exit(FAILED)


def _opened_bundles() -> list[str]:
    """The bundles that this process has read, without importing what reads them."""
    return getattr(sys.modules.get("ablations.service.selected"), "opened_bundles", [])


def _say(text: str) -> None:
    print(f"ablations: {text}", file=sys.stderr)


def _keep_traceback() -> Path:
    handle, name = tempfile.mkstemp(prefix=f"ablations-{time.strftime('%Y%m%d-%H%M%S')}-", suffix=".log")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(masked_message(f"{' '.join(sys.argv)}\n\n{traceback.format_exc()}"))
    return Path(name)


if __name__ == "__main__":
    main()
