"""Rows that were trained elsewhere: where their numbers are from, and that nothing here checked them."""

from collections.abc import Iterator
from datetime import UTC, datetime

from ablations.study.messages import number
from reports.results.table import IMPORTED, Table

_WORDS = {"csv": "the CSV file", "mlflow": "MLflow at", "wandb": "the W&B export"}


def imported(table: Table) -> Iterator[str]:
    """One sentence for each source, with its rows; one for those whose numbers are not here yet."""
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
        yield (
            f"{IMPORTED}: trained elsewhere and imported from {where}{f' on {on}' if on else ''}: "
            f"{', '.join(rows)} ({number(sum(rows.values()), 'run')}). Their numbers are as stated there; data, code, "
            "devices and scoring were not checked here."
        )
    if lacking:
        yield f"Not imported yet, or not for every seed: {', '.join(lacking)} (`ablations import`)."
