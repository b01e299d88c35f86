"""`ablations report`: print the table from the results in the store."""

import itertools
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ablations.cli import exits, options
from ablations.cli.terminal import say, unguarded
from ablations.service.nearest import nearest_with_results
from ablations.service.selected import SelectedTable, Selectors, choose_table
from ablations.service.table_options import TableOptions
from ablations.service.tables import BY_STUDY, table_of
from ablations.study.messages import number
from experiments.errors import UserError, explain_os_errors
from experiments.store.durable import write_bytes
from reports.render.formats import RENDERERS, render
from reports.render.made_by import MADE_BY
from reports.render.printed import choices_for
from reports.render.terminal import for_terminal
from reports.results.failures import failures
from reports.results.table import Table, missing_cells
from reports.trust.bundles.archive import is_bundle

CARRY_NO_WARNINGS = ("csv", "tidy-csv", "json")


def report(
    study: options.LastStudyOrBundle = None,
    *,
    selectors: Selectors,
    format_: Annotated[
        str,
        typer.Option(
            "--format", metavar="F", help=f"One of: {', '.join(RENDERERS)}. If unset: terminal on one, else markdown."
        ),
    ] = "",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write to a file instead of the terminal.")] = None,
    significance: options.Significance = "auto",
    provisional: Annotated[
        bool, typer.Option("--provisional", help="Where a seed is missing, print the mean over the others, marked.")
    ] = False,
    strict: Annotated[bool, typer.Option(help="Exit with 1 if the table has gaps.")] = False,
    as_json: options.Json = False,
    printing: TableOptions,
) -> None:
    """Print the table of a study; missing results are shown as gaps.

    The choices of columns, notes and so on may also stand in the study (docs/printing.md). CSV and JSON have every
    column, unless some are chosen here.
    """
    study, selectors = selectors.with_last(study, say)
    chosen = choose_table(study, selectors, say)
    table = print_table(chosen, "json" if as_json else format_, out, significance, provisional, printing)
    gaps = missing_cells(table)
    if gaps and not is_bundle(study) and (near := nearest_with_results(study, selectors, chosen.plan)):
        typer.echo(near, err=True)
    if strict and gaps:
        typer.echo(f"{number(gaps, 'cell')} missing", err=True)
        raise typer.Exit(exits.FAILED)


def print_table(
    chosen: SelectedTable,
    format_: str,
    out: Path | None = None,
    significance: str = "auto",
    provisional: bool = False,
    printing: TableOptions = BY_STUDY,
) -> Table:
    """Build the table and print it, or write it to `out` atomically; "" is the format for where it goes."""
    screen = unguarded(sys.stdout) if out is None and unguarded(sys.stdout).isatty() else None
    format_ = format_ or ("terminal" if screen else "markdown")
    if format_ not in RENDERERS:
        raise UserError(f"--format {format_}: write one of {', '.join(RENDERERS)}.")
    table = table_of(chosen, significance, provisional=provisional, printing=printing)
    if format_ in CARRY_NO_WARNINGS or choices_for(table, format_).notes == "none":
        for warning in table.warnings:
            typer.echo(f"warning: {warning}", err=True)
    if screen and format_ == "terminal":
        console = Console(file=screen, highlight=False)
        console.print(for_terminal(table, console.width))
        return table
    text = page(table, chosen) if format_ == "html" else render(table, format_)
    if out is None:
        typer.echo(text, nl=not text.endswith("\n"))
    else:
        write_out(out, text.encode())
        if format_ == "latex":
            _say_what_it_needs(text)
    return table


def _say_what_it_needs(latex: str) -> None:
    """Repeat what the file's first lines tell: packages for the preamble, the width."""
    for line in itertools.takewhile(lambda each: each.startswith("% "), latex.splitlines()):
        if not line.startswith(f"% {MADE_BY}"):
            typer.echo(line.removeprefix("% "), err=True)


def page(table: Table, chosen: SelectedTable) -> str:
    """The table as an HTML page, with figures and failures from the store."""
    from reports.figures.draw import for_page  # imported late: matplotlib takes a second
    from reports.render import html

    return html.render(table, for_page(table, chosen.store), failures(table, chosen.store))


def write_out(out: Path, data: bytes) -> None:
    """Write the file of --out atomically. Raises UserError if its folder does not exist or cannot be written."""
    with explain_os_errors(f"write {out}"):
        if not out.absolute().parent.is_dir():
            raise UserError(f"--out {out}: there is no folder {out.absolute().parent}. Create it, or name another one.")
        if out.is_dir():
            raise UserError(f"--out {out}: this is a folder. Name a file in it.")
        write_bytes(out.absolute(), data)
