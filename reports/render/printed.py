"""Apply the choices of the study and of the command to a table, before a format renders it."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from experiments.dotted import flatten
from experiments.errors import UserError
from experiments.messages import suggestion
from experiments.tasks.columns import named
from reports.render.cells import Cell, Grid, Head, Line
from reports.render.layout import MARK, Layout, cell_of_group, layout_of, published, setting
from reports.render.pivot import pivoted
from reports.results.table import Row, Table
from reports.spec.choices import Choices
from reports.spec.table_spec import KINDS
from reports.table.cited_rows import in_order
from reports.table.cost import COSTS, Cost, cost_notes, shown
from reports.table.settings import at

NAMES = ("group", "row", "label")  # kinds of columns that name the rows; they are always printed
CHANGES, PAPERS = ("change",), ("paper", "paper_change")


def chosen(layout: Layout, table: Table, choices: Choices, compact: bool) -> tuple[Layout, Layout]:
    """Return the columns to print, and the other columns. Raises UserError for a name that no column has.

    compact: if no columns are chosen, print n only if it differs between rows.
    """
    names = [column for column in layout if column[0].kind in NAMES]
    values = [column for column in layout if column[0].kind not in NAMES]
    if choices.columns:
        asked = [column for name in choices.columns for column in _asked(name, values, table, choices)]
    else:
        asked = [column for column in values if _usual(column[0], choices, compact, table)]
    values, asked = _with_distinct_heads(values, asked)
    hidden = {head.key for name in choices.hide for head, _ in _named(name, values, table)}
    shown = list({column[0].key: column for column in asked if column[0].key not in hidden}.values())
    if not shown:
        raise UserError(f"The table {table.spec.name} has no column to print. Choose columns with --columns or --hide.")
    keys = {head.key for head, _ in shown}
    others = [column for column in values if column[0].key not in keys]
    keys_alone = [column for column in names if table.pivot or column[0].kind != "label"]
    return [*names, *_stand_in(shown, keys, table)], [*keys_alone, *others]


def _with_distinct_heads(*parts: Layout) -> list[Layout]:
    """Replace a head that several settings share by the full names of the settings."""
    tops = Counter({head.key: head.top for part in parts for head, _ in part if head.kind == "setting"}.values())

    def apart(head: Head) -> Head:
        return replace(head, top=head.key) if head.kind == "setting" and tops[head.top] > 1 else head

    return [[(apart(head), make) for head, make in part] for part in parts]


def _usual(head: Head, choices: Choices, compact: bool, table: Table) -> bool:
    if head.key == "n" and compact:
        return len({(row.n, len(row.outcomes)) for row in table.rows}) > 1
    return _part(head, choices, table)


def _part(head: Head, choices: Choices, table: Table) -> bool:
    """Return whether the choices print this column of a metric or cost."""
    if head.kind != "value" or head.role not in (*CHANGES, *PAPERS):
        return True
    papers = choices.paper if choices.paper is not None else table.papers_corpus
    changes = not choices.plain
    return (head.role in CHANGES and changes) or (head.role in PAPERS and papers and (changes or head.role == "paper"))


def _asked(name: str, values: Layout, table: Table, choices: Choices) -> Layout:
    """Return the columns that a name selects: the column with this key, else the metric's columns that are printed."""
    found = _named(name, values, table)
    exact = [column for column in found if column[0].key.lower() == name.lower()]
    return exact or [column for column in found if _part(column[0], choices, table)]


def _named(name: str, values: Layout, table: Table) -> Layout:
    """Return the columns to which a name refers. Raises UserError if there is no such column.

    The name is compared with the keys of the columns, then with their heads, then with the last parts of the names of
    settings, and then with the names of metrics and costs. A setting without a column may also be named.
    """
    for spelt in (str, str.lower):  # exact case first, because N is a head and n the number of seeds
        word = spelt(name)
        for rank in range(3):
            if found := [column for column in values if word in map(spelt, _words(column[0])[rank])]:
                return found
        # other names of a column: "perplexity" for ppl, "num_params" for params
        one = named(word, [replace(c, metric=spelt(c.metric), paper=spelt(c.paper)) for c in table.columns])
        keys = [one.key] if one else [cost.key for cost in COSTS if cost.name == word]
        if found := [column for column in values if column[0].kind == "value" and column[0].metric in keys[:1]]:
            return found
    if name in NAMES:
        raise UserError(f"{name} cannot be chosen, because the names of rows are always printed. Leave it out.")
    if found := _other_settings(name, table):
        return found
    options = dict.fromkeys(head.metric if head.kind == "value" and head.metric else head.key for head, _ in values)
    raise UserError(f"{table.spec.name} has no column {name!r}. {suggestion(name, options, 'columns')}")


def _words(head: Head) -> tuple[tuple[str, ...], ...]:
    """Return a column's names in three ranks: its key, its head, and the last part of a setting's name."""
    keys = (head.key, head.metric) if head.kind == "value" else (head.key,)
    return keys, (head.top, head.alone), (head.key.rpartition(".")[2],) if head.kind == "setting" else ()


def _other_settings(name: str, table: Table) -> Layout:
    """Return the column of a setting that the table prints only on request. A blank cell means base's value."""
    known = dict.fromkeys(key for row in table.rows for key, _ in flatten(row.outcomes[0].run.config))
    found = [key for key in known if name in (key, key.rpartition(".")[2])]
    if len(found) > 1 and name not in found:
        raise UserError(f"{name} is ambiguous. Write {' or '.join(found)}.")
    return [_setting(key, table) for key in found[:1] if key not in ("seed", "task")]


