"""Other systems' published results, as notes under the table: nothing of them was run here."""

from collections.abc import Iterator

from ablations.study import Cited, Study
from reports.table import Table


def cited(table: Table, study: Study) -> Iterator[str]:
    """One note per group, in the study's order."""
    groups: dict[str, list[Cited]] = {}
    for entry in study.cited:
        groups.setdefault(entry.group, []).append(entry)
    for group, entries in groups.items():
        about = f" ({group})" if group else ""
        yield f"Published by others{about}, not run here: {'; '.join(_entry(entry, table) for entry in entries)}."


def _entry(entry: Cited, table: Table) -> str:
    values = ", ".join(f"{_head(name, table)} {_number(value)}" for name, value in entry.values.items())
    note = f" ({entry.note})" if entry.note else ""
    return f"{entry.label}: {values}{note}"


def _head(name: str, table: Table) -> str:
    """The head of the column that prints the same quantity, else the name itself."""
    if name == "flops":
        return "training FLOPs"
    head = next((column.header for column in table.columns if column.paper == name), name)
    return head.partition(" (")[0]


def _number(value: float) -> str:
    return f"{value:.1e}".replace("e+", "e") if abs(value) >= 1e6 else str(value)
