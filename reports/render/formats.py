"""The formats of printed tables, by name. To add a format, add a module to this folder and an entry to RENDERERS."""

from collections.abc import Callable

from experiments.errors import UserError
from model.extensions import added, load
from reports.render import html, latex, markdown, terminal
from reports.render.records import render_csv, render_json
from reports.render.setup import as_markdown
from reports.results.table import Table

RENDERERS: dict[str, Callable[[Table], str]] = {
    "markdown": markdown.render,
    "terminal": terminal.render,
    "latex": latex.render,
    "csv": render_csv,
    "json": render_json,
    "html": html.render,
    "setup": as_markdown,  # the text on the experimental setup, without the table
}


def formats() -> tuple[str, ...]:
    """Return the names of all formats: those of this program and those that installed packages add."""
    return (*RENDERERS, *(name for name in added("formats") if name not in RENDERERS))


def render(table: Table, format_: str) -> str:
    """Return the table as text. The same table gives the same bytes. Raises UserError for an unknown format."""
    if format_ not in formats():
        raise UserError(f"There is no table format {format_!r}. Choose one of: {', '.join(formats())}.")
    text: str = (RENDERERS.get(format_) or load(added("formats")[format_]))(table)
    return text
