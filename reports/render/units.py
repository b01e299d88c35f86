"""Columns in other units, and with other digits, than the table's own."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ablations.study.messages import suggestion
from experiments.errors import UserError
from reports.results.table import Table
from reports.table.cost import Cost

# Of costs: how many of the unit one of the table's own is, and the head.
UNITS: Mapping[str, Mapping[str, tuple[float, str]]] = {
    "params": {
        "1": (1e6, "params"), "k": (1e3, "params ×10³"), "M": (1.0, "params ×10⁶"), "G": (1e-3, "params ×10⁹"),
    },
    "hours": {
        "s": (3600.0, "training seconds"), "min": (60.0, "training minutes"), "h": (1.0, "training hours"),
        "d": (1 / 24, "training days"),
    },
}  # fmt: skip


def converted(
    table: Table, costs: Sequence[Cost], units: Mapping[str, str], digits: Mapping[str, int]
) -> tuple[Table, list[Cost]]:
    """The table with these units in its heads and these digits, and its costs alike. Raises UserError for a name."""
    settings = {name: key for key in table.settings for name in (key, key.rpartition(".")[2])}
    known = [*(column.key for column in table.columns), *(cost.key for cost in costs)]
    for what, names in (("units", [*known, *settings]), ("digits", known)):
        for name in units if what == "units" else digits:
            if name and name not in names:
                raise UserError(f"{what}: {table.name} has no column {name!r}. {suggestion(name, names, 'columns')}")
    columns = tuple(
        replace(
            column,
            digits=digits.get(column.key, digits.get("", column.digits)),
            header=_with(column.header, units.get(column.key)),
        )
        for column in table.columns
    )
    heads = dict(table.settings) | {
        settings[name]: _with(table.settings[settings[name]], unit) for name, unit in units.items() if name in settings
    }
    changed = [_cost(cost, units.get(cost.key), digits.get(cost.key)) for cost in costs]
    return replace(table, columns=columns, settings=heads), changed


def _with(head: str, unit: str | None) -> str:
    return f"{head} ({unit})" if unit else head


def _cost(cost: Cost, unit: str | None, digits: int | None) -> Cost:
    known = UNITS.get(cost.key, {})
    if unit is None:
        return replace(cost, digits=digits)
    if not known:
        return replace(cost, header=_with(cost.header, unit), digits=digits)
    if unit not in known:
        raise UserError(f"units: {cost.key} = {unit!r}: write one of {', '.join(known)}.")
    scale, header = known[unit]
    return replace(cost, scale=scale, header=header, digits=digits)
