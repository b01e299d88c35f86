"""Published results of other systems, as rows of the printed table. The numbers do not come from runs of the study.

A cited result is printed above the rows of its group. Cited results of other groups follow at the end. In a pivoted
table, cited results are printed above all rows. JSON and CSV contain only runs, without cited results.
"""

from collections.abc import Iterator, Sequence

from experiments.tasks.columns import Column
from reports.results.table import Row, Table
from reports.spec.table_spec import Note, RowSpec, TableSpec
from reports.table.cost import COSTS

KEY = "cited"


def cited(spec: TableSpec, columns: Sequence[Column]) -> tuple[Row, ...]:
    """Return the cited results that have a number for one of the printed columns, ordered by group."""
    printed = {*(cost.key for cost in COSTS), *(column.paper for column in columns), *spec.published}
    entries = [entry for entry in spec.cited if printed & entry.values.keys()]
    # A pivoted table prints one line per label, in the order of the study.
    groups = [] if spec.pivot else list(dict.fromkeys(entry.group for entry in entries))
    entries = sorted(entries, key=lambda entry: groups.index(entry.group)) if groups else entries
    rows = (RowSpec(KEY, entry.group, entry.label, entry.values) for entry in entries)
    return tuple(Row(row, {}, {}, None, paper=row.paper, outcomes=()) for row in rows)


def in_order(table: Table) -> list[Row]:
    """Return the table's rows and the cited results in printing order."""
    if table.pivot:
        return [*table.cited, *table.rows]
    waiting, ordered = list(table.cited), list[Row]()
    for place, row in enumerate(table.rows):
        if place == 0 or row.group != table.rows[place - 1].group:
            ordered += [other for other in waiting if other.group == row.group]
            waiting = [other for other in waiting if other.group != row.group]
        ordered.append(row)
    return ordered + waiting


def about_cited(table: Table) -> Iterator[Note]:
    """Yield a note that explains cited results, and the study's note on each of them."""
    if table.cited:
        about = f"Rows with only published numbers ({KEY}) are other systems; they were not run here."
        yield Note(about, "sign")
        labels = {row.label for row in table.cited}
        noted = (entry for entry in table.spec.cited if entry.note and entry.label in labels)
        yield from (Note(f"{entry.label}: {entry.note}", "study") for entry in noted)