def _setting(name: str, table: Table) -> tuple[Head, Callable[[Row], Cell]]:
    head, make = setting(name, name.rpartition(".")[2], table)

    def cell(row: Row) -> Cell:
        if not row.outcomes:
            return Cell()
        base = next((other for other in table.rows if other.key == table.base_of(row)), None)
        own = at(row, [name])
        same = base is not None and row is not base and own == at(base, [name])
        return make(replace(row, settings={} if same else own))

    return head, cell


def _stand_in(shown: Sequence[tuple[Head, Callable[[Row], Cell]]], keys: Iterable[str], table: Table) -> Layout:
    """Add the star of a change to a metric's value if the table prints no column of the changes.

    In the same way, print the number of a cited result in a column of our values if there is no published column.
    """
    keys = set(keys)
    last = {head.metric: head.key for head, _ in shown if head.kind == "value" and head.role not in (*CHANGES, *PAPERS)}
    marks = {c.key for c in table.columns if f"{c.key}.change" not in keys}
    cites = {metric: key for metric, key in last.items() if f"{metric}.paper" not in keys}

    def of(head: Head, make: Callable[[Row], Cell]) -> Callable[[Row], Cell]:
        cited = cites.get(head.metric) == head.key

        def cell(row: Row) -> Cell:
            if not row.outcomes:
                return published(replace(head, key=f"{head.metric}.paper"), row, table) if cited else make(row)
            made, test = make(row), row.measures[head.metric].test if head.metric in marks else None
            return replace(made, mark=made.mark + MARK) if test and test.marked and head.role == "ours" else made

        return cell

    return [(head, of(head, make)) for head, make in shown]


def with_digits(table: Table, costs: Sequence[Cost], digits: Mapping[str, int]) -> tuple[Table, list[Cost]]:
    """Return the table and its costs with these digits. Raises UserError for a name that no column has."""
    keys = {name: column.key for name in digits if (column := named(name, table.columns))}
    digits = {keys.get(name, name): count for name, count in digits.items()}
    known = [*(column.key for column in table.columns), *(cost.key for cost in costs)]
    for name in digits:
        if name and name not in known:
            raise UserError(f"digits: {table.spec.name} has no column {name!r}. {suggestion(name, known, 'columns')}")
    columns = tuple(replace(c, digits=digits.get(c.key, digits.get("", c.digits))) for c in table.columns)
    return replace(table, columns=columns), [replace(cost, digits=digits.get(cost.key)) for cost in costs]


COMPACT = ("latex",)  # formats that print n only if it differs between rows
OWN = {  # default choices of a format, which the study and the command replace
    "latex": Choices(plain=True, paper=False),
}


@dataclass(frozen=True)
class Printed:
    """A table as a format prints it, and the columns and notes that are left out."""

    table: Table  # the table with the chosen title and digits
    choices: Choices
    grid: Grid
    hidden: Grid  # the columns that are not printed
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    left_out: tuple[str, ...]  # notes that are not printed


def choices_for(table: Table, format_: str) -> Choices:
    """Return the choices for a format: its defaults, replaced by the study's choices, and then by the command's."""
    choices = OWN.get(format_, Choices())
    for layer in (*table.spec.choices.layers(format_), table.chosen):
        choices = layer.over(choices)
    return choices


def printed(table: Table, format_: str) -> Printed:
    """Apply the choices for a format. Raises UserError for a column that the table does not have."""
    choices = choices_for(table, format_)
    if choices.caption is not None:
        table = replace(table, title=choices.caption)
    papers = table.papers_corpus if choices.paper is None else choices.paper
    if not (papers or table.papers_corpus):  # do not mix published numbers of another corpus with ours
        table = replace(table, cited=())
    printed_costs = shown(table, choices.columns)
    of_named = [note for note in cost_notes(table, printed_costs) if note not in table.footnotes]
    table = replace(table, footnotes=(*table.footnotes, *of_named))
    table, costs = with_digits(table, printed_costs, choices.digits)
    layout, others = chosen(layout_of(table, costs), table, choices, compact=format_ in COMPACT)
    fitting = [note for note in table.footnotes if note.part in ("", *_parts(layout))]
    kinds = KINDS.get(choices.notes or "short")
    kept = [note for note in fitting if kinds is None or note.kind in kinds]
    return Printed(
        table,
        choices,
        arranged(table, layout),
        arranged(table, others),
        table.warnings,
        tuple(note.text for note in kept),
        tuple(note.text for note in table.footnotes if note not in kept),
    )


def _parts(shown: Layout) -> set[str]:
    """Return the parts of columns ("change", "paper") that are printed, to select the notes about them."""
    roles = {head.role for head, _ in shown if head.kind == "value"}
    return {
        *(["change"] if roles & {*CHANGES, "paper_change"} else []),
        *(["paper"] if roles & {*PAPERS} else []),
    }


def arranged(table: Table, layout: Layout) -> Grid:
    """Return the cells of these columns, arranged in lines."""
    rows = in_order(table)
    if table.pivot:
        return pivoted(table, rows, layout)
    opens = [number == 0 or row.group != rows[number - 1].group for number, row in enumerate(rows)]
    lines = tuple(_line(row, first, layout) for row, first in zip(rows, opens, strict=True))
    return Grid(tuple(head for head, _ in layout), lines)


def _line(row: Row, opens_group: bool, layout: Layout) -> Line:
    cells = [make(row) for _, make in layout]
    if layout[0][0].kind == "group":
        cells[0] = cell_of_group(row) if opens_group else Cell()
    return Line((row,), opens_group, tuple(cells))
