"""The command `ablations report`, which prints the table of a study, its figures, or single examples."""

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
from ablations.planning.declare_table import table_spec
from ablations.service.selected import Selected, SelectedTable, Selectors, choose, choose_table, holds_table
from ablations.service.tables import BY_STUDY, TableOptions, nearest_with_results, table_of
from experiments.errors import UserError, explain_os_errors
from experiments.messages import number
from experiments.store.durable import write_bytes
from reports.figures.style import FORMATS
from reports.render.formats import formats, render
from reports.render.markdown import escape
from reports.render.numbers import as_macros
from reports.render.printed_command import MADE_BY
from reports.render.records import cell, text
from reports.render.terminal import for_terminal
from reports.results.examples import Examples, collect_examples
from reports.results.run_outcomes import failures
from reports.results.table import Table, missing_cells

CARRY_NO_WARNINGS = ("csv", "json")


def report(
    study: options.StudyOrBundle,
    *,
    selectors: Selectors,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="F",
            help=f"One of: {', '.join(formats())}. If unset: terminal if the output is one, else markdown.",
        ),
    ] = "",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write to a file instead of the terminal.")] = None,
    significance: options.Significance = "auto",
    provisional: Annotated[
        bool, typer.Option("--provisional", help="If seeds are missing, print the mean over the others, marked.")
    ] = False,
    strict: Annotated[bool, typer.Option(help="Exit with 1 if the table has gaps.")] = False,
    figures: Annotated[
        str | None,
        typer.Option(metavar="F,F", help="Draw figures instead, as pdf, svg or png, into the folder --out."),
    ] = None,
    examples: Annotated[
        str | None,
        typer.Option(
            metavar="SET", help="Print the rows' outputs for single examples of this set instead: test, dev …"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="With --examples: seed of the runs.")] = 1,
    differing: Annotated[
        bool, typer.Option(help="With --examples: print only examples with different outputs.")
    ] = False,
    limit: Annotated[int, typer.Option(min=0, metavar="N", help="With --examples: print at most N; 0: all.")] = 50,
    macros: Annotated[
        Path | None,
        typer.Option("--macros", metavar="FILE.tex", help="Print the numbers as LaTeX commands: \\abl{base.bleu}."),
    ] = None,
    as_json: options.Json = False,
    printing: TableOptions,
) -> None:
    """Print the table of a study; missing results are shown as gaps.

    A study can also set columns, notes and other options of printing (docs/printing.md). CSV and JSON have every
    column, unless columns are chosen here.
    """
    if figures is not None and examples is not None:
        raise UserError("--figures and --examples cannot be combined. Give one of them.")
    format_ = "json" if as_json else format_
    if examples is not None:
        _examples(
            choose(study, replace(selectors, seeds=seed), there=True), examples, seed, differing, limit, format_, out
        )
        return
    chosen = choose_table(study, selectors, say)
    if figures is not None:
        files = draw_figures(chosen, significance, figures, out or Path("figures"))
        if not files:
            near = "" if holds_table(study) else nearest_with_results(study, selectors, chosen.plan)
            raise UserError(
                f"There is nothing to draw, because {chosen.store.root} has no number of this table. {near}".strip()
            )
        if as_json:
            print_json({"files": files})
        else:
            typer.echo("\n".join(files))
        return
    if macros is not None:
        table = table_of(chosen, significance, printing=printing)
        write_out(macros, as_macros(table).encode(), "--macros")
    if macros is None or format_ or out:
        table = print_table(chosen, format_, out, significance, provisional, printing)
    gaps = missing_cells(table)
    if gaps and not holds_table(study) and (near := nearest_with_results(study, selectors, chosen.plan)):
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
    """Build the table. Print it, or write it to `out` atomically.

    format_: "" selects the format terminal if the output is a terminal, and markdown otherwise.
    """
    screen = unguarded(sys.stdout) if out is None and unguarded(sys.stdout).isatty() else None
    format_ = format_ or ("terminal" if screen else "markdown")
    if format_ not in formats():
        raise UserError(f"--format {format_}: write one of {', '.join(formats())}.")
    table = table_of(chosen, significance, provisional=provisional, printing=printing)
    if format_ in CARRY_NO_WARNINGS:
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
            _print_latex_hints(text)
    return table


def _print_latex_hints(latex: str) -> None:
    """Print the hints in the first lines of a LaTeX file: packages for the preamble, and the width."""
    for line in itertools.takewhile(lambda each: each.startswith("% "), latex.splitlines()):
        if not line.startswith(f"% {MADE_BY}"):
            typer.echo(line.removeprefix("% "), err=True)


def page(table: Table, chosen: SelectedTable) -> str:
    """Return the table as an HTML page, with figures and failures from the store."""
    from reports.figures.draw import for_page  # imported late, because importing matplotlib takes a second
    from reports.render import html

    return html.render(table, for_page(table, chosen.store), failures(table.outcomes, chosen.store))


def write_out(out: Path, data: bytes, option: str = "--out") -> None:
    """Write the file of an option atomically. Raises UserError if its folder does not exist or cannot be written."""
    with explain_os_errors(f"write {out}"):
        if not out.absolute().parent.is_dir():
            raise UserError(
                f"{option} {out}: the folder {out.absolute().parent} does not exist. Create it, or name another one."
            )
        if out.is_dir():
            raise UserError(f"{option} {out}: this is a folder. Name a file in it.")
        write_bytes(out.absolute(), data)


def draw_figures(chosen: SelectedTable, significance: str, formats_: str, folder: Path) -> list[str]:
    """Draw changes from base, learning curves, and scores by sentence length. Return the paths of the files."""
    wanted = [part.strip() for part in formats_.split(",")]
    if not all(part in FORMATS for part in wanted):
        raise UserError(f"--figures {formats_}: choose from {', '.join(FORMATS)}, separated by commas.")
    from reports.figures.draw import draw  # imported late, because importing matplotlib takes a second

    if drawn := draw(table_of(chosen, significance), chosen.store, wanted):
        with explain_os_errors(f"write to {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            for name, data in drawn.items():
                write_bytes((folder / name).absolute(), data)
    return [str(folder / name) for name in drawn]


def _examples(
    chosen: Selected, of_set: str, seed: int, differing: bool, limit: int, format_: str, out: Path | None
) -> None:
    format_ = format_ or "markdown"
    if format_ not in _WRITERS:
        raise UserError(f"--format {format_}: with --examples, write one of {', '.join(_WRITERS)}.")
    found = collect_examples(table_spec(chosen.plan), chosen.store, of_set, seed, differing=differing)
    shown = Examples(found.heads, found.lines[:limit] if limit else found.lines)
    text = _WRITERS[format_](shown)
    if out is None:
        typer.echo(text, nl=False)
    else:
        write_out(out, text.encode())
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
    writer.writerows([cell(value) for value in line] for line in found.lines)
    return stream.getvalue()


def _json(found: Examples) -> str:
    lines = [dict(zip(found.heads, line, strict=True)) for line in found.lines]
    return json.dumps(lines, indent=1, ensure_ascii=False) + "\n"


_WRITERS = {"markdown": _markdown, "csv": _csv, "json": _json}
