"""The formats that a table is printed in, by name. A new one is a module here and a line below."""

from collections.abc import Callable

from experiments.errors import UserError
from reports.render import checklist, csv, html, json, latex, markdown, terminal, tidy
from reports.results.table import Table

RENDERERS: dict[str, Callable[[Table], str]] = {
    "markdown": markdown.render,
    "terminal": terminal.render,
    "latex": latex.render,
    "csv": csv.render,
    "tidy-csv": tidy.render,
    "json": json.render,
    "html": html.render,
    "setup": checklist.as_markdown,  # the paragraph and the checklist, not the table
}


def render(table: Table, format_: str) -> str:
    """The table as text: the same table gives the same bytes. Raises UserError for a format that there is not."""
    if format_ not in RENDERERS:
        raise UserError(f"There is no format {format_!r} for a table. Choose one of: {', '.join(RENDERERS)}.")
    return RENDERERS[format_](table)
