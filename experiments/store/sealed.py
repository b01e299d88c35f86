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

from experiments.errors import Damaged, UserError
from experiments.store.durable import write_bytes

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


def write_json(path: Path, value: Mapping[str, Any], *, sealed: bool = True) -> None:
    """Write durably: a temporary name beside, fsync, rename, fsync of the folder. Readers see old or new.

    The record carries its checksum (experiments/store/sealed.py) unless other programs are to read it.
    """
    value = seal(value) if sealed else value
    write_bytes(path, (json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True) + "\n").encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """What `write_json` wrote, or None if there is no such file. Raises Damaged."""
    try:
        return unseal(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError) as error:
        raise Damaged(
            f"{path} is damaged ({error}). Restore it from a backup, or delete it to redo this part."
        ) from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror}. Check what lies there and who may read it."
        ) from None


def read_named(path: Path, **names: str) -> dict[str, Any] | None:
    """As read_json; raises Damaged for the record of another run or evaluation too."""
    record = read_json(path)
    for key, name in names.items():
        if record is not None and record.get(key, name) != name:
            raise Damaged(
                f"{path} is the record of another {key}: {record[key]}. Put the right one back, or delete it."
            )
    return record


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
