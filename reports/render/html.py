"""One HTML page, complete in itself: no network, one script of its own. Details open by hover, focus or click.

The page forbids itself to load anything, or to run anything but page_script.py (its Content-Security-Policy), whatever
names it holds. The table is there a second time as JSON, for `ablations verify`.
"""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape as escape_html

from ablations.study.messages import number
from experiments.identity import seed_in_words
from reports.render.cells import Cell, Grid, Head, Line, labels_span
from reports.render.checklist import checklist
from reports.render.html_figures import Drawn, figures_section
from reports.render.html_sections import escape, failures_section, runs_section
from reports.render.made_by import comment
from reports.render.numbers import fixed, group_name
from reports.render.page_script import DIGEST, SCRIPT
from reports.render.page_style import CSS
from reports.render.printed import printed
from reports.render.setup import paragraph
from reports.render.text import plain
from reports.results.failures import Failure
from reports.results.table import Measure, Row, Table, Test
from reports.table.provenance import corpus_name
from reports.table.settings import show

GRID_JSON = "table"
LONG = 24  # characters
POLICY = (
    f"default-src 'none'; script-src 'sha256-{DIGEST}'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)


def render(table: Table, figures: Mapping[str, Drawn] | None = None, failed: Sequence[Failure] = ()) -> str:
    """`figures`: reports/figures/draw.py; `failed`: reports/results/failures.py."""
    shown = printed(table, "html")
    table, grid = shown.table, shown.grid
    title = escape(table.title or table.name)
    parts = [
        "<!DOCTYPE html>",
        *comment(table),
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title><style>{CSS}</style></head><body>",
        *([f"<p class=warning role=note>{escape(table.bundle)}</p>"] if table.bundle else []),
        f'<header><h1>{title}</h1><p class="soft summary">{escape(_summary(table))}</p></header><main>',
        *(f"<p class=warning role=note>{escape(text)}</p>" for text in shown.warnings),
        *_table(table, grid),
        '<ul class="notes">',
        *(f"<li>{escape(note)}</li>" for note in shown.notes),
        "</ul>",
        *figures_section(figures or {}),
        *failures_section(failed),
        "<section><h2>Experimental setup</h2>",
        f"<p>{escape(paragraph(table))}</p></section>",
        "<section><h2>Reproducibility checklist</h2><dl>",
        *(f"<dt>{escape(question)}</dt><dd>{escape(answer)}</dd>" for question, answer in checklist(table)),
        "</dl></section>",
        *runs_section(table),
        f'</main><script type="application/json" id="{GRID_JSON}">{_data(grid)}</script>',
        f"<script>{SCRIPT}</script>",
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _data(grid: Grid) -> str:
    """JSON in a script element: nothing in it may look like the element's end."""
    heads = [f"{head.top} {head.sub}".strip() for head in grid.heads]
    lines = [heads, *([cell.text + cell.mark for cell in line.cells] for line in grid.lines)]
    text = json.dumps(lines).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return text.replace("], [", "],\n[")


def _summary(table: Table) -> str:
    runs = sum(len(row.outcomes) for row in table.rows)
    done = sum(outcome.record is not None for row in table.rows for outcome in row.outcomes)
    corpora = dict.fromkeys(filter(None, (corpus_name(outcome) for row in table.rows for outcome in row.outcomes)))
    parts = [
        table.name,
        f"profile {table.profile}" if table.profile else "",
        f"corpus {', '.join(corpora)}" if corpora else "",
        table.last_change,
        f"{number(len(table.rows), 'row')}, {done} of {number(runs, 'run')} finished",
    ]
    return " · ".join(filter(None, parts))


def _table(table: Table, grid: Grid) -> Iterator[str]:
    spans = labels_span(grid)
    yield '<div class="tools"></div>'
    yield '<div class="scroll" tabindex="0" role="region" aria-label="The table"><table class="data">'
    yield from _heads([head for head in grid.heads if not (spans and head.kind == "label")])
    yield "<tbody>"
    for line in grid.lines:
        opens = ' class="opens"' if line.opens_group and line is not grid.lines[0] else ""
        yield f"<tr{opens}>{''.join(_cells(table, grid, line, spans))}</tr>"
    yield "</tbody></table></div>"


def _cells(table: Table, grid: Grid, line: Line, spans: bool) -> Iterator[str]:
    """With `spans`, a label takes the place of the settings."""
    for kind, pairs in itertools.groupby(zip(grid.heads, line.cells, strict=True), key=lambda pair: pair[0].kind):
        cells = list(pairs)
        if kind == "setting" and spans and line.row.label:
            label = Cell(line.row.label)
            yield f'<td class="words{_long(label)}" colspan="{len(cells)}">{escape(label.text)}</td>'
        elif not (kind == "label" and spans):
            yield from (_cell(table, head, cell, line) for head, cell in cells if cell.span)


def _heads(shown: Sequence[Head]) -> Iterator[str]:
    """Two lines: a metric spans its columns; a head alone spans both lines."""
    top, bottom = [], []
    for (_, spans), group in itertools.groupby(shown, key=lambda head: (head.spanned_by, bool(head.sub))):
        heads = list(group)
        if spans and len(heads) > 1:
            top.append(f'<th class="span" colspan="{len(heads)}" scope="colgroup">{escape(heads[0].top)}</th>')
            bottom += [
                f'<th scope="col"{_name(head)}>{escape(head.sub.replace("paper Δ", "Δ"))}</th>' for head in heads
            ]
        else:
            top += [f'<th rowspan="2" scope="col"{_left(head)}{_name(head)}>{escape(head.top)}</th>' for head in heads]
    yield f"<thead><tr>{''.join(top)}</tr><tr>{''.join(bottom)}</tr></thead>"


def _name(head: Head) -> str:
    """The whole head, for the choice of columns and for copies."""
    sub = "" if head.sub == "ours" else head.sub
    return f' data-name="{escape(f"{head.top} {sub}".strip() or head.kind)}"'


def _left(head: Head) -> str:
    """A head of words; the row's stays in sight with its column."""
    kinds = {"group": "left", "row": "left name", "label": "left"}
    return f' class="{kinds[head.kind]}"' if head.kind in kinds else ""


def _cell(table: Table, head: Head, cell: Cell, line: Line) -> str:
    text = escape(cell.text) + (f"<sup>{escape(cell.mark)}</sup>" if cell.mark else "")
    if head.kind == "row":
        return f'<th scope="row" class="name{_long(cell)}">{text}</th>'
    if head.kind == "group" and not cell.text and line.row.group != line.row.key:
        text = f"<span class=again>{escape(group_name(line.row.group))}</span>"  # seen where rows are sorted or hidden
    if head.kind in ("group", "label"):
        return f'<td class="left{_long(cell)}">{text}</td>'
    if head.kind == "setting" and not text:
        return f"<td{_of_base(table, head, line.row)}></td>"
    row = line.row_under(head)
    measure = row.measures.get(head.metric) if row and head.kind == "value" else None
    if row is None or measure is None or not text or head.role not in ("ours", "change"):
        return f'<td colspan="{cell.span}">{text}</td>' if cell.span > 1 else f"<td>{text}</td>"
    kinds = ["cell", *(["best"] if cell.emphasis else []), *(["gap"] if measure.missing or cell.provisional else [])]
    tip = escape_html("\n".join(map(plain, _detail(table, row, measure, head))), quote=True)
    return f'<td class="{" ".join(kinds)}" tabindex="0">{text}<span class="tip" role="tooltip">{tip}</span></td>'


def _of_base(table: Table, head: Head, row: Row) -> str:
    """Base's value, which a blank setting stands for, to sort by."""
    base = next((other for other in table.rows if other.key == table.base_of(row)), None)
    known = base is not None and row.outcomes and head.key in base.settings
    return f' data-base="{escape(show(head.key, base.settings[head.key]))}"' if base and known else ""


def _long(cell: Cell) -> str:
    """A long text may break anywhere; a short one stays on its line."""
    return " long" if len(cell.text) > LONG else ""


def _p(test: Test) -> str:
    return "by the rule for seeds" if test.p is None else f"p = {test.p:.2g} corrected"


def _detail(table: Table, row: Row, measure: Measure, head: Head) -> Iterator[str]:
    """The details of a cell: its seeds, its interval, its test, its runs."""
    column = next(column for column in table.columns if column.key == head.metric)
    yield f"{row.key} · {column.header}"
    values = iter(measure.values)
    for outcome in row.outcomes:
        value = outcome.measured(column.set, column.metric)
        shown = fixed(next(values), column.digits + 2) if value is not None else f"– ({outcome.run.state})"
        yield f"{seed_in_words(outcome.run.seed)}: {shown}   run {outcome.run.run_id}"
    if measure.change is not None:
        yield f"change from {table.base_of(row)}: {fixed(measure.change, 3, signed=True)}"
    if measure.test is not None:
        low, high = (fixed(bound, 3, signed=True) for bound in (measure.test.low, measure.test.high))
        yield f"95% interval {low} … {high}, {_p(measure.test)}, between {table.test}"
    if measure.reported is not None:
        yield f"published: {measure.reported}"
