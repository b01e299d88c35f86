"""The notes under a table, in reading order: its columns here; data, training, sets and seeds in provenance.py;
devices, packages and code in made_with.py; costs in cost.py.
"""

from collections.abc import Iterable, Iterator, Sequence

from ablations.plan.planned import Plan
from ablations.study.messages import number
from experiments.tasks.columns import Column
from reports.results.table import Measure, Table, missing_cells
from reports.statistics.agreement import agreement
from reports.table import cited, claims, spent
from reports.table.branches import branches
from reports.table.cost import cost_notes, shown
from reports.table.ensembles import ensembles
from reports.table.imported import imported
from reports.table.made_with import made_with
from reports.table.provenance import decoding, seeds, spread, training


def footnotes(table: Table, plan: Plan, of_rule: Sequence[str] = ()) -> tuple[str, ...]:
    """Notes in reading order: the columns, the data and settings behind them, then the study's and the rows' own."""
    parts = [
        *_groups(table),
        *_metrics(table),
        *_signatures(table),
        *(text for text, _ in _signs(table)),
        *of_rule,
        *table.test_notes,
        *agreement(table),
        *training(table),
        *decoding(table),
        *seeds(table),
        *spread(table),
        *ensembles(table, plan),
        *branches(table),
        *imported(table),
        *made_with(table),
    ]
    parts += [
        *cost_notes(table, shown(table)),
        *spent.note(table),
        *cited.notes(table, plan.study),
        *claims.notes(table, plan),
        *plan.study.notes,
    ]
    parts += [f"{row.variation.key}: {row.variation.note}" for row in plan.rows if row.variation.note]
    parts += plan.notes
    return tuple(parts)


def legend(table: Table) -> dict[str, str]:
    """The notes without which the table's own signs cannot be read (see Table)."""
    of_columns = [f"{column.header}: " for column in table.columns]
    tests = [note for note in table.test_notes if not any(head in note for head in of_columns)]
    plain = [*_groups(table), *_signatures(table), *tests, *spread(table), *branches(table), *imported(table)]
    return dict.fromkeys(plain, "") | dict(_signs(table)) | dict.fromkeys(seeds(table), "n")


def _groups(table: Table) -> Iterator[str]:
    if table.pivot:
        heads = ", ".join(f"{head} (rows of the group {group})" for group, head in table.pivot.items())
        yield (
            f"Columns: {heads}; changes, tests and bold are within them. A number that stands once, in the first of "
            "them, is the same in all. A dash alone may also say that the line has no row there."
        )
    elif table.groups:
        yield "Changes, tests and bold are within the groups."


def _without_logarithm(table: Table, shown: Iterable[Column]) -> str:
    """Heads of the columns compared by logarithms that hold a number without one."""
    found = (
        column.header
        for column in shown
        if column.logarithmic and any(v <= 0 for row in table.rows for v in row.measures[column.key].values)
    )
    return ", ".join(dict.fromkeys(found))


def _missing(table: Table, measures: Sequence[Measure]) -> Iterator[str]:
    some = sum(measure.mean_so_far is not None for measure in measures)
    if table.provisional and some:
        yield (
            f"In italics or grey: provisional, the mean over the seeds done so far (done/requested), in "
            f"{number(some, 'cell')}, and the changes that they are part of; never bold, never tested."
        )
    if gaps := missing_cells(table) - (some if table.provisional else 0):
        yield f"–: not available, in {number(gaps, 'cell')} (seeds done/requested, reason)."
    if some and not table.provisional:
        yield "`ablations report … --provisional` prints the mean over the seeds done so far."


def _shown(table: Table) -> list[Column]:
    printed = {
        column.metric for column in table.columns if any(row.measures[column.key].requested for row in table.rows)
    }
    return [column for column in table.columns if column.metric in printed]


def _metrics(table: Table) -> Iterator[str]:
    yield from dict.fromkeys(column.about for column in _shown(table) if column.about)


def _signatures(table: Table) -> Iterator[str]:
    signatures = dict.fromkeys(
        (column.metric, outcome.scored[column.set].signature(column.metric))
        for row in table.rows
        for outcome in row.outcomes
        for column in table.columns
        if column.set in outcome.scored
    )
    yield from (f"{metric}: {signature}" for metric, signature in signatures if signature)


def _signs(table: Table) -> Iterator[tuple[str, str]]:
    """What the signs in cells and heads mean, each with the part of a column that it is about ("": any)."""
    measures = [measure for row in table.rows for measure in row.measures.values()]
    shown = _shown(table)
    heads = table.pivot or {group: group for group in table.groups}
    bases = ", ".join(f"{table.bases[group]} ({head})" for group, head in heads.items() if group in table.bases)
    base = bases or table.base
    if base and any(m.change is not None or m.reported_change is not None for m in measures):
        logarithmic = ", ".join(dict.fromkeys(column.metric for column in shown if column.logarithmic))
        logarithm = f" (ln: of the natural logarithm, for {logarithmic})" if logarithmic else ""
        yield f"Δ: change from {base}{logarithm}.", "change"
    if base and (without := _without_logarithm(table, shown)):
        yield f"{without}: zero or less has no logarithm, so that there is no change from or to it.", ""
    if any(m.reported is not None for m in measures):
        what = (
            "over the paper's own vocabulary and sentences"
            if any(column.per_piece for column in shown)
            else "on the paper's own data"
        )
        yield f"paper: as published, {what}; compare changes, not values.", "paper"
    if any(m.best for m in measures):
        yield (
            "Bold: the best of its column, and rows nearer to it than the smallest difference that these seeds show.",
            "",
        )
    if missing_cells(table):
        yield from ((text, "") for text in _missing(table, measures))
    if any("diverged" in measure.lacking for measure in measures):
        yield (
            ("diverged: a loss, weight or result of that training was not finite. Such a row has no number to test."),
            "",
        )
    if any(row.stale for row in table.rows):
        yield "†: trained or scored by another revision of the code than the present one.", ""
