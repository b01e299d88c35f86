"""The formats that a table is printed in, by name. A new one is a module here and a line below."""

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
    "setup": as_markdown,  # the paragraph and the checklist, not the table
}


def formats() -> tuple[str, ...]:
    """The names of this program's formats and of those that installed packages add."""
    return (*RENDERERS, *(name for name in added("formats") if name not in RENDERERS))


def render(table: Table, format_: str) -> str:
    """The table as text: the same table gives the same bytes. Raises UserError for a format that there is not."""
    if format_ not in formats():
        raise UserError(f"There is no table format {format_!r}. Choose one of: {', '.join(formats())}.")
    text: str = (RENDERERS.get(format_) or load(added("formats")[format_]))(table)
    return text
