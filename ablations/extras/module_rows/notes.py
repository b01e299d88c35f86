"""The note on changed modules under a table."""

from collections.abc import Iterator, Mapping
from typing import Any

from experiments.messages import number, some_names
from reports.results.table import Table
from reports.spec.table_spec import Note


def changed_modules(table: Table, _sections: Mapping[str, Any]) -> Iterator[Note]:
    """Yield a note with the number of modules that each row changes, and its parameters before and after.

    The change may be made before training or at evaluation.
    """
    rows: dict[str, list[str]] = {}
    for row in table.rows:
        outcome = row.outcomes[0]  # all seeds of a row change the same modules
        parts = [part for one in outcome.scored.values() if one.record for part in one.record.parts.values()]
        trained = (outcome.record and outcome.record.model_extra) or {}
        if said := next(filter(None, map(_changed, [trained, *(part.facts for part in parts)])), ""):
            rows.setdefault(said, []).append(row.key)
    if rows:
        said = "; ".join(f"{what}: {some_names(keys, 8)}" for what, keys in rows.items())
        yield Note(f"Changed modules. {said}.")


def _changed(facts: Mapping[str, Any]) -> str:
    """Return text such as "2 modules, parameters 1,200 → 1,000".

    Return "" if no module was changed, or if a trainer stores other facts under these names.
    """
    found, before, after = (facts.get(name) for name in ("modules", "params_before", "params_after"))
    counts = list(found.values()) if isinstance(found, Mapping) else []
    if not counts or not all(isinstance(count, int) for count in (*counts, before, after)):
        return ""
    sizes = f"parameters {before:,} → {after:,}" if before != after else f"{before:,} parameters as before"
    return f"{number(sum(counts), 'module')}, {sizes}"
