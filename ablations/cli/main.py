"""The command `ablations`: its subcommands (verbs) and its handling of errors.

The traceback of an unexpected exception is written to a file, which the user can attach to a bug report.
"""

import errno
import os
import signal
import sys
import tempfile
import time
import traceback
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from ablations.cli import terminal
from ablations.cli.terminal import FAILED, INTERRUPTED, MISTAKE
from ablations.cli.verbs import refused, verbs
from experiments.errors import UserError
from experiments.masking import masked_message
from model.extensions import ExtensionError


class Verbs(terminal.VerbsWithHelp):
    """The command group of all verbs.

    The module of a verb is imported only when the verb is called, because importing all modules takes a second.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        for why in refused():
            _say(why)
        return list(verbs())

    def get_command(self, ctx: Any, name: str) -> Any:
        """Return a verb with only its name and description, for --help."""
        if name not in verbs():
            return None
        about = verbs()[name]
        return terminal.VerbWithHelp(name, help=about.docstring, rich_help_panel=about.group)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name not in verbs():
            there = f"There is no command {name!r}. The commands are: {', '.join(verbs())}."
            raise UserError(" ".join([there, *refused()]))
        return name, verb(name), args[1:]


def verb(name: str) -> Any:
    """Return the command of a verb, with its options."""
    from ablations.cli import options  # imported late, because this import takes half a second

    found = verbs()[name]
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    epilog = f"Example: ablations {found.example}"
    spread = options.spread(found.function, name if found.gives_reason else "")
    alone.command(name, cls=terminal.VerbWithHelp, epilog=epilog, context_settings=HELP)(spread)
    return typer.main.get_command(alone)


HELP = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(
    name="ablations",
    cls=Verbs,
    no_args_is_help=True,
    context_settings=HELP,
    epilog="Options and an example of a verb: ablations plan -h",
    pretty_exceptions_enable=False,
)


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
DISK = {  # errno of an error that is not a bug of this program → advice for the user
    errno.EACCES: RIGHTS,
    errno.EPERM: RIGHTS,
    errno.EROFS: "Name a folder on another disk.",
    errno.ENOSPC: SPACE,
    errno.EDQUOT: SPACE,
    errno.EIO: "Check the disk.",
    errno.ESTALE: "Check the network disk.",
    errno.ENAMETOOLONG: "Use a shorter name.",
}


def main() -> None:
    """Entry point of the console script."""
    terminal.guard()
    if sys.platform != "linux":
        _say(f"This program runs only on Linux, and this is {sys.platform}. Use a Linux machine, a container or WSL 2.")
        sys.exit(MISTAKE)
    _opened_archives().clear()
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # at the end of the process, an error would not be caught any more
    except (UserError, ExtensionError) as error:
        _say(str(error))
        sys.exit(MISTAKE)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED + signal.SIGINT)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK and error.filename is not None:
            _say(f"{error.filename}: {error.strerror}. {DISK[error.errno]} Finished results are not lost.")
            sys.exit(MISTAKE)
        if opened_archives := _opened_archives():
            _say(
                f"{' and '.join(opened_archives)}: its records contain something that this program does not write "
                f"({type(error).__name__}: {error}). Ask its author for the file again, or install the version that "
                f"wrote it. If you wrote it with this version, this is a bug: the traceback is in {_keep_traceback()}."
            )
            sys.exit(MISTAKE)
        traceback.print_exc()
        _say(f"This is a bug in ablations, not a mistake of yours. The traceback is in {_keep_traceback()}.")
        sys.exit(FAILED)


def _opened_archives() -> list[str]:
    """Return the archives (files with a table) that this process has opened.

    The module that opens archives is not imported here. If no other code has imported it, no archive was opened.
    """
    return getattr(sys.modules.get("ablations.service.selected"), "opened_archives", [])


def _say(text: str) -> None:
    print(f"ablations: {text}", file=sys.stderr)


def _keep_traceback() -> Path:
    handle, name = tempfile.mkstemp(prefix=f"ablations-{time.strftime('%Y%m%d-%H%M%S')}-", suffix=".log")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(masked_message(f"{' '.join(sys.argv)}\n\n{traceback.format_exc()}"))
    return Path(name)


if __name__ == "__main__":
    main()
