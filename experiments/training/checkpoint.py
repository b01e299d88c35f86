"""Checkpoints: everything that a training needs to continue exactly, and the weights at its end.

    <attempt>/checkpoints/step-00000400/   model.safetensors, optimizer.safetensors, meta.json
    <attempt>/final/                       model.safetensors, meta.json

Batches and dropout are functions of (seed, step), so no random state is saved: the step is enough. A folder is written
under another name, fsynced and renamed; meta.json records the size and hash of each file. Files are never modified
afterwards, only replaced or removed, so a new attempt can take an earlier one's by hard links.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from experiments.device import Device
from experiments.errors import Damaged, UserError, explain_os_errors
from experiments.identity import ParentRun
from experiments.store.checksummed import check_file, describe_file, write_json
from experiments.store.durable import link, whole_folder, write_bytes
from experiments.store.retention import Keep
from experiments.training.kept_checkpoints import OPTIMIZER, all_of, gap, meta_of, same_training, step_of

FORMAT = 1
_MODEL = "model.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files match their recorded sizes and hashes."""

    path: Path
    meta: Mapping[str, Any]

    @property
    def step(self) -> int:
        """Optimizer updates before it was saved."""
        return int(self.meta["step"])

    def weights(self) -> dict[str, Tensor]:
        """The model's tensors by name. Raises Damaged if their bytes are not those that were written."""
        return read_tensors(self.path / _MODEL, self.meta["files"][_MODEL])

    def optimizer(self) -> dict[str, Tensor]:
        """The optimizer's tensors. Raises Damaged as `weights` does."""
        return read_tensors(self.path / OPTIMIZER, self.meta["files"][OPTIMIZER])

    @classmethod
    def open(cls, path: Path) -> "Checkpoint":
        """Open and check. Raises Damaged for incomplete or changed files, UserError for another format."""
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
    """Save `<folder>/checkpoints/step-…`; durable on return. Raises UserError if the disk is full."""
    path = folder / "checkpoints" / f"step-{step:08d}"
    _write(path, {_MODEL: weights, OPTIMIZER: optimizer}, {**meta, "step": step})
    return path


def save_weights(path: Path, weights: Mapping[str, Tensor], meta: Mapping[str, Any]) -> Path:
    """Save only weights, to a folder of any name: "final", those of the last step; averages and exports."""
    _write(path, {_MODEL: weights}, meta)
    return path


def add_file(path: Path, name: str, content: bytes) -> None:
    """Add a file beside the weights; from now on it is checked with them."""
    with explain_os_errors(f"save {path / name}"):
        write_bytes(path / name, content)
        meta = meta_of(path)
        write_json(path / "meta.json", {**meta, "files": {**meta["files"], name: describe_file(path / name)}})


def load_weights(path: Path) -> dict[str, Tensor]:
    """The weights of a checkpoint or of `final`. Raises UserError if they are damaged or of another format."""
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
    """The checkpoint with the highest step up to `last_step` from which this training can continue; None if none can.

    Skipped and reported to `skipped`: damaged checkpoints, those trained by
    other code, and those whose training kept less than `keeps` needs. Raises UserError for a checkpoint of another
    configuration, which the caller should not have offered.
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
    """Link earlier attempts' checkpoints up to `saved` into `folder`: averages and the best may need them."""
    (folder / "checkpoints").mkdir(exist_ok=True)
    for path in [saved.path, *(p for a in attempts for p in all_of(a) if step_of(p) < saved.step)]:
        target = folder / "checkpoints" / path.name
        if target.exists() or not same_training(path, saved.meta):
            continue
        with explain_os_errors(f"link the checkpoint {path}"), whole_folder(target, replace=True) as aside:
            for file in path.iterdir():
                link(file, aside / file.name)


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name; a tied one only once, under its first name."""
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
        path.parent.mkdir(exist_ok=True)  # not its parents: a store that was moved is not begun again here
    with explain_os_errors(f"save {path}"), whole_folder(path, replace=True) as folder:
        described = {name: write_tensors(folder / name, tensors) for name, tensors in files.items()}
        write_json(folder / "meta.json", {"format": FORMAT, **meta, "files": described})


# --- Write checkpoints in a thread: a step waits only for a copy in memory, not for the disk


class Saver:
    """Writes one checkpoint at a time in a thread. The next call raises its errors."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._saving: Future[None] | None = None
        self._copies: dict[str, Tensor] = {}  # reused: allocating costs more than copying

    def start(self, tensors: Mapping[str, Tensor], write: Callable[[Mapping[str, Tensor]], None]) -> None:
        """Copy `tensors` now, and let `write` save the copies. Waits for the previous save."""
        self.wait()
        self._saving = self._thread.submit(write, self._copy(tensors))

    def check(self) -> None:
        """Raise the error of a finished save; does not wait."""
        if self._saving is not None and self._saving.done():
            self.wait()

    def wait(self) -> None:
        """Wait until the last save is on the disk; raise its error."""
        if self._saving is not None:
            saving, self._saving = self._saving, None
            saving.result()

    def close(self) -> None:
        """Wait without raising errors, for use after another error; the last use."""
        self._thread.shutdown()

    def _copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        for name, tensor in tensors.items():
            if name not in self._copies:
                self._copies[name] = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
            self._copies[name].copy_(tensor, non_blocking=True)
        self._device.synchronize()
        return {name: self._copies[name] for name in tensors}


# --- Named tensors in one durable file in the safetensors format, which cannot execute code
# Written by our own code (the format is a length, a JSON header and the bytes), so that a file is hashed while it is
# written, memory holds no second copy of the weights, and a full disk is an OSError with its number.


_NAMES = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64", torch.bool: "BOOL"}
_BLOCK = 2**24  # bytes


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, int | str]:
    """Write the file; returns {"bytes", "sha256"} for a record elsewhere. Raises OSError."""
    header = _header(tensors)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for data in chain([memoryview(header)], map(_bytes, tensors.values())):
            for start in range(0, len(data), _BLOCK):
                file.write(data[start : start + _BLOCK])
                digest.update(data[start : start + _BLOCK])
        return {"bytes": file.tell(), "sha256": digest.hexdigest()}


def read_tensors(path: Path, written: Mapping[str, object]) -> dict[str, Tensor]:
    """Read a file of `write_tensors`. Raises Damaged if its size or hash differs from `written`."""
    check_file(path, written)
    try:
        return safetensors.torch.load_file(path)
    except (SafetensorError, OSError) as error:
        raise Damaged(f"{path.name} cannot be read: {error}") from error


def _bytes(tensor: Tensor) -> memoryview:
    array = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return memoryview(array)  # type: ignore[arg-type]


def _header(tensors: Mapping[str, Tensor]) -> bytes:
    entries, offset = {}, 0
    for name, tensor in tensors.items():
        end = offset + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # tensors start aligned
    return len(header).to_bytes(8, "little") + header


# --- The state with which a branch begins (warm_start.py finds the checkpoint)


class Start(NamedTuple):
    """The parent of a branch, and the folder of its checkpoint; None where there is none of that step and this code."""

    parent_run: ParentRun
    path: Path | None

    def open(self) -> Checkpoint:
        """The checkpoint, checked. Raises UserError for one that is missing or damaged."""
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
