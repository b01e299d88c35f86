"""The notes under a table, in reading order.

This module makes the notes on columns, ensembles, imported rows and branches. provenance.py makes the notes on data,
training, test sets, seeds, devices, packages and code. cost.py and total_cost.py make the notes on costs, and
cited_rows.py makes those on cited results.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import numpy as np

from experiments.identity import ensemble_in_words
from experiments.messages import number
from experiments.tasks.columns import Column
from experiments.tasks.load import is_built_in
from model.extensions import added, load
from reports.results.table import (
    BRANCH,
    IMPORTED,
    NOT_IMPORTED,
    NOT_MEASURED,
    NOT_REPORTED,
    Measure,
    Row,
    Table,
    missing_cells,
)
from reports.spec.table_spec import Note
from reports.table import claims
from reports.table.cited_rows import about_cited
from reports.table.cost import cost_notes, shown
from reports.table.provenance import decoding, made_with, seeds, spread, training
from reports.table.total_cost import cost_note


def footnotes(table: Table) -> tuple[Note, ...]:
    """Return the notes in reading order: on columns, on data and settings, then the notes of the study and its rows."""
    parts = [
        *_groups(table),
        *dict.fromkeys(Note(column.about) for column in _shown(table) if column.about),
        *_signatures(table),
        *_signs(table),
        *table.test_notes,
        *agreement(table),
        *training(table),
        *decoding(table),
        *seeds(table),
        *spread(table),
        *self_reported(table),
        *ensembles(table),
        *branches(table),
        *imported(table),
        *made_with(table),
    ]
    parts += [
        *cost_notes(table, shown(table)),
        *cost_note(table),
        *about_cited(table),
        *claims.notes(table),
        *(note for place in added("notes").values() for note in load(place)(table, table.spec.sections)),
        *table.spec.notes,
    ]
    if table.not_shown is None:
        note = "The store's ledger is damaged (see `ablations ledger`), so the number of rows with results is unknown."
        parts.append(Note(note, "gap"))
    elif table.not_shown:
        rows = sum(any(outcome.record is not None for outcome in row.outcomes) for row in table.rows)
        every = number(rows + table.not_shown, "row")
        parts.append(Note(f"Shown: {rows:,} of {every} with results in this store.", "sign"))
    return tuple(parts)


def _groups(table: Table) -> Iterator[Note]:
    if table.pivot:
        heads = ", ".join(f"{head} (rows of the group {group})" for group, head in table.pivot.items())
        yield Note(
            f"Columns: {heads}. Changes, tests and bold compare rows of one column. A number printed once, in the "
            "first column, is equal in all columns. A dash can also mean that the line has no row in this column.",
            "sign",
        )
    elif table.groups:
        yield Note("Changes, tests and bold compare rows of one group.", "sign")


def _missing(table: Table, measures: Sequence[Measure]) -> Iterator[Note]:
    some = sum(measure.mean_so_far is not None for measure in measures)
    if table.provisional and some:
        yield Note(
            "Italics or grey: provisional means over the seeds done so far (done/requested), in "
            f"{number(some, 'cell')}, and changes from them. They are never bold and never tested.",
            "gap",
        )
    if gaps := missing_cells(table) - (some if table.provisional else 0):
        yield Note(f"–: not available, in {number(gaps, 'cell')} ({_gap_legend(table, measures)}).", "gap")
    if some and not table.provisional:
        yield Note("`--provisional` prints the mean over the seeds done so far.", "gap")


def _gap_legend(table: Table, measures: Sequence[Measure]) -> str:
    """Explain the text of cells without a number (cells.gap), and the meaning of a cell without a reason."""
    empty = [measure for measure in measures if measure.missing]
    empty = [measure for measure in empty if not (table.provisional and measure.mean_so_far is not None)]
    reasons = [reason for measure in empty for reason in measure.lacking]
    parts = ["seeds done/requested"] if any(measure.requested > 1 for measure in empty) else []
    parts += ["reason"] if any(reasons) else []
    if not all(reasons):
        parts.append(f"{'without a reason: ' if any(reasons) else ''}not run or not scored yet")
    return ", ".join(parts)


def _shown(table: Table) -> list[Column]:
    columns = table.listed
    asked = {c.metric for c in columns if any(row.measures[c.key].requested for row in table.rows)}
    return [column for column in columns if column.metric in asked]


def _signatures(table: Table) -> Iterator[Note]:
    signatures = dict.fromkeys(
        (column.metric, outcome.scored[column.set].signature(column.metric))
        for outcome in table.outcomes
        for column in table.listed
        if column.set in outcome.scored
    )
    yield from (Note(f"{metric}: {signature}", "sign") for metric, signature in signatures if signature)


def _signs(table: Table) -> Iterator[Note]:
    """Yield notes that explain the signs in cells and column heads."""
    measures = table.measures
    shown = _shown(table)
    heads = table.pivot or {group: group for group in table.groups}
    bases = ", ".join(f"{table.bases[group]} ({head})" for group, head in heads.items() if group in table.bases)
    base = bases or table.base
    if base and any(m.change is not None or m.reported_change is not None for m in measures):
        logarithmic = ", ".join(dict.fromkeys(column.metric for column in shown if column.logarithmic))
        logarithm = f" (ln: of the natural logarithm, for {logarithmic})" if logarithmic else ""
        yield Note(f"Δ: change from {base}{logarithm}.", "sign", "change")
    logarithms = [(column, row) for column in shown if column.logarithmic for row in table.rows]
    without = [column.header for column, row in logarithms if min(row.measures[column.key].values, default=1.0) <= 0]
    if base and without:
        words = "values of zero or less have no logarithm, so their changes are missing"
        yield Note(f"{', '.join(dict.fromkeys(without))}: {words}.", "gap")
    if any(m.reported is not None for m in measures):
        pieces = any(column.per_piece for column in shown)
        what = "over the paper's own vocabulary and sentences" if pieces else "on the paper's own data"
        yield Note(f"paper: published numbers, {what}; compare changes, not values.", "sign", "paper")
    yield from _undirected(table)
    if any(m.best for m in measures):
        near = ""
        if table.spec.bold == "undistinguished":
            near = ", and rows that Welch's t test (Holm) cannot tell from it"
        of = " among the rows that have a number" if missing_cells(table) else ""
        yield Note(f"Bold: the best of its column{of}{near}.", "sign")
    if missing_cells(table):
        yield from _missing(table, measures)
    if any("diverged" in measure.lacking for measure in measures):
        yield Note(
            "diverged: a loss, weight or result of the training was not finite. The row has no mean and no test.",
            "gap",
        )
    for column in shown:
        if rows := [row for row in table.rows if NOT_REPORTED in row.measures[column.key].lacking]:
            records = [o.scored[column.set].record for row in rows for o in row.outcomes if column.set in o.scored]
            why = next(
                (record.lacking[column.metric] for record in records if record and column.metric in record.lacking), ""
            )
            keys = ", ".join(row.key for row in rows)
            yield Note(f"{column.header}: {NOT_REPORTED} by finished runs of {keys}. {why}".strip(), "gap")
        if rows := [row for row in table.rows if NOT_IMPORTED in row.measures[column.key].lacking]:
            known = any(row.imported and row.measures[column.key].values for row in table.rows)
            why = ": the source has no value there" if known else ""
            yield Note(f"{column.header}: {NOT_IMPORTED} for {', '.join(row.key for row in rows)}{why}.", "gap")
        if older := [row.key for row in table.rows if NOT_MEASURED in row.measures[column.key].lacking]:
            yield Note(f"{column.header}: {NOT_MEASURED} by the version that evaluated {', '.join(older)}.", "gap")
    if any(row.stale for row in table.rows):
        yield Note("†: trained or scored by other code than the present.", "sign")


def _undirected(table: Table) -> Iterator[Note]:
    """Yield a note on the columns whose better direction is unknown."""
    unknown = [column for column in _shown(table) if not column.better]
    if unknown and len(table.rows) > 1:
        heads, names = (", ".join(getattr(one, part) for one in unknown) for part in ("header", "metric"))
        one = unknown[0].metric
        yield Note(
            f"{heads}: unknown whether lower or higher is better, so nothing is bold and no claim is checked. "
            f'Declare it: better = "lower" (or "higher") in the [[metric]] of {names}; with `tabulate`, --metric '
            f"{one}:min (or :max).",
            "sign",
        )


_HOW = {
    "missing": "is not trained", "running": "is being trained", "interrupted": "was interrupted",
    "damaged": "is damaged",
}  # fmt: skip


def ensembles(table: Table) -> Iterator[Note]:
    """Yield one note for each ensemble, and one for each ensemble that has no number because a member is missing."""
    for row in table.rows:
        for outcome in row.outcomes:
            members = table.spec.members_of(outcome.run)
            if not members:
                continue
            of = f"{members[0].row}, {ensemble_in_words([member.seed for member in members])}"
            yield Note(
                f"{row.key}: ensemble of {of}, which averages their probabilities at each step of the search. "
                "Parameters and training cost are sums over its members. An ensemble is one entry and has no seed."
            )
            lacking = [member for member in members if member.state not in ("finished", "stale")]
            if lacking and (outcome.record is None or not outcome.scored):
                words = "; ".join(f"{member.name} {_HOW.get(member.state, member.state)}" for member in lacking)
                yield Note(f"{row.key} has no number, because a member is missing: {words}.", "gap")


def self_reported(table: Table) -> Iterator[Note]:
    """Yield a note on the columns whose numbers the user's trainer reported, except columns computed from counts."""
    heads = [column.header for column in _shown(table) if column.counts is None]
    if heads and not is_built_in(table.spec.task) and not all(row.imported for row in table.rows):
        yield Note(f"Self-reported by the trainer: {', '.join(heads)}.")


