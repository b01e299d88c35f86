"""One flat record per row, full precision: what JSON and CSV carry and what other programs read."""

from collections.abc import Sequence
from typing import Any

from reports.results.amounts import TableSpent
from reports.results.table import Row, Table
from reports.table.cost import Cost, shown

SPENT = ("cost", "decision")  # parts that grow with later attempts, also of other tables


def record(row: Row, table: Table, costs: Sequence[Cost] | None = None) -> dict[str, Any]:
    """The row of `report --json`. A number that is not complete is None; `n` counts the seeds that are there.

    costs: its costs, if other than those that the table prints by itself.
    """
    values: dict[str, Any] = {"row": row.key, "group": row.group, "label": row.label}
    values |= {"state": row.state, "stale": row.stale}
    if any(other.imported for other in table.rows):
        values["imported"] = row.imported
    for column in table.columns:
        measure = row.measures[column.key]
        values[column.key] = measure.mean
        values[f"{column.key}_sd"] = measure.sd
        values[f"{column.key}_change"] = measure.change
        values[f"{column.key}_paper_change"] = measure.reported_change
        if table.test:
            test = measure.test
            values[f"{column.key}_p"] = test and test.p
            values[f"{column.key}_marked"] = test and test.marked
            values[f"{column.key}_low"], values[f"{column.key}_high"] = (test.low, test.high) if test else (None, None)
    if table.rule is not None:
        values |= {"rule_p": table.rule[row.key].p, "rule_holds": table.rule[row.key].holds}
    values |= {cost.name: cost.value(row, table) for cost in (shown(table) if costs is None else costs)}
    values |= {"n": row.n, "seeds": len(row.outcomes)}
    if table.spent is not None:
        values |= _spent(row.key, table.spent)
    values["paper"] = dict(row.paper)
    values["settings"] = dict(row.settings)
    values["run_ids"] = [outcome.run.run_id for outcome in row.outcomes]
    return values


def _spent(key: str, table: TableSpent) -> dict[str, Any]:
    """What the row cost, so that the sum over rows is what the table cost; and what its comparison with base did."""
    row, decision = table.rows[key], table.decisions.get(key)
    cost = {**row.runs.as_json(), "counted_in": list(row.counted_in)}
    cost |= {"tuning": row.tuning.as_json() if row.tuning.attempts else None}
    sides = decision and {
        "base": decision.base,
        "seeds": decision.seeds,
        "row_cost": decision.row_spent.as_json(),
        "base_cost": decision.base_spent.as_json(),
    }
    return dict(zip(SPENT, (cost, sides), strict=True))
