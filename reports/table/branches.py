"""Rows that are branches: what they share with their trunk, and which trunk is missing."""

from collections.abc import Iterator

from reports.results.table import BRANCH, Row, Table

_HOW = {"missing": "is not trained", "running": "is being trained", "damaged": "is damaged"}


def places(table: Table) -> dict[tuple[str, int], list[Row]]:
    """Trunk and last shared step → the rows that branch there."""
    named = {outcome.run.run_id: outcome.run.row for outcome in table.members}
    found: dict[tuple[str, int], list[Row]] = {}
    for row in table.rows:
        if row.branch and (start := row.outcomes[0].run.trunk):
            found.setdefault((named.get(start.run_id, start.run_id), start.step), []).append(row)
    return found


def in_words(rows: list[Row], trunk: str, step: int) -> str:
    """ "smooth and tail branch from base after step 30"."""
    *first, last = [row.key for row in rows]
    keys = f"{', '.join(first)} and {last}" if first else last
    return f"{keys} branch{'' if first else 'es'} from {trunk} after step {step:,}"


def branches(table: Table) -> Iterator[str]:
    """One sentence for each place from which rows branch, and one on runs without a number because of their trunk."""
    shown = {row.key for row in table.rows}
    for (trunk, step), rows in places(table).items():
        there = "" if trunk in shown else f"; {trunk} is no row of this table, so its steps are in none of them"
        yield (
            f"{BRANCH}: {in_words(rows, trunk, step)}: the steps up to there are those of {trunk} with the same seed, "
            f"trained once. What is changed acts from step {step + 1:,} on, and costs are of those steps alone{there}."
        )
    trunks = {outcome.run.run_id: outcome.run for outcome in table.members}
    lacking = [
        f"{outcome.run.name}, as {run.name} {_HOW.get(run.state, run.state)}"
        for row in table.rows
        for outcome in row.outcomes
        if outcome.record is None and outcome.run.trunk and (run := trunks.get(outcome.run.trunk.run_id))
        if run.state not in ("finished", "stale", "waiting")
    ]
    if lacking:
        yield f"Branches without a number, because their trunk is missing: {'; '.join(lacking)}."