_WORDS = {"csv": "the CSV file", "mlflow": "MLflow at", "wandb": "the W&B export"}


def imported(table: Table) -> Iterator[Note]:
    """Yield one note for each source of imported rows, and one for rows whose numbers are not imported yet."""
    sources: dict[tuple[str, str, str, str], dict[str, int]] = {}
    lacking: dict[str, None] = {}
    for row in table.rows:
        for outcome in row.outcomes if row.imported else ():
            of = outcome.record.imported if outcome.record else None
            if of is None:
                lacking[row.key] = None
                continue
            on = datetime.fromtimestamp(of.t, UTC).strftime("%Y-%m-%d") if of.t is not None else ""
            rows = sources.setdefault((of.kind, of.source, of.sha256 or "", on), {})
            rows[row.key] = rows.get(row.key, 0) + 1
    for (kind, source, digest, on), rows in sources.items():
        where = f"{_WORDS.get(kind, kind)} {source}{f' (SHA-256 {digest[:10]})' if digest else ''}"
        yield Note(
            f"{IMPORTED}: trained elsewhere and imported from {where}{f' on {on}' if on else ''}: {', '.join(rows)} "
            f"({number(sum(rows.values()), 'run')}). The numbers are copied; data, code, devices and scoring were not "
            "checked.",
            "sign",
        )
    if lacking:
        yield Note(f"Not imported yet, or not for every seed: {', '.join(lacking)} (`ablations import`).", "gap")


