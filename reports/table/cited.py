"""Other systems' published results as rows of the printed table: nothing of them was run here.

They stand above the rows of their group; groups of their own follow at the end. In a pivoted table they stand above
all rows. JSON and CSV hold what was run, and leave them out.
"""

from collections.abc import Iterator, Sequence

from ablations.study.study import Study
from experiments.tasks.columns import Column
from reports.results.table import Row, Table
from reports.table.cost import COSTS

KEY = "cited"


def cited(study: Study, columns: Sequence[Column]) -> tuple[Row, ...]:
    """The study's entries that have a number for one of the printed columns, those of a group together."""
    printed = {*(cost.key for cost in COSTS), *(column.paper for column in columns), *study.published}
    entries = [entry for entry in study.cited if printed & entry.values.keys()]
    # a pivoted table prints one line a label, in the study's order
    groups = [] if study.pivot else list(dict.fromkeys(entry.group for entry in entries))
    entries = sorted(entries, key=lambda entry: groups.index(entry.group)) if groups else entries
    return tuple(Row(KEY, entry.group, entry.label, {}, {}, None, paper=entry.values, outcomes=()) for entry in entries)


def in_order(table: Table) -> list[Row]:
    """The table's rows with the cited ones among them; above all others where groups are columns."""
    if table.pivot:
        return [*table.cited, *table.rows]
    waiting, ordered = list(table.cited), list[Row]()
    for number, row in enumerate(table.rows):
        if number == 0 or row.group != table.rows[number - 1].group:
            ordered += [other for other in waiting if other.group == row.group]
            waiting = [other for other in waiting if other.group != row.group]
        ordered.append(row)
    return ordered + waiting


def notes(table: Table, study: Study) -> Iterator[str]:
    """What cited rows are, and the study's words about each."""
    if table.cited:
        yield f"Rows with published numbers alone ({KEY}) are other people's systems; nothing of them was run here."
        labels = {row.label for row in table.cited}
        yield from (f"{entry.label}: {entry.note}" for entry in study.cited if entry.note and entry.label in labels)
