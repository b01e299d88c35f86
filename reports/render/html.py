"""HTML: one page, complete in itself, or a piece for a notebook's cell.

The page needs no network and has one script of its own. Details open by hover, focus or click. It forbids itself to
load anything, or to run anything but the script of page.py (its Content-Security-Policy), whatever names it holds. The
table is there a second time as JSON, for `ablations verify`.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape as escape_html

from ablations.study.messages import number
from experiments.identity import seed_in_words
from reports.render.cells import Cell, Grid, Head, Line, fixed, group_name, labels_span, plain, spanned
from reports.render.page import CSS, DIGEST, SCRIPT, VARIABLES
from reports.render.printed import NAMES, Printed, comment, printed
from reports.render.setup import checklist, paragraph
from reports.results.results import Ended, Outcome, run_facts
from reports.results.table import Measure, Row, Table
from reports.table.cost import training_seconds
from reports.table.provenance import corpus_name
from reports.table.settings import show

# --- Sections of the page below the table: failures, runs


def failures_section(failed: Sequence[tuple[Outcome, Ended]]) -> Iterator[str]:
    """Messages of failed runs, each in its own element."""
    if failed:
        yield "<section><h2>Failures</h2>"
        for outcome, ended in failed:
            run = outcome.run
            head = f"{run.row}, {seed_in_words(run.seed)}: {ended.kind.replace('_', ' ') or 'ended'}"
            where = f"run {run.run_id}, attempt {ended.attempt}"
            message = escape_html("\n".join(map(plain, ended.message.split("\n"))), quote=True)
            yield f"<details open><summary>{escape(head)} <span class=soft>{escape(where)}</span></summary>"
            yield f"<pre>{message}</pre></details>"
        yield "</section>"


def runs_section(table: Table) -> Iterator[str]:
    """A table with one line per run."""
    heads = ("row", "seed", "run", "state", "steps", "minutes", "device", "precision", "commit")
    yield "<section><h2>Runs</h2><details><summary>Every run of the table</summary>"
    yield f'<div class="scroll"><table class="runs"><thead><tr>{_line("th", heads)}</tr></thead><tbody>'
    for outcome in table.outcomes:
        run, facts, seconds = outcome.run, run_facts(outcome.record), training_seconds(outcome)
        minutes = f"{seconds / 60:.1f}" if seconds is not None else ""
        steps = "" if facts["steps"] is None else facts["steps"]
        made = (facts["device"] or "", facts["precision"] or "", (facts["commit"] or "")[:10])
        state = "imported" if run.imported and outcome.record else run.state
        named = (run.row, run.seed or "ensemble", run.run_id, state)
        yield f"<tr>{_line('td', (*named, steps, minutes, *made))}</tr>"
    yield "</tbody></table></div></details></section>"


def _line(tag: str, values: Iterable[object]) -> str:
    return "".join(f"<{tag}>{escape(value)}</{tag}>" for value in values)


def escape(text: object) -> str:
    """Text of an element or of a quoted attribute."""
    return escape_html(plain(text), quote=True)


# --- Figures on the page: SVG in its width and colours, one drawing for a desk and one for a phone


_VARIABLE = {on_white: f"var(--{name})" for name, (on_white, _) in VARIABLES.items()}
_COLOUR = re.compile(r"(?<=: )#[0-9a-f]{6}(?=[;\"])")
_METADATA = re.compile(r"<metadata>.*?</metadata>\s*", re.DOTALL)
_PLACES, _LONG = re.compile(r'\b(?:d|x|y)="[^"]*"'), re.compile(r"-?\d+\.\d{3,}")  # finer than a screen shows
_EMPTY = re.compile(r'\s*<g id="\w+"/>|(?<=>)\s+(?=<)')
_NUMBERED = re.compile(r'<g id="([a-z]\w*?)(?:\.\w+)?_\d+">')  # matplotlib numbers every group of every figure


@dataclass(frozen=True)
class Drawn:
    """A figure as SVG, for wide pages and for narrow ones."""

    title: str
    wide: bytes
    narrow: bytes


def figures_section(figures: Mapping[str, Drawn]) -> Iterator[str]:
    """Each figure below its title."""
    if figures:
        yield "<section><h2>Figures</h2>"
        yield '<p class="soft live-only">Point at a mark for its values. A click keeps them open.</p>'
        for name, drawn in figures.items():
            yield f'<figure id="figure-{escape(name)}"><figcaption>{escape(drawn.title)}</figcaption>'
            for of, svg in (("wide", drawn.wide), ("narrow", drawn.narrow)):
                yield f'<div class="{of}">{_in_page(svg.decode(), drawn.title)}</div>'
            yield "</figure>"
        yield "</section>"


def _shortened(found: re.Match[str]) -> str:
    return _LONG.sub(lambda number: f"{float(number[0]):.2f}", found[0]).replace("\n", " ").replace(' "', '"')


def _in_page(svg: str, title: str) -> str:
    """The drawing alone, in colours that the page's style sheet sets; its title as its label."""
    svg = _METADATA.sub("", svg[svg.index("<svg") :])
    svg = _NUMBERED.sub(r'<g class="\1">', svg)
    svg = _EMPTY.sub("", _PLACES.sub(_shortened, svg))
    svg = _COLOUR.sub(lambda found: _VARIABLE.get(found[0], found[0]), svg)
    return svg.replace("<svg ", f'<svg role="group" aria-label="{escape(title)}" ', 1)


