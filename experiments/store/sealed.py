"""Checksums of what is kept on disk: JSON records carry their own; records name those of the files beside them.

A sealed record has two more keys, `record_format` and `record_sha256`: the SHA-256 of the canonical JSON of all other
keys. A record with neither was written by an earlier version and is read as it stands. There are two keys so that a
single damaged byte never makes a sealed record look like an unsealed one. Imports no torch.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.errors import Damaged

FORMAT = 1
_FORMAT, _SHA256 = "record_format", "record_sha256"


def seal(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with its format and checksum."""
    return {**record, _FORMAT: FORMAT, _SHA256: _digest(record)}


def unseal(record: Any) -> dict[str, Any]:
    """The record without its format and checksum. Raises ValueError if it is not what was sealed."""
    if not isinstance(record, dict):
        raise ValueError("expected a JSON object")
    rest = {name: value for name, value in record.items() if name not in (_FORMAT, _SHA256)}
    if len(rest) == len(record):
        return rest  # of an earlier version
    if record.get(_SHA256) != _digest(rest):
        raise ValueError("its content does not match its checksum")
    if record.get(_FORMAT) != FORMAT:
        raise ValueError(f"its format is {record.get(_FORMAT)!r}, this program reads {FORMAT}")
    return rest


def _digest(record: Mapping[str, Any]) -> str:
    """Of the values, not of the text: a file that was only laid out anew is not damaged. NaN is written as such."""
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def describe_file(path: Path) -> dict[str, Any]:
    """{"bytes", "sha256"} of a file, for the record that names it."""
    with path.open("rb") as file:
        return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "bytes": file.tell()}


def check_file(path: Path, written: Mapping[str, Any]) -> None:
    """Raises Damaged unless the file has the size and the SHA-256 that were recorded."""
    try:
        size = path.stat().st_size
        if size != written["bytes"]:
            raise Damaged(f"{path.name} has {size} bytes, {written['bytes']} were written")
        if describe_file(path)["sha256"] != written["sha256"]:
            raise Damaged(f"{path.name} is not what was written (SHA-256)")
    except OSError as error:
        raise Damaged(f"{path.name} cannot be read: {error.strerror}") from error
    except (KeyError, TypeError):
        raise Damaged(f"of {path.name} no size and hash were recorded") from None
