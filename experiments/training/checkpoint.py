"""Save and load the final weights, and checkpoints from which a training resumes exactly.

    <attempt>/checkpoints/step-00000400/   model.safetensors, optimizer.safetensors, meta.json
    <attempt>/final/                       model.safetensors, meta.json

Batches and dropout depend only on (seed, step), so a checkpoint contains the step but no random state. A folder is
written under a temporary name, fsynced and renamed. meta.json records the size and hash of each file. Files may be
replaced or removed later, but they are never modified. A new attempt can therefore use hard links to the checkpoints of
an earlier attempt.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from experiments.errors import Damaged, UserError, explain_os_errors
from experiments.identity import ParentRun
from experiments.store.checksummed import check_file, describe_file, write_json
from experiments.store.durable import link, whole_folder, write_bytes
from experiments.store.retention import Keep
from experiments.training.kept_checkpoints import OPTIMIZER, all_of, gap, meta_of, same_training, step_of
from experiments.training.tensor_files import read_tensors, write_tensors

FORMAT = 1
_MODEL = "model.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files match their recorded sizes and hashes."""

    path: Path
    meta: Mapping[str, Any]

    @property
    def step(self) -> int:
        """The number of optimizer updates before the checkpoint was saved."""
        return int(self.meta["step"])

    def weights(self) -> dict[str, Tensor]:
        """Return the model's tensors by name. Raises Damaged if the file has changed since it was written."""
        return read_tensors(self.path / _MODEL, self.meta["files"][_MODEL])

    def optimizer(self) -> dict[str, Tensor]:
        """Return the optimizer's tensors by name. Raises Damaged as `weights` does."""
        return read_tensors(self.path / OPTIMIZER, self.meta["files"][OPTIMIZER])

    @classmethod
    def open(cls, path: Path) -> "Checkpoint":
        """Open and check a checkpoint. Raises Damaged for missing or changed files, UserError for another format."""
        meta = meta_of(path)
        if meta.get("format") != FORMAT:
            raise UserError(
                f"{path} was written by another version of this program (checkpoint format {meta.get('format')}, "
                f"this program reads {FORMAT}). Use that version, or train this run again in another store. "
                "Nothing was changed."
            )
        for name, written in meta["files"].items():
            check_file(path / name, written)
        return cls(path, meta)


def save(folder: Path, step: int, weights: Mapping[str, Tensor], optimizer: Mapping[str, Tensor], meta: Any) -> Path:
    """Save a checkpoint as `<folder>/checkpoints/step-…`, durably. Raises UserError if the disk is full."""
    path = folder / "checkpoints" / f"step-{step:08d}"
    _write(path, {_MODEL: weights, OPTIMIZER: optimizer}, {**meta, "step": step})
    return path


def save_weights(path: Path, weights: Mapping[str, Tensor], meta: Mapping[str, Any]) -> Path:
    """Save weights without an optimizer, for "final" (the last step), averages and exports."""
    _write(path, {_MODEL: weights}, meta)
    return path


def add_file(path: Path, name: str, content: bytes) -> None:
    """Add a file to a checkpoint's folder. Its size and hash are recorded and checked like those of the weights."""
    with explain_os_errors(f"save {path / name}"):
        write_bytes(path / name, content)
        meta = meta_of(path)
        write_json(path / "meta.json", {**meta, "files": {**meta["files"], name: describe_file(path / name)}})


