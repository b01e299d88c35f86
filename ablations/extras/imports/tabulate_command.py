"""The command `ablations tabulate`: print a table of runs that exist elsewhere, without a study and a store."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from ablations.cli import options
from ablations.cli.report import print_table, write_out
from ablations.extras.imports.tabulate import TabulateOptions
from ablations.extras.imports.tabulate import tabulate as table_of_source
from ablations.service.tables import TableOptions
from experiments.errors import UserError
from reports.render.formats import formats

_BETTER = {"min": "lower", "max": "higher"}


def tabulate(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="runs.csv, mlflow:URI#EXPERIMENT, wandb:EXPORT, trackio:PROJECT, tensorboard:DIR, lm-eval:DIR or "
            "inspect:DIR.",
        ),
    ],
    row: Annotated[
        str | None,
        typer.Option("--row", metavar="A,B", help="Settings that distinguish rows; if unset, those that differ."),
    ] = None,
    seed: Annotated[str, typer.Option("--seed", metavar="NAME", help="Column or setting with the seed.")] = "",
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric", metavar="A,B:min", help="Metrics, with :min or :max for the better direction; guessed if unset."
        ),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            "--base", metavar="NAME=VALUE", help="Base row, from which changes are computed; the first if unset."
        ),
    ] = None,
    pair: Annotated[
        str | None,
        typer.Option("--pair", metavar="NAME", help="Column that pairs runs; tests use the differences of pairs."),
    ] = None,
    format_: Annotated[str, typer.Option("--format", metavar="F", help=f"One of: {', '.join(formats())}.")] = "",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write to a file instead of the terminal.")] = None,
    significance: options.Significance = "auto",
    provisional: Annotated[
        bool, typer.Option("--provisional", help="If a run has no number, print the mean of the others, marked.")
    ] = False,
    exclude: Annotated[
        list[str] | None,
        typer.Option("--exclude", metavar="NAME=VALUE", help="Leave out runs with this value; repeatable."),
    ] = None,
    write: Annotated[
        Path | None, typer.Option("--write", metavar="STUDY.toml", help="Write the selection as a study for `import`.")
    ] = None,
    as_json: options.Json = False,
    *,
    printing: TableOptions,
) -> None:
    """Print a table of runs that exist elsewhere: mean ± sd over seeds, changes from base, tests. Stores nothing.

    The program guesses which settings vary and which numbers are metrics, and prints the guess; options correct it
    (ablations/extras/imports/import.md).
    """
    if pair and seed:
        raise UserError(
            "--pair and --seed cannot be combined, because --pair names the column that pairs the runs. Leave out "
            "--seed."
        )
    if write and write.exists():
        raise UserError(f"--write {write}: the file exists. Choose a new name, or remove it.")
    metrics = dict(_metric(part) for part in metric.split(",")) if metric else None
    settings = dict(_setting("--base", part) for part in base.split(",")) if base else None
    without = tuple(_setting("--exclude", part) for part in exclude or ())
    rows = tuple(part.strip() for part in row.split(",") if part.strip()) if row else ()
    chosen = TabulateOptions(rows=rows, seed=pair or seed, metrics=metrics, base=settings, exclude=without)
    with tempfile.TemporaryDirectory(prefix="ablations-tabulate-") as folder:
        made = table_of_source(source, chosen, Path(folder))
        for text in made.said:
            typer.echo(text, err=True)
        format_ = "json" if as_json else format_
        print_table(made.table, format_, out, "paired" if pair else significance, provisional, printing)
    if write:
        write_out(write, made.text.encode(), "--write")
        typer.echo(
            f"wrote {write}; import its runs into a store with: ablations import {write} {made.importing}", err=True
        )


def _metric(text: str) -> tuple[str, str]:
    name, colon, way = text.strip().rpartition(":")
    return (name, _BETTER[way]) if colon and way in _BETTER else (text.strip(), "")


def _setting(option: str, text: str) -> tuple[str, str]:
    name, equals, given = text.partition("=")
    if not equals:
        raise UserError(f"{option} {text}: write NAME=VALUE, for example {option} optimizer=adam.")
    return name.strip(), given.strip()
