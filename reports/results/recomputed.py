"""Counts per sentence of an evaluation, and scores computed again from them. Imports no torch.

A perplexity has no counts.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablations.study.messages import number
from experiments.errors import Damaged
from experiments.store.results import EvaluationResult
from experiments.tasks.columns import Column, Counts

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOLERANCE = 1e-6  # sums in another order
ROUNDING = 1e-12  # of the value, where it is large


def recomputed(column: Column, folder: Path, record: EvaluationResult) -> float | None:
    """The column's metric from the counts in an evaluation's folder; None where none are kept.

    Raises Damaged for counts that are of another shape or number of sentences than expected.
    """
    kept = None if column.counts is None else read_counts(folder, column.counts)
    if column.counts is None or kept is None or not len(kept):
        return None
    if record.sentences not in (None, len(kept)):
        raise Damaged(f"{column.counts.file} has {number(len(kept), 'sentence')}, result.json says {record.sentences}")
    return float(column.counts.of(kept.sum(axis=0)))


def differs(recorded: Any, computed: float) -> bool:
    """Whether a recorded score is another number than the one computed from its counts."""
    usable = isinstance(recorded, int | float)
    return not usable or not abs(recorded - computed) <= max(TOLERANCE, ROUNDING * abs(computed))


def read_counts(folder: Path, counts: Counts) -> "NDArray[Any] | None":
    """Sentences × names, integers where all are whole; None where the evaluation kept none. Raises Damaged."""
    import numpy as np

    path = folder / counts.file
    if not path.is_file():
        return None
    kept = _fields(path, counts.names) if path.suffix == ".jsonl" else read_array(path)
    if kept is None and path.suffix == ".jsonl":  # a trainer whose examples have no such fields
        return None
    if kept is None or kept.ndim != 2 or kept.shape[1] != len(counts.names) or not np.isfinite(kept).all():
        raise Damaged(f"{counts.file} does not hold {len(counts.names)} numbers a sentence")
    return kept


def _fields(path: Path, names: tuple[str, ...]) -> "NDArray[Any] | None":
    """The fields of each line's object; None where a line lacks one. Raises Damaged."""
    import numpy as np

    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
        kept = np.array([[line[name] for name in names] for line in lines], dtype=np.float64).reshape(-1, len(names))
    except (KeyError, TypeError):
        return None
    except (OSError, ValueError) as error:
        raise Damaged(f"{path.name} cannot be read ({error})") from None
    whole = bool((kept == np.rint(kept)).all()) and float(np.abs(kept).sum()) < 2**53
    return kept.astype(np.int64) if whole else kept


def read_array(path: Path) -> "NDArray[Any] | None":
    """An array of integers or real numbers that an evaluation kept; None if it is of something else. Raises Damaged."""
    import numpy as np

    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)  # mapped: a head may claim any size
    except (OSError, ValueError, EOFError) as error:
        raise Damaged(f"{path.name} cannot be read ({error})") from None
    return array if array.dtype.kind in "iuf" else None
