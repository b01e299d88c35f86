"""The files of a bundle, whatever contains them: unpacked as untrusted data, within limits.

bundle.json       the table, and size and SHA-256 of every other file (the manifest)
store.json  runs/<run_id>/…     as in a store
A crate (zipped.py) also has a description of itself, a statement, and the printed table.
"""

import json
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from ablations.study.messages import number
from experiments.errors import UserError
from experiments.store.sealed import describe_file

HEAD = "bundle.json"
STATEMENT = "statement.json"
TABLES = {"table.csv": "csv", "table.md": "markdown"}  # the printed table in a crate, by format
SUFFIX, CRATE_SUFFIX = ".tar.gz", ".zip"
NAME = re.compile(
    r"store\.json|statement\.json|table\.(csv|md)|"
    r"runs/(?P<run_id>[0-9a-f]{16})/(config\.json|result\.json|attempts/(?P<attempt>[0-9]{4,6})/(final/)?"
    r"(?!\.)[A-Za-z0-9._-]{1,80}|evaluations/(?P<eval_id>[0-9a-f]{16})/(?!\.)[A-Za-z0-9._-]{1,80})"
)
# Limits of an archive: about a hundred times a large table with its weights.
LARGEST = 64 << 30  # bytes, unpacked
LARGEST_HEAD = 256 << 20
LARGEST_RECORD = 64 << 20  # a .json file, which is read as a whole
MOST_FILES = 1_000_000
DEEPEST = 64  # brackets within brackets in JSON


def is_bundle(name: str) -> bool:
    """Whether a word of the command line names a bundle: an archive or a crate."""
    return name.endswith((SUFFIX, CRATE_SUFFIX))


class Entry(NamedTuple):
    """One file as an archive lists it."""

    name: str
    size: int  # as claimed
    plain: bool  # an ordinary file: no link, no device, not sparse
    open: Callable[[], IO[bytes] | None]


class Archive(ABC):
    """A bundle that is open for reading. Methods raise ValueError, or an error of the container, for anything else."""

    head_text: bytes

    @property
    def head(self) -> dict[str, Any]:
        """The head, parsed."""
        return parsed(self.head_text)

    @abstractmethod
    def entries(self) -> Iterator[Entry]:
        """All files but the head; each can be read until the next is asked for."""

    def finish(self) -> None:  # noqa: B027  (most containers have nothing to check)
        """Check what lies behind the last file."""

    def unpack(self, manifest: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
        """Write the manifest's files below `folder`, which must be empty. Raises UserError for one that is altered."""
        _check(manifest, folder)
        missing = set(manifest)
        for entry in self.entries():
            if not entry.plain or not NAME.fullmatch(entry.name):
                raise ValueError(f"{entry.name[:80]!r} has no place in a bundle")
            if entry.name not in missing:
                raise ValueError(f"{entry.name} is not in its manifest, or there twice")
            _unpack(entry, folder / entry.name, manifest[entry.name])
            missing.discard(entry.name)
        if missing:
            verb = "is" if len(missing) == 1 else "are"
            raise UserError(f"{number(len(missing), 'file')} {verb} missing, such as {min(missing)}.")
        self.finish()


def _unpack(entry: Entry, target: Path, listed: Mapping[str, Any]) -> None:
    content = entry.open() if entry.size == listed["bytes"] else None
    if content is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            _copy(content, file, entry.size)
    if content is None or describe_file(target)["sha256"] != listed["sha256"]:
        raise UserError(f"{entry.name} is not the file that was packed.")
    if target.suffix == ".json":
        parsed(target.read_bytes())


def _copy(content: IO[bytes], file: IO[bytes], size: int) -> None:
    """Copy `size` bytes at most: compressed data may be longer than its entry claims."""
    while size > 0 and (read := content.read(min(size, 1 << 20))):
        size -= len(read)
        file.write(read)


def _check(manifest: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    """Raises, before anything is written, if the manifest exceeds the limits of an archive or the free disk space."""
    if len(manifest) > MOST_FILES:
        raise ValueError(f"it claims {len(manifest):,} files")
    for name, listed in manifest.items():
        size = listed["bytes"]
        if type(size) is not int or size < 0 or (name.endswith(".json") and size > LARGEST_RECORD):
            raise ValueError(f"{name[:80]!r} claims a size of {size!r} bytes")
    total = sum(listed["bytes"] for listed in manifest.values())
    if total > LARGEST:
        raise ValueError(f"it claims to unpack to {total / 1e9:,.0f} GB")
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if total > free:
        raise UserError(f"it unpacks to {total / 1e9:.1f} GB, and {folder} has {free / 1e9:.1f} GB free (see TMPDIR).")


def parsed(text: bytes) -> dict[str, Any]:
    """A JSON object of bounded depth. Raises ValueError."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("brackets are nested without end") from None
    if not isinstance(value, dict):
        raise ValueError("expected a JSON object")
    if any(depth > DEEPEST for depth in _depths(value)):
        raise ValueError(f"brackets are nested more than {DEEPEST} deep")
    return value


def _depths(value: Any) -> Iterator[int]:
    """The depth of each list and object, without recursion."""
    waiting = [(value, 1)]
    while waiting:
        inside, depth = waiting.pop()
        yield depth
        if depth <= DEEPEST:
            parts = inside.values() if isinstance(inside, dict) else inside
            waiting += [(part, depth + 1) for part in parts if isinstance(part, dict | list)]