def places(table: Table) -> dict[tuple[str, int], list[Row]]:
    """Return the branches, grouped by the place where they branch: (key of the parent row, last shared step)."""
    named = {outcome.run.run_id: outcome.run.row for outcome in table.members}
    found: dict[tuple[str, int], list[Row]] = {}
    for row in table.rows:
        if row.branch and (start := row.outcomes[0].run.spec.parent_run):
            found.setdefault((named.get(start.run_id, start.run_id), start.step), []).append(row)
    return found


def branch_in_words(rows: list[Row], parent_run: str, step: int) -> str:
    """Return a description such as "smooth and tail branch from base after step 30"."""
    *first, last = [row.key for row in rows]
    keys = f"{', '.join(first)} and {last}" if first else last
    return f"{keys} branch{'' if first else 'es'} from {parent_run} after step {step:,}"


def branches(table: Table) -> Iterator[Note]:
    """Yield one note per parent row and step from which rows branch, and one note on branches without a parent run."""
    for (parent_run, step), rows in places(table).items():
        yield Note(
            f"{BRANCH}: {branch_in_words(rows, parent_run, step)}. It shares these steps with the run of {parent_run} "
            f"with the same seed; they were trained once. The row's change takes effect at step {step + 1:,}. "
            "Training costs of a branch include its share of the parent run.",
            "sign",
        )
    parent_runs = {outcome.run.run_id: outcome.run for outcome in table.members}
    lacking = [
        f"{outcome.run.name}, as {run.name} {_HOW.get(run.state, run.state)}"
        for outcome in table.outcomes
        if outcome.record is None
        and outcome.run.spec.parent_run
        and (run := parent_runs.get(outcome.run.spec.parent_run.run_id))
        if run.state not in ("finished", "stale", "waiting")
    ]
    if lacking:
        yield Note(f"Branches without a number, because their parent run is missing: {'; '.join(lacking)}.", "gap")


def agreement(table: Table) -> Iterator[Note]:
    """Yield a note that compares the order of our changes with the order of the paper's changes by Kendall's τ-b.

    The note has one value for each column in which at least four rows have both changes.
    """
    parts = []
    for column in table.columns:
        both = [(row.measures[column.key].change, row.measures[column.key].reported_change) for row in table.rows]
        pairs = [(ours, theirs) for ours, theirs in both if ours is not None and theirs is not None]
        tau = kendall(pairs) if len(pairs) > 3 else None
        if tau is not None:
            parts.append(f"{column.header} {tau:.2f} over {number(len(pairs), 'row')}".replace("-", "−"))
    if parts:
        yield Note(f"Rank agreement of the changes with the paper's (Kendall's τ): {', '.join(parts)}.", "test")


def kendall(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return Kendall's τ-b, which corrects for ties; None if all values of one side are equal."""
    ours, theirs = np.array(pairs).T
    one, other = np.sign(ours[:, None] - ours), np.sign(theirs[:, None] - theirs)
    size = float(np.sqrt((one**2).sum() * (other**2).sum()))
    return float((one * other).sum()) / size if size else None
