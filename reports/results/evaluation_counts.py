"""Counts per sentence of an evaluation, and scores recomputed from these counts. A perplexity has no counts."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.errors import Damaged
from experiments.messages import number
from experiments.store.results import EvaluationResult
from experiments.tasks.columns import Column, Counts

if TYPE_CHECKING:
    from numpy.typing import NDArray


TOLERANCE = 1e-6  # absolute tolerance of scores, because the order of additions may differ
ROUNDING = 1e-12  # relative tolerance, for large scores


def recomputed(column: Column, folder: Path, record: EvaluationResult) -> float | None:
    """Return the column's metric, computed from the counts in an evaluation's folder; None if there are no counts.

    Raises Damaged for counts of an unexpected shape or number of sentences.
    """
    kept = None if column.counts is None else read_counts(folder, column.counts)
    if column.counts is None or kept is None or not len(kept):
        return None
    if record.sentences not in (None, len(kept)):
        raise Damaged(f"{column.counts.file} has {number(len(kept), 'sentence')}, result.json says {record.sentences}")
    return float(column.counts.of(kept.sum(axis=0)))


def differs(recorded: Any, computed: float) -> bool:
    """Return whether a recorded score differs from the score computed from its counts."""
    usable = isinstance(recorded, int | float)
    return not usable or not abs(recorded - computed) <= max(TOLERANCE, ROUNDING * abs(computed))


def read_counts(folder: Path, counts: Counts) -> "NDArray[Any] | None":
    """Return the counts (sentences × names); None if the evaluation stored none.

    Raises Damaged if the file cannot be read or has other contents.
    """
    import numpy as np

    path = folder / counts.file
    if not path.is_file():
        return None
    kept = _fields(path, counts.names) if path.suffix == ".jsonl" else read_array(path)
    if kept is None and path.suffix == ".jsonl":  # the trainer's examples do not have these fields
        return None
    if kept is None or kept.ndim != 2 or kept.shape[1] != len(counts.names) or not np.isfinite(kept).all():
        raise Damaged(f"{counts.file} does not hold {len(counts.names)} numbers a sentence")
    return kept


def _fields(path: Path, names: tuple[str, ...]) -> "NDArray[Any] | None":
    """Return the named fields of each line's JSON object, as integers if all numbers are whole.

    Return None if a line lacks a field or has text in it. Raises Damaged if the file cannot be read.
    """
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
    """Return an array of an evaluation; None if its values are not integers or real numbers.

    Raises Damaged if the file cannot be read.
    """
    import numpy as np

    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)  # mapped, because the header may declare any size
    except (OSError, ValueError, EOFError) as error:
        raise Damaged(f"{path.name} cannot be read ({error})") from None
    return array if array.dtype.kind in "iuf" else None
