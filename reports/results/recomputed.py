"""Scores computed again from the counts that an evaluation kept per sentence. Imports no torch.

A perplexity has nothing beside it that it could be computed from.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.errors import Damaged
from reports.results.bleu import COUNTS, bleu

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOLERANCE = 1e-6  # sums in another order


def recomputed(metric: str, folder: Path, record: Mapping[str, Any]) -> float | None:
    """The metric of an evaluation's folder; None where nothing gives it. Raises Damaged for other counts."""
    name, columns, score = _FROM.get(metric, ("", 0, None))
    if score is None or not (folder / name).is_file():
        return None
    counts = whole_numbers(folder / name)
    if counts is None or counts.ndim != 2 or counts.shape[1] != columns:
        raise Damaged(f"{name} does not hold {columns} whole numbers a sentence")
    if record.get("sentences", len(counts)) != len(counts):
        raise Damaged(f"{name} has {len(counts)} sentences, result.json says {record['sentences']}")
    return score(counts.sum(axis=0))


def differs(recorded: Any, computed: float) -> bool:
    return not isinstance(recorded, int | float) or not abs(recorded - computed) <= TOLERANCE


def whole_numbers(path: Path) -> "NDArray[Any] | None":
    """An array of integers that an evaluation kept; None if it is of something else. Raises Damaged."""
    import numpy as np

    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)  # mapped: a head may claim any size
    except (OSError, ValueError, EOFError) as error:
        raise Damaged(f"{path.name} cannot be read ({error})") from None
    return array if np.issubdtype(array.dtype, np.integer) else None


def _bleu(sums: "NDArray[Any]") -> float:
    return float(bleu(sums))


def _f1(sums: "NDArray[Any]") -> float:
    matched, gold, parsed = sums
    return float(200 * matched / (gold + parsed)) if gold + parsed else 0.0


# metric → the file of counts, its columns, and the score of their sums
_FROM: dict[str, tuple[str, int, Callable[["NDArray[Any]"], float]]] = {
    "bleu": ("statistics.npy", COUNTS, _bleu),
    "f1": ("brackets.npy", 3, _f1),
}
