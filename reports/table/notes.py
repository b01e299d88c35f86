"""The notes under a table, in reading order: its columns here; data, training, sets and seeds in provenance.py;
devices, packages and code in made_with.py; costs in cost.py.
"""

from collections.abc import Iterator

from ablations.plan.plan import Plan
from ablations.study.messages import number
from reports.results.table import Table, missing_cells
from reports.statistics.agreement import agreement
from reports.table import cited, claims
from reports.table.cost import cost_notes
from reports.table.ensembles import ensembles
from reports.table.made_with import made_with
from reports.table.provenance import decoding, seeds, training


def footnotes(table: Table, plan: Plan) -> tuple[str, ...]:
    """Notes in reading order: the columns, the data and settings behind them, then the study's and the rows' own."""
    parts = [
        *_pivot(table),
        *_columns(table),
        *table.test_notes,
        *agreement(table),
        *training(table),
        *decoding(table),
        *seeds(table),
        *ensembles(table, plan),
        *made_with(table),
    ]
    parts += [*cost_notes(table), *cited.notes(table, plan.study), *claims.notes(table, plan), *plan.study.notes]
    parts += [f"{row.variation.key}: {row.variation.note}" for row in plan.rows if row.variation.note]
    parts += plan.notes
    return tuple(parts)


def _pivot(table: Table) -> Iterator[str]:
    if table.pivot:
        heads = ", ".join(f"{head} (rows of the group {group})" for group, head in table.pivot.items())
        yield (
            f"Columns: {heads}; changes, tests and bold are within them. A number that stands once, in the first of "
            "them, is the same in all. A dash alone may also say that the line has no row there."
        )


def _columns(table: Table) -> Iterator[str]:
    measures = [measure for row in table.rows for measure in row.measures.values()]
    printed = {
        column.metric for column in table.columns if any(row.measures[column.key].requested for row in table.rows)
    }
    shown = [column for column in table.columns if column.metric in printed]
    yield from dict.fromkeys(column.about for column in shown if column.about)
    signatures = dict.fromkeys(
        (column.metric, outcome.scored[column.set].signature(column.metric))
        for row in table.rows
        for outcome in row.outcomes
        for column in table.columns
        if column.set in outcome.scored
    )
    yield from (f"{metric}: {signature}" for metric, signature in signatures if signature)
    bases = ", ".join(f"{table.bases[group]} ({head})" for group, head in table.pivot.items() if group in table.bases)
    base = bases or table.base
    if base and any(m.change is not None or m.reported_change is not None for m in measures):
        logarithmic = ", ".join(dict.fromkeys(column.metric for column in shown if column.logarithmic))
        logarithm = f" (ln: of the natural logarithm, for {logarithmic})" if logarithmic else ""
        yield f"Δ: change from {base}{logarithm}."
    if any(m.reported is not None for m in measures):
        what = (
            "over the paper's own vocabulary and sentences"
            if any(column.per_piece for column in shown)
            else "on the paper's own data"
        )
        yield f"paper: as published, {what}; compare changes, not values."
    if any(m.best for m in measures):
        yield "Bold: the best of its column, as printed; it need not differ from the others."
    if missing_cells(table):
        yield f"–: not available, in {number(missing_cells(table), 'cell')} (seeds done/requested, reason)."
    if any(row.stale for row in table.rows):
        yield "†: trained or scored by another revision of the code than the present one."