def load_weights(path: Path) -> dict[str, Tensor]:
    """Return the weights of a checkpoint or of `final`. Raises UserError if they are damaged or in another format."""
    try:
        return Checkpoint.open(path).weights()
    except Damaged as damage:
        raise UserError(
            f"The weights in {path} are damaged: {damage}. Restore that folder from a backup, or rename the run's "
            "folder: `ablations run` then trains the run again."
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
    """Return the newest checkpoint, up to step `last_step`, from which this training can continue, or None.

    A checkpoint is skipped if it is damaged, if other code trained it, or if its training did not keep the checkpoints
    that `keeps` needs. The function calls `skipped` with the path of a skipped checkpoint and the reason. Raises
    UserError for a checkpoint of another configuration.
    """
    for path in sorted((p for a in attempts for p in all_of(a)), key=lambda p: p.name, reverse=True):
        if step_of(path) > last_step:
            continue
        try:
            saved = Checkpoint.open(path)
        except Damaged as damage:
            skipped(path, str(damage))
            continue
        if saved.meta.get("lineage") != lineage:
            raise UserError(
                f"{path} was trained with another configuration (lineage {saved.meta.get('lineage')}, this run's is "
                f"{lineage}), so this run cannot resume from it. Name another store, or remove this folder."
            )
        if saved.meta.get("code") != code:
            skipped(path, "trained by other code, which a run does not mix with the present code")
        elif lacking := gap(path, saved.meta, attempts, keeps, last_step):
            skipped(path, lacking)
        else:
            return saved
    return None


def link_checkpoints(saved: Checkpoint, attempts: Sequence[Path], folder: Path) -> None:
    """Hard-link `saved`, and earlier checkpoints of the same training, into the attempt's folder.

    An evaluation of an average of checkpoints, or of the best checkpoint, may need the earlier checkpoints.
    """
    (folder / "checkpoints").mkdir(exist_ok=True)
    for path in [saved.path, *(p for a in attempts for p in all_of(a) if step_of(p) < saved.step)]:
        target = folder / "checkpoints" / path.name
        if target.exists() or not same_training(path, saved.meta):
            continue
        with explain_os_errors(f"link the checkpoint {path}"), whole_folder(target, replace=True) as aside:
            for file in path.iterdir():
                link(file, aside / file.name)


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and persistent buffers by name. A tied tensor occurs once, under its first name."""
    seen: set[int] = set()
    tensors = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor.detach()
    return tensors


@torch.no_grad()
def restore_model(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into the model. Raises ValueError if names or shapes differ from the model's."""
    own = model_tensors(model)
    if own.keys() != weights.keys():
        raise ValueError(f"weights and model differ in names: {sorted(own.keys() ^ weights.keys())[:6]}")
    for name, tensor in own.items():
        if tensor.shape != weights[name].shape:
            raise ValueError(f"{name} is {tuple(weights[name].shape)}, the model's is {tuple(tensor.shape)}")
        tensor.copy_(weights[name])


def _write(path: Path, files: Mapping[str, Mapping[str, Tensor]], meta: Mapping[str, Any]) -> None:
    with explain_os_errors(f"save {path}"):
        path.parent.mkdir(exist_ok=True)  # without parents=True, so that a store that was moved is not created again
    with explain_os_errors(f"save {path}"), whole_folder(path, replace=True) as folder:
        described = {name: write_tensors(folder / name, tensors) for name, tensors in files.items()}
        write_json(folder / "meta.json", {"format": FORMAT, **meta, "files": described})


class Start(NamedTuple):
    """The parent run of a branch and the path of its checkpoint.

    The path is None if the present code has trained no complete checkpoint of this step of the parent run.
    """

    parent_run: ParentRun
    path: Path | None

    def open(self) -> Checkpoint:
        """Open and check the checkpoint. Raises UserError if it is missing or damaged."""
        run_id, step = self.parent_run
        again = "the same `ablations run` trains the parent run again, and then this run"
        if self.path is None:
            raise UserError(
                f"This run branches from run {run_id} after step {step}, and that run has no whole checkpoint of this "
                f"step that the present code trained: {again}."
            )
        try:
            return Checkpoint.open(self.path)
        except Damaged as damage:
            raise UserError(
                f"This run branches from run {run_id} after step {step}, and its checkpoint {self.path} is damaged: "
                f"{damage}. Remove that folder; {again}."
            ) from None
