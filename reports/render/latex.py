r"""LaTeX, laid out as Table 3 of the paper: rules between groups only, (A) before a group's first row, a label across
the settings that it stands for. A `table` environment to paste; what is not printed follows in comments.

Its fonts are as large as the text's width allows. Where that is less than expected (one column of two, without --wide),
\resizebox scales it down, so that it never covers the next column.
"""

from collections.abc import Iterator

from reports.render.latex_body import body_of
from reports.render.latex_cells import alignment, heads, lines
from reports.render.latex_text import escape, foreign
from reports.render.latex_width import BOTH_COLUMNS, HALF, ONE_COLUMN, Fit, fit
from reports.render.made_by import MADE_BY
from reports.render.markdown import as_pipe
from reports.render.printed import Printed, printed
from reports.render.text import plain
from reports.results.table import Table

_SCALED = r"\resizebox{\ifdim\width>\linewidth \linewidth\else\width\fi}{!}{%"


def render(table: Table) -> str:
    """A `table` environment with its caption, label and notes."""
    shown = printed(table, "latex")
    siunitx, wide = bool(shown.choices.siunitx), bool(shown.choices.wide)
    body = body_of(shown.grid)
    fitted = fit(body.widths(siunitx), body.least(), wide)
    scaled = fitted.total > HALF
    environment = "table*" if wide else "table"
    parts = [
        *_preface(shown, fitted, siunitx, scaled),
        rf"\begin{{{environment}}}[t]",
        r"\centering",
        *_caption(shown),
        *([rf"{{\scriptsize {escape(table.bundle)}\par}}\smallskip"] if table.bundle else []),
        fitted.size,
        rf"\setlength{{\tabcolsep}}{{{fitted.space}pt}}",
        *([_SCALED] if scaled else []),
        rf"\begin{{tabular}}{{@{{}}{alignment(body, fitted, siunitx)}@{{}}}}",
        r"\toprule",
        *heads(body, siunitx),
        *lines(body, fitted, siunitx),
        r"\bottomrule",
        r"\end{tabular}" + "}" * scaled,
        *_notes(shown),
        rf"\end{{{environment}}}",
        *_comments(shown),
    ]
    return "\n".join(parts) + "\n"


def _caption(shown: Printed) -> Iterator[str]:
    label = f"tab:{shown.table.name}" if shown.choices.label is None else shown.choices.label
    if shown.table.title:
        yield rf"\caption{{{escape(shown.table.title)}}}"
    if label and shown.table.title:  # without a caption there is no number to refer to
        yield rf"\label{{{label}}}"
    if shown.table.title:
        yield r"\smallskip"


def _preface(shown: Printed, fitted: Fit, siunitx: bool, scaled: bool) -> Iterator[str]:
    r"""What the document needs; characters that pdfLaTeX's default fonts lack are named by code point."""
    table, grid = shown.table, shown.grid
    texts = [table.title, *shown.warnings, *shown.notes]
    texts += [head.top for head in grid.heads] + [cell.text for line in grid.lines for cell in line.cells]
    texts += [line.row.label for line in grid.lines]
    if table.bundle:
        yield f"% {plain(table.bundle)}"
    if table.asked:
        yield f"% {MADE_BY}{plain(table.asked)}"
    packages = ["booktabs", *(["graphicx"] if scaled else []), *(["siunitx"] if siunitx else [])]
    yield rf"% in the preamble: \usepackage{{{','.join(packages)}}}"
    page = BOTH_COLUMNS if shown.choices.wide else ONE_COLUMN
    if scaled:
        narrower = "" if shown.choices.wide else "; across both columns of a page: --wide"
        yield f"% about {fitted.total:.0f} pt wide{narrower}; scaled down where the text is narrower"
    if fitted.total > page:
        yield "% wider than a usual page in the smallest legible size: leave columns out with --columns or --hide"
    missing = sorted(set("".join(map(foreign, texts))))
    if missing:
        some = " ".join(f"U+{ord(char):04X}" for char in missing[:8])
        yield f"% compile with XeLaTeX or LuaLaTeX and a font that has {some}{' …' if missing[8:] else ''}"


def _notes(shown: Printed) -> list[str]:
    notes = [rf"\emph{{Warning:}} {escape(text)}\par" for text in shown.warnings]
    notes += [rf"{escape(text)}\par" for text in shown.notes]
    if not notes:
        return []
    return [r"\par\smallskip", r"\begin{minipage}{\linewidth}\scriptsize\raggedright", *notes, r"\end{minipage}"]


def _comments(shown: Printed) -> Iterator[str]:
    """The other columns and notes, for the author."""
    if any(head.kind in ("value", "setting") for head in shown.hidden.heads):
        yield "%"
        yield "% Not printed (--columns, --no-plain and --paper print them):"
        yield from (f"% {line}" for line in as_pipe(shown.hidden).splitlines())
    if shown.left_out:
        yield "%"
        yield "% Notes that are not printed (--notes full prints them):"
        yield from (f"% - {plain(text)}" for text in shown.left_out)
