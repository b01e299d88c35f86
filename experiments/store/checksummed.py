"""Checksums of records. A JSON record contains its own checksum, and may list checksums of files in its folder.

A checksummed record has two extra keys. `record_format` is the version of the format. `record_sha256` is the SHA-256 of
the canonical JSON of all other keys. A record without these keys counts as damaged. This module does not import torch.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.errors import Damaged, UserError
from experiments.store.durable import open_regular, read_regular, write_bytes

FORMAT = 1
_FORMAT, _SHA256 = "record_format", "record_sha256"


def with_checksum(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record with its format and checksum added."""
    return {**record, _FORMAT: FORMAT, _SHA256: _digest(record)}


def without_checksum(record: Any) -> dict[str, Any]:
    """Return the record without its format and checksum. Raise ValueError if its content does not match them."""
    if not isinstance(record, dict):
        raise ValueError("expected a JSON object")
    rest = {name: value for name, value in record.items() if name not in (_FORMAT, _SHA256)}
    if record.get(_SHA256) != _digest(rest):
        raise ValueError("its content does not match its checksum" if _SHA256 in record else "it has no checksum")
    if record.get(_FORMAT) != FORMAT:
        raise ValueError(f"its format is {record.get(_FORMAT)!r}, this program reads {FORMAT}")
    return rest


def _digest(record: Mapping[str, Any]) -> str:
    """Return a digest of the values, which may include NaN. The order of keys and the white space have no influence."""
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def write_json(path: Path, value: Mapping[str, Any], *, checksummed: bool = True) -> None:
    """Write a JSON record durably and atomically.

    checksummed: whether to add the record's checksum (`with_checksum`). Pass False for files that other programs read.
    """
    value = with_checksum(value) if checksummed else value
    text = json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    write_bytes(path, text.encode("utf-8", "backslashreplace"))  # an unpaired surrogate becomes its JSON escape


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the record that `write_json` wrote; None if the file is missing.

    Raises Damaged if the content does not match the checksum, and UserError if the file cannot be read.
    """
    try:
        return without_checksum(json.loads(read_regular(path).decode("utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError) as error:
        raise Damaged(
            f"{path} is damaged ({error}). Restore it from a backup, or rename it to redo this part."
        ) from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror}. Check that it is a file and its permissions."
        ) from None


def describe_file(path: Path) -> dict[str, Any]:
    """Return the size and SHA-256 of a file as {"bytes": …, "sha256": …}, for a record that lists the file."""
    with open_regular(path) as file:
        return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "bytes": file.tell()}


def describe_files(folder: Path, prefix: str = "") -> dict[str, dict[str, Any]]:
    """Return `describe_file` of each file in a folder, by file name. prefix: text to put before each name."""
    return {f"{prefix}{path.name}": describe_file(path) for path in sorted(folder.iterdir())}


def check_file(path: Path, written: Mapping[str, Any]) -> None:
    """Raise Damaged unless the file has the recorded size and SHA-256."""
    try:
        size = path.stat().st_size
        if size != written["bytes"]:
            raise Damaged(f"{path.name} has {size} bytes, but {written['bytes']} were written")
        if describe_file(path)["sha256"] != written["sha256"]:
            raise Damaged(f"{path.name} has changed since it was written (SHA-256)")
    except OSError as error:
        raise Damaged(f"{path.name} cannot be read: {error.strerror}") from error
    except (KeyError, TypeError):
        raise Damaged(f"no size and hash were recorded for {path.name}") from None
