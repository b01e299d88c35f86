"""Read and write named tensors in a file in the safetensors format, which cannot execute code.

This module writes the format itself: a length, a JSON header and the bytes. The file is therefore hashed while it is
written, no second copy of the weights is made in memory, and a full disk raises an OSError with its errno.
"""

import hashlib
import json
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from experiments.errors import Damaged
from experiments.store.checksummed import check_file

_NAMES = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64", torch.bool: "BOOL"}
_BLOCK = 2**24  # bytes


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, int | str]:
    """Write tensors to a file and return its size and hash as {"bytes", "sha256"}. Raises OSError."""
    header = _header(tensors)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for data in chain([memoryview(header)], map(_bytes, tensors.values())):
            for start in range(0, len(data), _BLOCK):
                file.write(data[start : start + _BLOCK])
                digest.update(data[start : start + _BLOCK])
        return {"bytes": file.tell(), "sha256": digest.hexdigest()}


def read_tensors(path: Path, written: Mapping[str, object]) -> dict[str, Tensor]:
    """Read a file that `write_tensors` wrote. Raises Damaged if its size or hash differs from `written`."""
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
    header += b" " * (-len(header) % 8)  # align the tensors
    return len(header).to_bytes(8, "little") + header
