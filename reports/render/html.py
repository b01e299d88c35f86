"""The format HTML: a self-contained page, or a fragment for a notebook's cell. page.html has the markup of both.

The page needs no network. Details open by hover, focus or click. The page's Content-Security-Policy forbids loading
anything and running any script except the one in page.py. The page also contains the table as JSON, for `ablations
verify`. The fragment for a notebook has no script, and its styles are attributes. Viewers of notebooks such as GitHub
and nbconvert can therefore show the fragment too.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from html import escape as escape_html
from importlib.resources import files
from typing import Any

from experiments.identity import seed_in_words
from experiments.messages import number
from reports.render.cells import Cell, Grid, Head, Line, group_name, labels_span, plain, spanned
from reports.render.page import CSS, DIGEST, SCRIPT, VARIABLES
from reports.render.printed import NAMES, printed
from reports.render.printed_command import comment
from reports.render.setup import checklist, paragraph
from reports.results.number_text import fixed
from reports.results.run_outcomes import Ended, Outcome, run_facts
from reports.results.table import Measure, Row, Table
from reports.table.cost import training_seconds
from reports.table.provenance import corpus_name
from reports.table.settings import show

GRID_JSON = "table"
POLICY = (
    f"default-src 'none'; script-src 'sha256-{DIGEST}'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)
RUN_HEADS = ("row", "seed", "run", "state", "steps", "minutes", "device", "precision", "commit")


@dataclass(frozen=True)
class Drawn:
    """A figure as SVG, in a version for wide pages and a version for narrow pages."""

    title: str
    wide: bytes
    narrow: bytes


def escape(text: object) -> str:
    """Return text escaped for an element or a quoted attribute."""
    return escape_html(plain(text), quote=True)


@cache
def _template() -> Any:
    """Return the template page.html. It escapes every value that is not markup."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    def finalize(value: object) -> Markup:
        return value if isinstance(value, Markup) else Markup(escape(value))

    made = Environment(autoescape=True, finalize=finalize, undefined=StrictUndefined)
    made.globals |= {"names": NAMES, "spanned": spanned, "group_name": group_name, "number": number, "zip": zip}
    made.globals |= {"seed_in_words": seed_in_words, "lines": _lines}
    return made.from_string(files(__package__).joinpath("page.html").read_text("utf-8"))


def _made(part: str, **values: Any) -> str:
    return str(getattr(_template().make_module(values), part)())


def _lines(lines: Iterable[str]) -> Any:
    """Return escaped lines of text as one markup value with line breaks."""
    from markupsafe import Markup

    return Markup("\n".join(" " * (len(line) - len(line.lstrip(" "))) + escape(line) for line in lines))


def render(
    table: Table, figures: Mapping[str, Drawn] | None = None, failed: Sequence[tuple[Outcome, Ended]] = ()
) -> str:
    """Return the page. figures: see reports/figures/draw.py. failed: the failed runs and their errors."""
    from markupsafe import Markup

    shown = printed(table, "html")
    table, grid = shown.table, shown.grid
    spans = labels_span(grid)
    return _made(
        "page",
        shown=shown,
        grid=grid,
        title=table.title or table.spec.name,
        bundle=table.bundle,
        comment=comment(table),
        policy=POLICY,
        css=CSS,
        script=SCRIPT,
        summary=_summary(table),
        shown_heads=[head for head in grid.heads if not (spans and head.kind == "label")],
        parts=partial(_parts, grid, spans),
        detail=partial(_detail, table),
        of_base=partial(_of_base, table),
        figures=figures or {},
        in_page=lambda svg, title: Markup(_in_page(svg.decode(), title)),
        failed=failed,
        changed=[row for row in table.rows if row.spec.diff],
        paragraph=paragraph(table),
        checklist=checklist(table),
        run_heads=RUN_HEADS,
        runs=[_run(outcome) for outcome in table.outcomes],
        grid_json=GRID_JSON,
        data=_data(grid),
    )


def fragment(table: Table) -> str:
    """Return the table as `ablations report` prints it in HTML, without the page around it."""
    shown = printed(table, "html")
    return _made(
        "notebook", shown=shown, grid=shown.grid, title=shown.table.title or shown.table.spec.name, bundle=table.bundle
    )


def _parts(grid: Grid, spans: bool, line: Line) -> Iterator[tuple[str, int, list[tuple[Head, Cell]]]]:
    """Yield the cells of a line in groups of one kind, as (label, number of columns of the label, cells).

    spans: whether a label is printed across the setting columns.
    """
    for kind, pairs in itertools.groupby(zip(grid.heads, line.cells, strict=True), key=lambda pair: pair[0].kind):
        cells = list(pairs)
        if kind == "setting" and spans and line.row.label:
            yield line.row.label, len(cells), []
        elif not (kind == "label" and spans):
            yield "", 0, cells


