"""How far the order of the changes agrees with the paper's: Kendall's rank correlation."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ablations.study.messages import number
from reports.results.table import Table


def agreement(table: Table) -> Iterator[str]:
    """How far the order of our changes is the paper's: Kendall's τ-b per column, from four rows on."""
    parts = []
    for column in table.columns:
        measures: Iterable[Any] = (row.measures[column.key] for row in table.rows)
        pairs = [
            (m.change, m.reported_change) for m in measures if m.change is not None and m.reported_change is not None
        ]
        tau = kendall(pairs) if len(pairs) > 3 else None
        if tau is not None:
            parts.append(f"{column.header} {tau:.2f} over {number(len(pairs), 'row')}".replace("-", "−"))
    if parts:
        yield f"Rank agreement of the changes with the paper's (Kendall's τ): {', '.join(parts)}."


def kendall(pairs: Sequence[tuple[float, float]]) -> float | None:
    """τ-b, ties counted out; None where one side is all ties."""
    ours, theirs = np.array(pairs).T
    one, other = np.sign(ours[:, None] - ours), np.sign(theirs[:, None] - theirs)
    size = float(np.sqrt((one**2).sum() * (other**2).sum()))
    return float((one * other).sum()) / size if size else None
