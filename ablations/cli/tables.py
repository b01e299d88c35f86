"""`ablations tables`: everything that a store holds, one line per table."""

import shlex
import time
from typing import Any

import typer

from ablations.cli import options
from ablations.cli.terminal import print_json
from ablations.service.selected import Place
from ablations.service.store_tables import StoreTable, store_tables
from ablations.study.overrides import as_set
from reports.render.text import width

HEADS = ("study", "profile", "corpus", "rows", "runs", "state", "last change", "")
LEFT = (0, 1, 2, 5, 6, 7)  # the columns of words


def tables(place: Place, as_json: options.Json = False) -> None:
    """List the tables of a store: study, profile, corpus, rows, runs, state and last change.

    Runs that are no longer in their study, or have other settings than it says now, stand on lines of their own.
    """
    found = store_tables(place)
    if as_json:
        print_json([_as_json(table) for table in found])
    elif not found:
        typer.echo(f"no run was started in {place.store}")
    else:
        typer.echo("\n".join(_aligned([HEADS, *(_line(table) for table in found)])))


def note(table: StoreTable) -> str:
    """What the study has to do with the table's runs."""
    if table.gone:
        return "no longer in the study"
    if table.settings:
        return f"not in the study as it is now: with {shlex.join(as_set(*item) for item in table.settings.items())}"
    return "" if table.known else "its study was not found"


def _line(table: StoreTable) -> tuple[str, ...]:
    changed = time.strftime("%Y-%m-%d %H:%M", time.localtime(table.changed)) if table.changed else ""
    return (*table.name, str(len(table.rows)), str(len(table.runs)), table.state, changed, note(table))


def _aligned(lines: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(width, column)) for column in zip(*lines, strict=True)]

    def cell(place: int, text: str) -> str:
        space = " " * (widths[place] - width(text))
        return text + space if place in LEFT else space + text

    return ["  ".join(cell(*item) for item in enumerate(line)).rstrip() for line in lines]


def _as_json(table: StoreTable) -> dict[str, Any]:
    return {
        **table.name._asdict(),
        "rows": table.rows,
        "runs": len(table.runs),
        "finished": table.finished,
        "state": table.state,
        "changed": table.changed,
        "in_study": None if not table.known else not (table.gone or table.settings),
        "settings": dict(table.settings),
        "note": note(table),
        "select": list(table.words),
        "run_ids": [run.run_id for run in table.runs],
    }