def _of_base(table: Table, head: Head, row: Row) -> str | None:
    """Return base's value of a setting; None if the value is unknown.

    A blank cell of the setting's column means this value, so the page sorts blank cells by this value.
    """
    base = next((other for other in table.rows if other.key == table.base_of(row)), None)
    known = base is not None and row.outcomes and head.key in base.settings
    return show(head.key, base.settings[head.key]) if base and known else None


def _detail(table: Table, head: Head, cell: Cell, line: Line) -> tuple[str, Any] | None:
    """Return the CSS classes and the details of a cell; None for a cell without details."""
    row = line.row_under(head)
    measure = row.measures.get(head.metric) if row and head.kind == "value" else None
    if row is None or measure is None or not (cell.text or cell.mark) or head.role not in ("ours", "change"):
        return None
    kinds = ["cell", *(["best"] if cell.emphasis else []), *(["gap"] if measure.missing or cell.provisional else [])]
    return " ".join(kinds), _lines(_details(table, row, measure, head))


def _details(table: Table, row: Row, measure: Measure, head: Head) -> Iterator[str]:
    """Yield the details of a cell: its seeds and runs, its change, its interval and test, the published number."""
    column = next(column for column in table.columns if column.key == head.metric)
    yield f"{row.key} · {column.header}"
    values = iter(measure.values)
    for outcome in row.outcomes:
        value = outcome.measured(column.set, column.metric)
        shown = fixed(next(values), column.digits + 2) if value is not None else f"– ({outcome.run.state})"
        yield f"{seed_in_words(outcome.run.seed)}: {shown}   run {outcome.run.run_id}"
    if measure.change is not None:
        yield f"change from {table.base_of(row)}: {fixed(measure.change, 3, signed=True)}"
    if (test := measure.test) is not None:
        low, high = (fixed(bound, 3, signed=True) for bound in (test.low, test.high))
        yield f"95% interval {low} … {high}, p = {test.p:.2g} corrected, between {table.test} ({test.by})"
    if measure.reported is not None:
        yield f"published: {measure.reported}"


def _run(outcome: Outcome) -> tuple[object, ...]:
    """Return a line of the table of runs, with one value for each of RUN_HEADS."""
    run, facts, seconds = outcome.run, run_facts(outcome.record), training_seconds(outcome)
    minutes = f"{seconds / 60:.1f}" if seconds is not None else ""
    state = "imported" if run.spec.imported and outcome.record else run.state
    made = (facts["device"] or "", facts["precision"] or "", (facts["commit"] or "")[:10])
    steps = "" if facts["steps"] is None else facts["steps"]
    return run.row, run.seed or "ensemble", run.run_id, state, steps, minutes, *made


def _data(grid: Grid) -> str:
    """Return the table as JSON for a script element. <, > and & are escaped, so that no text can end the element."""
    heads = [f"{head.top} {head.sub}".strip() for head in grid.heads]
    lines = [heads, *([cell.text + cell.mark for cell in line.cells] for line in grid.lines)]
    text = json.dumps(lines).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return text.replace("], [", "],\n[")


def _summary(table: Table) -> str:
    done = sum(outcome.record is not None for outcome in table.outcomes)
    corpora = dict.fromkeys(filter(None, map(corpus_name, table.outcomes)))
    parts = [
        table.spec.name,
        f"profile {table.spec.profile}" if table.spec.profile else "",
        f"corpus {', '.join(corpora)}" if corpora else "",
        table.last_change,
        f"{number(len(table.rows), 'row')}, {done} of {number(len(table.outcomes), 'run')} finished",
    ]
    return " · ".join(filter(None, parts))


_VARIABLE = {on_white: f"var(--{name})" for name, (on_white, _) in VARIABLES.items()}
_COLOUR = re.compile(r"(?<=: )#[0-9a-f]{6}(?=[;\"])")
_METADATA = re.compile(r"<metadata>.*?</metadata>\s*", re.DOTALL)
# Coordinates, and numbers with at least three decimals, which are finer than a pixel.
_PLACES, _LONG = re.compile(r'\b(?:d|x|y)="[^"]*"'), re.compile(r"-?\d+\.\d{3,}")
_EMPTY = re.compile(r'\s*<g id="\w+"/>|(?<=>)\s+(?=<)')
_NUMBERED = re.compile(r'<g id="([a-z]\w*?)(?:\.\w+)?_\d+">')  # matplotlib numbers every group of every figure


def _shortened(found: re.Match[str]) -> str:
    return _LONG.sub(lambda number: f"{float(number[0]):.2f}", found[0]).replace("\n", " ").replace(' "', '"')


def _in_page(svg: str, title: str) -> str:
    """Return a figure as an SVG element with the colours of the page's style sheet. title: label of the figure."""
    svg = _METADATA.sub("", svg[svg.index("<svg") :])
    svg = _NUMBERED.sub(r'<g class="\1">', svg)
    svg = _EMPTY.sub("", _PLACES.sub(_shortened, svg))
    svg = _COLOUR.sub(lambda found: _VARIABLE.get(found[0], found[0]), svg)
    return svg.replace("<svg ", f'<svg role="group" aria-label="{escape(title)}" ', 1)
