"""`ablations cases`: single examples with the output of each row."""

import csv
import io
import json
from dataclasses import replace
from typing import Annotated, Any

import typer

from ablations.cli import options
from ablations.cli.terminal import say
from ablations.service.selected import Selectors, choose
from experiments.errors import UserError
from reports.render.csv import text
from reports.render.markdown import escape
from reports.results.cases import Cases, collect_cases


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
    found = collect_cases(chosen.plan, chosen.store, of_set, seed, differing=differing)
    shown = Cases(found.heads, found.lines[:limit] if limit else found.lines)
    typer.echo(_WRITERS[format_](shown), nl=False)
    if len(shown.lines) < len(found.lines):
        typer.echo(f"{len(shown.lines)} of {len(found.lines)} examples; --limit 0 shows all", err=True)


def _markdown(found: Cases) -> str:
    lines = [found.heads, ["---"] * len(found.heads), *found.lines]
    return "".join(f"| {' | '.join(_cell(value) for value in line)} |\n" for line in lines)


def _cell(value: Any) -> str:
    plain = f"{value:.3f}" if isinstance(value, float) else "" if value is None else str(value)
    return plain if plain == "---" else escape(plain).replace("|", "\\|")


def _csv(found: Cases) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([text(head) for head in found.heads])
    writer.writerows(
        [value if isinstance(value, int | float) else text(value) for value in line] for line in found.lines
    )
    return stream.getvalue()


def _json(found: Cases) -> str:
    lines = [dict(zip(found.heads, line, strict=True)) for line in found.lines]
    return json.dumps(lines, indent=1, ensure_ascii=False) + "\n"


_WRITERS = {"markdown": _markdown, "csv": _csv, "json": _json}
