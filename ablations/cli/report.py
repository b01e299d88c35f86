"""Verbs that print results: `ablations report`, `cases` and `figures`."""

import csv
import io
import itertools
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ablations.cli import options
from ablations.cli.terminal import FAILED, print_json, say, unguarded
from ablations.service.selected import SelectedTable, Selectors, choose, choose_table
from ablations.service.tables import BY_STUDY, TableOptions, nearest_with_results, table_of
from ablations.study.messages import number
from experiments.errors import UserError, explain_os_errors
from experiments.store.durable import write_bytes
from reports.audit.bundle_archive import is_bundle
from reports.figures.style import FORMATS
from reports.render.formats import formats, render
from reports.render.markdown import escape
from reports.render.printed import MADE_BY, choices_for
from reports.render.records import text
from reports.render.terminal import for_terminal
from reports.results.examples import Examples, collect_examples
from reports.results.results import failures
from reports.results.table import Table, missing_cells

CARRY_NO_WARNINGS = ("csv", "tidy-csv", "json")


def report(
    study: options.LastStudyOrBundle = None,
    *,
    selectors: Selectors,
    format_: Annotated[
        str,
        typer.Option(
            "--format", metavar="F", help=f"One of: {', '.join(formats())}. If unset: terminal on one, else markdown."
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
        raise typer.Exit(FAILED)


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
    if format_ not in formats():
        raise UserError(f"--format {format_}: write one of {', '.join(formats())}.")
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

    return html.render(table, for_page(table, chosen.store), failures(table.outcomes, chosen.store))


def write_out(out: Path, data: bytes) -> None:
    """Write the file of --out atomically. Raises UserError if its folder does not exist or cannot be written."""
    with explain_os_errors(f"write {out}"):
        if not out.absolute().parent.is_dir():
            raise UserError(f"--out {out}: there is no folder {out.absolute().parent}. Create it, or name another one.")
        if out.is_dir():
            raise UserError(f"--out {out}: this is a folder. Name a file in it.")
        write_bytes(out.absolute(), data)


# --- `ablations cases`: single examples with the output of each row


def cases(
    study: options.LastStudy = None,
    *,
    selectors: Annotated[Selectors, options.Without(("seeds",))],
    of_set: Annotated[str, typer.Option("--of", metavar="SET", help="The set whose examples are shown.")] = "test",
    seed: Annotated[int, typer.Option(metavar="N", help="The seed whose runs are shown.")] = 1,
    differing: Annotated[bool, typer.Option(help="Only examples with different outputs of the rows.")] = False,
    limit: Annotated[int, typer.Option(min=0, metavar="N", help="Show at most N examples; 0: all.")] = 50,
    format_: Annotated[str, typer.Option("--format", metavar="F", help="markdown, csv or json.")] = "markdown",
    as_json: options.Json = False,
) -> None:
    """Show the output of each row for single examples, for trainers that record outputs."""
    format_ = "json" if as_json else format_
    if format_ not in _WRITERS:
        raise UserError(f"--format {format_}: write one of {', '.join(_WRITERS)}.")
    study, selectors = selectors.with_last(study, say)
    chosen = choose(study, replace(selectors, seeds=seed), there=True)
    found = collect_examples(chosen.plan, chosen.store, of_set, seed, differing=differing)
    shown = Examples(found.heads, found.lines[:limit] if limit else found.lines)
    typer.echo(_WRITERS[format_](shown), nl=False)
    if len(shown.lines) < len(found.lines):
        typer.echo(f"{len(shown.lines)} of {len(found.lines)} examples; --limit 0 shows all", err=True)


def _markdown(found: Examples) -> str:
    lines = [found.heads, ["---"] * len(found.heads), *found.lines]
    return "".join(f"| {' | '.join(_cell(value) for value in line)} |\n" for line in lines)


def _cell(value: Any) -> str:
    plain = f"{value:.3f}" if isinstance(value, float) else "" if value is None else str(value)
    return plain if plain == "---" else escape(plain).replace("|", "\\|")


def _csv(found: Examples) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([text(head) for head in found.heads])
    writer.writerows(
        [value if isinstance(value, int | float) else text(value) for value in line] for line in found.lines
    )
    return stream.getvalue()


def _json(found: Examples) -> str:
    lines = [dict(zip(found.heads, line, strict=True)) for line in found.lines]
    return json.dumps(lines, indent=1, ensure_ascii=False) + "\n"


_WRITERS = {"markdown": _markdown, "csv": _csv, "json": _json}


# --- `ablations figures`: draw the table's figures as files for a paper


def figures(
    study: options.LastStudyOrBundle = None,
    *,
    selectors: Selectors,
    formats: Annotated[str, typer.Option("--formats", metavar="F,F", help="Some of pdf, svg, png.")] = "pdf",
    out: Annotated[Path, typer.Option(metavar="DIR", help="A folder; created if missing.")] = Path("figures"),
    significance: options.Significance = "auto",
    as_json: options.Json = False,
) -> None:
    """Draw changes from base, quality against cost, learning curves, and scores by sentence length."""
    wanted = [part.strip() for part in formats.split(",")]
    if not all(part in FORMATS for part in wanted):
        raise UserError(f"--formats {formats}: choose from {', '.join(FORMATS)}, separated by commas.")
    study, selectors = selectors.with_last(study, say)
    chosen = choose_table(study, selectors, say)
    from reports.figures.draw import draw  # imported late: matplotlib takes a second

    drawn = draw(table_of(chosen, significance), chosen.store, wanted)
    if not drawn:
        near = "" if is_bundle(study) else nearest_with_results(study, selectors, chosen.plan)
        raise UserError(
            f"There is nothing to draw yet: {chosen.store.root} has no number of this table. {near}".strip()
        )
    with explain_os_errors(f"write to {out}"):
        out.mkdir(parents=True, exist_ok=True)
        for name, data in drawn.items():
            write_bytes((out / name).absolute(), data)
    files = [str(out / name) for name in drawn]
    if as_json:
        print_json({"files": files})
    else:
        typer.echo("\n".join(files))
