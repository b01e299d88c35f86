"""The metrics that a user's trainer reported: which are recorded, of a set and of a step. Imports no torch."""

import functools
import logging
import math
from collections.abc import Mapping, Sequence

from experiments.client.ablations_task.declared import LONGEST_NAME
from experiments.client.ablations_task.plain import text
from experiments.errors import Diverged, UserError

Metrics = dict[str, dict[str, float]]
MOST, MOST_OF_A_POINT = 10_000, 1_000  # metrics of a set, and of a point of the curve: MLflow takes minutes for more
SHOWN = 1_000  # characters of their names in a message
log = logging.getLogger(__name__)


def of_point(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics of a point of the curve that are recorded."""
    return _few({text(name): value for name, value in metrics.items()}, MOST_OF_A_POINT)


def _few(metrics: Mapping[str, float], most: int) -> dict[str, float]:
    """The first of them, without names that no column can have; the log says how many are left out."""
    names = [name for name in metrics if len(name) <= LONGEST_NAME][:most]
    _say(len(metrics) - len(names), most)
    return {name: metrics[name] for name in names}


@functools.cache  # once: a training may have a million points
def _say(left_out: int, most: int) -> None:
    if left_out:
        log.warning(
            "%s of the trainer's metrics are left out: at most %s are recorded %s, with names of at most %s characters",
            f"{left_out:,}", f"{most:,}", "for a set" if most == MOST else "for a step", LONGEST_NAME,
        )  # fmt: skip


def of_set(kept: Metrics, set_: str, promised: Sequence[str]) -> dict[str, float]:
    """The metrics of one set that are recorded: the promised ones, and others, at most MOST in all.

    `promised` as in `evaluations`: "dev.accuracy", or "accuracy" if there is one set only.
    Raises UserError for a promised metric that is missing, Diverged for one that is not finite.
    """
    alone = not any(name.startswith(f"{set_}.") for name in promised)
    found = {**(kept.get("", {}) if alone else {}), **kept.get(set_, {})}
    names = [name.removeprefix(f"{set_}.") for name in promised]
    for name in names:
        if name not in found:
            there = ", ".join(f"{s}.{m}" if s else m for s, metrics in kept.items() for m in metrics) or "nothing"
            there = f"{there[:SHOWN]} …" if len(there) > SHOWN else there
            raise UserError(
                f"The table prints {name} of the set {set_}, and the trainer did not return it. It returned "
                f"{there}. Return it, or correct the name of the column."
            )
        if not math.isfinite(found[name]):
            raise Diverged(f"The trainer returned {name} = {found[name]} for the set {set_}: no table can print that.")
    first = {name: found[name] for name in names}
    return _few(first | {name: value for name, value in found.items() if math.isfinite(value)}, MOST)
