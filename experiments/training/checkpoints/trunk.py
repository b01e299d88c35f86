"""The checkpoint with which a branch begins: that of another run, its trunk, after one step. Imports no torch."""

from collections.abc import Iterator
from pathlib import Path

from experiments.errors import UserError
from experiments.identity import Trunk, digest
from experiments.store.layout import Store
from experiments.store.results import TrainingResult
from experiments.training.checkpoints.retention import OPTIMIZER, meta_of

_WEIGHTS = "model.safetensors"


def checkpoint_of(store: Store, trunk: Trunk, code: str) -> Path | None:
    """The trunk's checkpoint, of its newest attempt that has one by this code with the optimizer's state; else None.

    code: the digest of the training code. A branch never mixes old and new code, as a resumed run does not. Sizes and
    hashes are checked where it is read.
    """
    return next((path for path, meta in _there(store, trunk) if meta[0] == code and OPTIMIZER in meta[1]), None)


def digest_of(path: Path) -> str:
    """A digest of a checkpoint's weights. Raises Damaged."""
    return digest(meta_of(path)["files"][_WEIGHTS])


def other_weights(store: Store, record: TrainingResult) -> bool:
    """Whether the trunk of a recorded branch has other weights at that step now; unknown ones count as the same."""
    if not record.trunk.run_id:
        return False
    there = next((path for path, _ in _there(store, Trunk(record.trunk.run_id, record.trunk.step))), None)
    return there is not None and digest_of(there) != record.trunk.weights


def _there(store: Store, trunk: Trunk) -> Iterator[tuple[Path, tuple[str, dict[str, object]]]]:
    """The checkpoints of the step, of the newest attempt first, each with its code and its files."""
    for number in reversed(store.attempts(trunk.run_id)):
        path = store.attempt_folder(trunk.run_id, number) / "checkpoints" / f"step-{trunk.step:08d}"
        try:
            meta = meta_of(path)
        except UserError:  # missing or damaged
            continue
        if _WEIGHTS in meta["files"] and all((path / name).is_file() for name in meta["files"]):
            yield path, (str(meta.get("code")), meta["files"])
