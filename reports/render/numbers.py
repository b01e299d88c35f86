"""The numbers of a table for the text of a paper: LaTeX commands, and placeholders in Markdown or Typst.

The name of a number consists of its row and column, as in `base.bleu`. A suffix selects another number of the cell:
`.sd`, `.change`, `.low` and `.high` (the interval of the change), `.p`, `.paper`. `base.n` is the number of seeds.
Numbers have the digits of the table. A cell without a number has no name.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping

from experiments.errors import UserError
from experiments.messages import suggestion
from experiments.tasks.columns import Column
from reports.render.latex_text import escape
from reports.render.printed import printed
from reports.render.printed_command import MADE_BY
from reports.results.number_text import fixed
from reports.results.table import Table, change_digits

_HEAD = r"""\makeatletter
\providecommand{\abl}[1]{\ifcsname abl@#1\endcsname\csname abl@#1\endcsname\else
  \PackageError{ablations}{there is no number `#1'}{The table has a gap there, or no such row or column.}\fi}
"""
_COMMAND = re.compile(r"\\expandafter\\def\\csname abl@([^\\]+)\\endcsname\{(.*)\}")
_USED, _PLACE = re.compile(r"\\abl\{([^{}]+)\}"), re.compile(r"\{\{\s*([\w.-]+)\s*\}\}")


def numbers(table: Table) -> dict[str, str]:
    """Return the printed text of every number, with its name as the key."""
    return {name: text for name, text in _named(table) if text}


def _named(table: Table) -> Iterator[tuple[str, str]]:
    for row in table.rows:
        yield f"{row.key}.n", str(row.n)
        for column, named in ((one, name) for one in table.listed for name in _names(one, table)):
            measure, name, digits = row.measures[column.key], f"{row.key}.{named}", change_digits(column)
            yield name, fixed(measure.mean, column.digits)
            yield f"{name}.sd", fixed(measure.sd, column.digits)
            yield f"{name}.paper", fixed(measure.reported, column.digits)
            yield f"{name}.change", fixed(measure.change, digits, signed=True)
            for part in ("low", "high") if measure.test else ():
                yield f"{name}.{part}", fixed(getattr(measure.test, part), digits, signed=True)
            if measure.test:
                yield f"{name}.p", "<0.001" if measure.test.p < 0.001 else f"{measure.test.p:.3f}"
    grid = printed(table, "markdown").grid
    for line in grid.lines if not grid.pivoted else ():
        for head, cell in zip(grid.heads, line.cells, strict=True):
            if head.role == "ours" and head.metric not in {column.key for column in table.columns} and cell.text:
                yield f"{line.row.key}.{head.metric}", cell.text


def _names(column: Column, table: Table) -> list[str]:
    """Return the names of a column: its key, and its metric if no other column has this metric."""
    alone = sum(other.metric == column.metric for other in table.listed) == 1
    return [column.key, *([column.metric] if alone and column.metric != column.key else [])]


def as_macros(table: Table) -> str:
    r"""Return a LaTeX file that defines `\abl{base.bleu}` for every number. An unknown name is a LaTeX error."""
    found = numbers(table)
    lines = [f"\\expandafter\\def\\csname abl@{name}\\endcsname{{{escape(text)}}}" for name, text in found.items()]
    made = f"% {MADE_BY}{table.asked}\n" if table.asked else ""
    return f"{made}{_HEAD}" + "\n".join(lines) + "\n\\makeatother\n"


def defined(text: str) -> dict[str, str]:
    """Return the numbers that a file of `as_macros` defines; {} for any other file."""
    return dict(_COMMAND.findall(text)) if "abl@" in text else {}


def used(text: str) -> list[str]:
    r"""Return the names that a paper uses in `\abl{…}`, except in comments."""
    return list(dict.fromkeys(_USED.findall(re.sub(r"(?<!\\)%.*", "", text))))


def fill(text: str, known: Mapping[str, str]) -> str:
    """Replace placeholders such as {{A-h1.bleu.change}} by their numbers. Raises UserError for an unknown name."""
    for name in dict.fromkeys(_PLACE.findall(text)):
        if name not in known:
            raise UserError(f"There is no number {name!r}. {suggestion(name, _nearest_first(name, known), 'numbers')}")
    return _PLACE.sub(lambda found: known[found[1]], text)


def _nearest_first(name: str, known: Iterable[str]) -> list[str]:
    """Return the names of numbers, the most similar to `name` first; only those of the same row if the row exists."""
    options = list(known)
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        row = ".".join(parts[:count]) + "."
        if same := [option for option in options if option.startswith(row)]:
            options = same
            break
    return sorted(options, key=lambda option: -difflib.SequenceMatcher(None, option, name).ratio())
