"""The metrics that a user's trainer returned: which are stored, and those of a set. Imports no torch."""

import functools
import json
import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from experiments.client.ablations_task.declared import LONGEST_NAME
from experiments.errors import Diverged, UserError
from experiments.store.sealed import write_json

Metrics = dict[str, dict[str, float]]
MOST, MOST_OF_A_POINT = 10_000, 1_000  # metrics of a run, and of a point of its curve: MLflow takes minutes for more
log = logging.getLogger(__name__)


def keep_metrics(folder: Path, returned: Mapping[str, Mapping[str, float]], printed: Collection[str]) -> None:
    """Write metrics.json for `of_set`: those of the names `printed` by the table first, at most MOST in all."""
    pairs = [(set_, name) for set_, metrics in returned.items() for name in metrics]
    kept: Metrics = {}
    for set_, name in _few(sorted(pairs, key=lambda pair: pair[1] not in printed), MOST):
        kept.setdefault(set_, {})[name] = returned[set_][name]
    write_json(folder / "metrics.json", kept)


def of_point(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics of a point of the curve that are recorded."""
    return {name: metrics[name] for (name,) in _few(((name,) for name in metrics), MOST_OF_A_POINT)}


def _few(keys: Iterable[tuple[str, ...]], most: int) -> list[tuple[str, ...]]:
    """The first of these names, without those too long for a record; the log says how many are left out."""
    every = list(keys)
    short = [key for key in every if all(len(json.dumps(word, ensure_ascii=False)) <= LONGEST_NAME for word in key)]
    _say(len(every) - len(short[:most]), most)
    return short[:most]


@functools.cache  # once: a training may have a million points
def _say(left_out: int, most: int) -> None:
    if left_out:
        log.warning(
            "%s of the trainer's metrics are left out: a record has at most %s at once, with names of at most %s characters",
            f"{left_out:,}", f"{most:,}", LONGEST_NAME,
        )  # fmt: skip


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
