"""Checkpoints: what a training needs to go on as if nothing had happened, and the weights that it leaves behind.

    <attempt>/checkpoints/step-00000400/   model.safetensors, optimizer.safetensors, meta.json
    <attempt>/final/                       model.safetensors, meta.json

Batches and dropout are functions of (seed, step), so there is no random state to save: the step is enough. A folder is
written under another name, fsynced and renamed; meta.json names the size and hash of each file. Files are never written
into afterwards (replaced or removed at most), so that a new attempt can take over an earlier one's by hard links.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments.errors import Damaged, UserError, explain_os_errors
from experiments.store.durable import link, whole_folder, write_bytes
from experiments.store.keeps import Keep
from experiments.store.sealed import check_file, describe_file, write_json
from experiments.training.checkpoints.retention import OPTIMIZER, all_of, gap, meta_of, same_training, step_of
from experiments.training.checkpoints.tensorfile import read_tensors, write_tensors

FORMAT = 1
_MODEL = "model.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files are what was written."""

    path: Path
    meta: Mapping[str, Any]

    @property
    def step(self) -> int:
        return int(self.meta["step"])

    def weights(self) -> dict[str, Tensor]:
        return read_tensors(self.path / _MODEL, self.meta["files"][_MODEL])

    def optimizer(self) -> dict[str, Tensor]:
        """Empty where it was dropped at the training's end."""
        if OPTIMIZER not in self.meta["files"]:
            return {}
        return read_tensors(self.path / OPTIMIZER, self.meta["files"][OPTIMIZER])

    @classmethod
    def open(cls, path: Path) -> "Checkpoint":
        """Raises Damaged if a file is torn or changed, UserError if another version of this program wrote it."""
        meta = meta_of(path)
        if meta.get("format") != FORMAT:
            raise UserError(
                f"{path} was written by another version of this program (checkpoint format {meta.get('format')}, "
                f"this program reads {FORMAT}). Use that version, or train this run anew in another store. "
                "Nothing was changed."
            )
        for name, written in meta["files"].items():
            check_file(path / name, written)
        return cls(path, meta)


def save(folder: Path, step: int, weights: Mapping[str, Tensor], optimizer: Mapping[str, Tensor], meta: Any) -> Path:
    """Save `<folder>/checkpoints/step-…`; durable when this returns. Raises UserError if the disk is full."""
    path = folder / "checkpoints" / f"step-{step:08d}"
    _write(path, {_MODEL: weights, OPTIMIZER: optimizer}, {**meta, "step": step})
    return path


def save_weights(path: Path, weights: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Save weights alone to a folder of any name: averages, exports."""
    _write(path, {_MODEL: weights}, meta)


def save_final(folder: Path, weights: Mapping[str, Tensor], meta: Mapping[str, Any]) -> Path:
    """Save `<folder>/final`: the weights of the last step alone."""
    _write(folder / "final", {_MODEL: weights}, meta)
    return folder / "final"


def add_file(path: Path, name: str, content: bytes) -> None:
    """Keep a further file beside the weights; it is checked with them from now on."""
    with explain_os_errors(f"save {path / name}"):
        write_bytes(path / name, content)
        meta = meta_of(path)
        write_json(path / "meta.json", {**meta, "files": {**meta["files"], name: describe_file(path / name)}})


def load_weights(path: Path) -> dict[str, Tensor]:
    """The weights of a checkpoint or of `final`. Raises UserError if they are damaged or of another version."""
    try:
        return Checkpoint.open(path).weights()
    except Damaged as damage:
        raise UserError(
            f"The weights in {path} are damaged: {damage}. Restore that folder from a backup, or delete the run's "
            "folder to train it again."
        ) from None


def newest(
    attempts: Sequence[Path],
    *,
    lineage: str,
    code: str,
    last_step: int,
    skipped: Callable[[Path, str], None],
    keeps: Sequence[Keep] = (),
) -> Checkpoint | None:
    """The checkpoint of the highest step up to `last_step` from which a training of this configuration may go on.

    It needs no optimizer where no step is left. Damaged ones, ones that other code trained, and ones whose training
    kept less than `keeps` needs, are passed over and reported to `skipped`. Raises UserError for one of another
    configuration: that folder should not have been offered.
    """
    for path in sorted((p for a in attempts for p in all_of(a)), key=lambda p: p.name, reverse=True):
        if step_of(path) > last_step:
            continue
        try:
            found = Checkpoint.open(path)
        except Damaged as damage:
            skipped(path, str(damage))
            continue
        if found.meta.get("lineage") != lineage:
            raise UserError(
                f"{path} was trained with another configuration (lineage {found.meta.get('lineage')}, this run's is "
                f"{lineage}), so this run cannot go on from it: name another store, or remove that folder."
            )
        if found.meta.get("code") != code:
            skipped(path, "trained by other code; a run is never half old, half new")
        elif OPTIMIZER not in found.meta["files"] and found.step < last_step:
            skipped(path, "its optimizer was dropped at the end, as training.keep_optimizer = false says")
        elif lacking := gap(path, found.meta, attempts, keeps, last_step):
            skipped(path, lacking)
        else:
            return found
    return None


def link_checkpoints(found: Checkpoint, attempts: Sequence[Path], folder: Path) -> None:
    """Link what the earlier attempts kept up to `found` into `folder`: averages and the best may need them."""
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    for path in [found.path, *(p for a in attempts for p in all_of(a) if step_of(p) < found.step)]:
        target = folder / "checkpoints" / path.name
        if target.exists() or not same_training(path, found.meta):
            continue
        with explain_os_errors(f"take over the checkpoint {path}"), whole_folder(target, replace=True) as aside:
            for file in path.iterdir():
                link(file, aside / file.name)


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name; a tied one once, under its first name."""
    seen: set[int] = set()
    tensors = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor.detach()
    return tensors


@torch.no_grad()
def restore_model(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into the model. Raises ValueError if names or shapes are not the model's."""
    own = model_tensors(model)
    if own.keys() != weights.keys():
        raise ValueError(f"weights and model differ in names: {sorted(own.keys() ^ weights.keys())[:6]}")
    for name, tensor in own.items():
        if tensor.shape != weights[name].shape:
            raise ValueError(f"{name} is {tuple(weights[name].shape)}, the model's is {tuple(tensor.shape)}")
        tensor.copy_(weights[name])


def _write(path: Path, files: Mapping[str, Mapping[str, Tensor]], meta: Mapping[str, Any]) -> None:
    with explain_os_errors(f"save {path}"), whole_folder(path, replace=True) as folder:
        described = {name: write_tensors(folder / name, tensors) for name, tensors in files.items()}
        write_json(folder / "meta.json", {"format": FORMAT, **meta, "files": described})