# --- The page


GRID_JSON = "table"
LONG = 24  # characters
POLICY = (
    f"default-src 'none'; script-src 'sha256-{DIGEST}'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)


def render(
    table: Table, figures: Mapping[str, Drawn] | None = None, failed: Sequence[tuple[Outcome, Ended]] = ()
) -> str:
    """`figures`: reports/figures/draw.py; `failed`: reports/results/results.py."""
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
        *_notes(shown),
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


def _notes(shown: Printed) -> Iterator[str]:
    """The printed notes, and the others folded."""
    if shown.notes:
        yield f'<ul class="notes">{_line("li", shown.notes)}</ul>'
    if shown.left_out and shown.choices.notes != "none":
        yield f"<details><summary>{number(len(shown.left_out), 'more note')}</summary>"
        yield f'<ul class="notes">{_line("li", shown.left_out)}</ul></details>'


def _data(grid: Grid) -> str:
    """JSON in a script element: nothing in it may look like the element's end."""
    heads = [f"{head.top} {head.sub}".strip() for head in grid.heads]
    lines = [heads, *([cell.text + cell.mark for cell in line.cells] for line in grid.lines)]
    text = json.dumps(lines).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return text.replace("], [", "],\n[")


def _summary(table: Table) -> str:
    done = sum(outcome.record is not None for outcome in table.outcomes)
    corpora = dict.fromkeys(filter(None, map(corpus_name, table.outcomes)))
    parts = [
        table.name,
        f"profile {table.profile}" if table.profile else "",
        f"corpus {', '.join(corpora)}" if corpora else "",
        table.last_change,
        f"{number(len(table.rows), 'row')}, {done} of {number(len(table.outcomes), 'run')} finished",
    ]
    return " · ".join(filter(None, parts))


def _table(table: Table, grid: Grid) -> Iterator[str]:
    spans = labels_span(grid)
    yield '<div class="tools"></div>'
    yield '<div class="scroll" tabindex="0" role="region" aria-label="The table"><table class="data">'
    yield _heads([head for head in grid.heads if not (spans and head.kind == "label")])
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
            yield f'<td class="words setting{_long(label)}" colspan="{len(cells)}">{escape(label.text)}</td>'
        elif not (kind == "label" and spans):
            yield from (_cell(table, head, cell, line) for head, cell in cells if cell.span)


def _heads(shown: Sequence[Head]) -> str:
    """Two lines: a metric spans its columns; a head alone spans both lines."""
    top, bottom = [], []
    for spans, heads in spanned(shown):
        if spans:
            top.append(f'<th class="span" colspan="{len(heads)}" scope="colgroup">{escape(heads[0].top)}</th>')
            bottom += [f'<th scope="col"{_name(head)}>{escape(head.sub_alone)}</th>' for head in heads]
        else:
            top += [f'<th rowspan="2" scope="col"{_left(head)}{_name(head)}>{escape(head.top)}</th>' for head in heads]
    return f"<thead><tr>{''.join(top)}</tr><tr>{''.join(bottom)}</tr></thead>"


def _name(head: Head) -> str:
    """The whole head, for the choice of columns and for copies."""
    sub = "" if head.sub == "ours" else head.sub
    return f' data-name="{escape(f"{head.top} {sub}".strip() or head.kind)}"'


def _left(head: Head) -> str:
    """A head of words; the row's stays in sight with its column. A setting's moves on a phone."""
    kinds = {"group": "left", "row": "left name", "label": "left", "setting": "setting"}
    return f' class="{kinds[head.kind]}"' if head.kind in kinds else ""


def _cell(table: Table, head: Head, cell: Cell, line: Line) -> str:
    text = escape(cell.text) + (f"<sup>{escape(cell.mark)}</sup>" if cell.mark else "")
    if head.kind == "row":
        return f'<th scope="row" class="name{_long(cell)}">{text}</th>'
    if head.kind == "group" and not cell.text and line.row.group != line.row.key:
        text = f"<span class=again>{escape(group_name(line.row.group))}</span>"  # seen where rows are sorted or hidden
    if head.kind in ("group", "label"):
        return f'<td class="left{_long(cell)}">{text}</td>'
    if head.kind == "setting":
        wide = f' colspan="{cell.span}"' if cell.span > 1 else ""
        return f'<td class="setting"{wide}{"" if text else _of_base(table, head, line.row)}>{text}</td>'
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
    if (test := measure.test) is not None:
        low, high = (fixed(bound, 3, signed=True) for bound in (test.low, test.high))
        p = "by the rule for seeds" if test.p is None else f"p = {test.p:.2g} corrected"
        yield f"95% interval {low} … {high}, {p}, between {table.test} ({test.by})"
    if measure.reported is not None:
        yield f"published: {measure.reported}"


# --- A notebook's cell: the printed columns and notes, without script
# It has no style beyond attributes, so that it also shows where a notebook is only read (GitHub, nbconvert).


def fragment(table: Table) -> str:
    """As `ablations report` prints it for a browser, without the page around it."""
    shown = printed(table, "html")
    title = shown.table.title or shown.table.name
    warnings = (f"<p><b>Warning:</b> {escape(text)}</p>" for text in shown.warnings)
    below = "".join([*warnings, *_notes(shown)])
    lines = "".join(f"<tr>{''.join(_fragment_cells(shown.grid, line))}</tr>" for line in shown.grid.lines)
    head = _fragment_heads(shown.grid.heads)
    caption = f"<caption>{escape(title)}</caption>"
    first = f"<p><b>{escape(table.bundle)}</b></p>" if table.bundle else ""
    return f"<div>{first}<table>{caption}<thead>{head}</thead><tbody>{lines}</tbody></table>{below}</div>"


def _fragment_heads(shown: Sequence[Head]) -> str:
    """Two lines: what spans several columns, and these."""
    top, below = [], []
    for spans, heads in spanned(shown):
        if spans:
            top.append(f'<th colspan="{len(heads)}" style="text-align: center">{escape(heads[0].top)}</th>')
            below += [f"<th>{escape(head.sub)}</th>" for head in heads]
        else:
            top += [f'<th rowspan="2"{_side(head)}>{escape(head.top)}</th>' for head in heads]
    return f"<tr>{''.join(top)}</tr><tr>{''.join(below)}</tr>"


def _fragment_cells(grid: Grid, line: Line) -> Iterator[str]:
    rule = "border-top: 1px solid currentColor; " if line.opens_group and line is not grid.lines[0] else ""
    for head, cell in zip(grid.heads, line.cells, strict=True):
        if cell.span:
            wide = f' colspan="{cell.span}"' if cell.span > 1 else ""
            yield f"<td{wide}{_side(head, rule)}>{_text(cell)}</td>"


def _side(head: Head, rule: str = "") -> str:
    return f' style="{rule}text-align: {"left" if head.kind in NAMES else "right"}"'


def _text(cell: Cell) -> str:
    text = escape(cell.text)
    text = f"<b>{text}</b>" if cell.emphasis else f"<i>{text}</i>" if cell.provisional else text
    return text + (f"<sup>{escape(cell.mark)}</sup>" if cell.mark else "")
