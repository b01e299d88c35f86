"""The metrics that a user's trainer returned, by set. Imports no torch."""

import math
from collections.abc import Sequence

from experiments.errors import Diverged, UserError

Metrics = dict[str, dict[str, float]]


def of_set(kept: Metrics, set_: str, promised: Sequence[str]) -> dict[str, float]:
    """The metrics of one set, `promised` as in `evaluations`: "dev.accuracy", or "accuracy" if there is one set only.

    Raises UserError for a promised metric that is missing, Diverged for one that is not finite.
    """
    alone = not any(name.startswith(f"{set_}.") for name in promised)
    found = {**(kept.get("", {}) if alone else {}), **kept.get(set_, {})}
    for name in (name.removeprefix(f"{set_}.") for name in promised):
        if name not in found:
            there = [f"{s}.{m}" if s else m for s, metrics in kept.items() for m in metrics]
            raise UserError(
                f"The table prints {name} of the set {set_}, and the trainer did not return it. It returned "
                f"{', '.join(there) or 'nothing'}. Return it, or correct the name of the column."
            )
        if not math.isfinite(found[name]):
            raise Diverged(f"The trainer returned {name} = {found[name]} for the set {set_}: no table can print that.")
    return {name: value for name, value in found.items() if math.isfinite(value)}
