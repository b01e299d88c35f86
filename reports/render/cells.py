"""What a printed table consists of, before any format's escaping: heads, cells, lines."""

from dataclasses import dataclass

from reports.results.table import Row


@dataclass(frozen=True)
class Head:
    """A column's head. `top` may span several columns (a metric); `sub` tells those apart."""

    key: str  # a setting's dotted name, or "metric.role"
    top: str
    sub: str = ""
    kind: str = "value"  # group, row, setting, label, value
    group: str = ""  # of the rows that the column shows; "" for all (reports/render/pivot.py)
    one_line: str = ""  # where heads have one line; `top` or `sub` if unset
    spans: str = ""  # replaces `metric` as what `top` names

    @property
    def metric(self) -> str:
        """ "bleu" of "bleu.change"; "" of a column of one word."""
        return self.key.rpartition(".")[0]

    @property
    def role(self) -> str:
        """ "change" of "bleu.change"."""
        return self.key.rpartition(".")[2]

    @property
    def spanned_by(self) -> str:
        """What `top` names: equal for the columns that it spans."""
        return self.spans or self.metric

    @property
    def alone(self) -> str:
        """The head in one line."""
        return self.one_line or (self.top if self.sub in ("", "ours") else self.sub)


@dataclass(frozen=True)
class Cell:
    text: str = ""
    emphasis: bool = False
    mark: str = ""  # printed raised, after the text
    provisional: bool = False  # a mean or change over the seeds that are there
    span: int = 1  # columns that the cell takes; 0: taken by the one to its left


@dataclass(frozen=True)
class Line:
    rows: tuple[Row, ...]  # several in a pivoted table: one of each group
    opens_group: bool
    cells: tuple[Cell, ...]  # one per head

    @property
    def row(self) -> Row:
        """The first of the rows."""
        return self.rows[0]

    @property
    def name(self) -> str:
        """The rows' keys."""
        return ", ".join(dict.fromkeys(row.key for row in self.rows))

    def row_under(self, head: Head) -> Row | None:
        """The row whose number stands in a column; None if the line has none there."""
        return next((row for row in self.rows if head.group in ("", row.group)), None)


@dataclass(frozen=True)
class Grid:
    heads: tuple[Head, ...]
    lines: tuple[Line, ...]
    pivoted: bool = False


def settings_of(grid: Grid, line: Line) -> list[Cell]:
    """The cells of a line that show settings."""
    return [cell for head, cell in zip(grid.heads, line.cells, strict=True) if head.kind == "setting"]


def labels_span(grid: Grid) -> bool:
    """A label may stand across the settings, as in the paper: wherever there is one, they are blank."""
    labelled = [settings_of(grid, line) for line in grid.lines if line.row.label]
    return not grid.pivoted and bool(labelled and labelled[0]) and not any(c.text for cells in labelled for c in cells)
