"""One flat record per row, full precision: what JSON and CSV carry and what other programs read."""

from typing import Any

from reports.results.table import Row, Table
from reports.table.cost import shown


def record(row: Row, table: Table) -> dict[str, Any]:
    """The row of `report --json`. A number that is not complete is None; `n` counts the seeds that are there."""
    values: dict[str, Any] = {"row": row.key, "group": row.group, "label": row.label}
    values |= {"state": row.state, "stale": row.stale}
    for column in table.columns:
        measure = row.measures[column.key]
        values[column.key] = measure.mean
        values[f"{column.key}_sd"] = measure.sd
        values[f"{column.key}_change"] = measure.change
        values[f"{column.key}_paper_change"] = measure.reported_change
        if table.test:
            test = measure.test
            values[f"{column.key}_p"] = test and test.p
            values[f"{column.key}_low"], values[f"{column.key}_high"] = (test.low, test.high) if test else (None, None)
    values |= {cost.name: cost.value(row, table) for cost in shown(table)}
    values |= {"n": row.n, "seeds": len(row.outcomes)}
    values["paper"] = dict(row.paper)
    values["settings"] = dict(row.settings)
    values["run_ids"] = [outcome.run.run_id for outcome in row.outcomes]
    return values
