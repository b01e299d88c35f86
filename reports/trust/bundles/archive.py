"""The archive of a bundle: equal files are packed to equal bytes, and unpacked as untrusted data.

bundle.json       first: the table, and size and SHA-256 of every other file (the manifest)
store.json  runs/<run_id>/…     as in a store
"""

import gzip
import io
import json
import re
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from experiments.errors import UserError
from experiments.store.sealed import describe_file

HEAD = "bundle.json"
SUFFIX = ".tar.gz"
NAME = re.compile(
    r"store\.json|runs/(?P<run_id>[0-9a-f]{16})/(config\.json|result\.json|attempts/(?P<attempt>[0-9]{4,6})/(final/)?"
    r"(?!\.)[A-Za-z0-9._-]{1,80}|evaluations/(?P<eval_id>[0-9a-f]{16})/(?!\.)[A-Za-z0-9._-]{1,80})"
)
# Limits of an archive: about a hundred times a large table with its weights.
LARGEST = 64 << 30  # bytes, unpacked
LARGEST_HEAD = 256 << 20
LARGEST_RECORD = 64 << 20  # a .json file, which is read as a whole
MOST_FILES = 1_000_000
DEEPEST = 64  # brackets within brackets in JSON
_ONE_READ = 1 << 20  # tarfile reads an extended header as a whole, whatever length it claims


def pack(file: IO[bytes], head: bytes, files: Mapping[str, Path]) -> None:
    """Write a tar.gz without dates, owners and its own name, so that equal files give equal bytes."""
    with (
        gzip.GzipFile(fileobj=file, mode="wb", mtime=0, filename="", compresslevel=6) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        _add(archive, HEAD, io.BytesIO(head), len(head))
        for name, path in files.items():
            with path.open("rb") as content:
                _add(archive, name, content, path.stat().st_size)


def _add(archive: tarfile.TarFile, name: str, content: IO[bytes], size: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o644
    archive.addfile(entry, content)


class Packed:
    """A bundle that is open for reading. Raises ValueError, or an error of tarfile, gzip or zlib, for anything else."""

    def __init__(self, file: IO[bytes]) -> None:
        self._stream = _Measured(gzip.GzipFile(fileobj=file, mode="rb"))
        self._archive = tarfile.open(fileobj=self._stream, mode="r:")  # type: ignore[call-overload]  # noqa: SIM115
        first = self._archive.next()
        if first is None or first.name != HEAD or not _plain(first) or first.size > LARGEST_HEAD:
            raise ValueError(f"it does not begin with {HEAD}")
        content = self._archive.extractfile(first)
        self.head = parsed(content.read() if content else b"")

    def unpack(self, manifest: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
        """Write the manifest's files below `folder`, which must be empty. Raises UserError for one that is altered."""
        _check(manifest, folder)
        missing = set(manifest)
        for entry in self._archive:
            if entry.name == HEAD and entry.offset == 0:
                continue
            if not _plain(entry) or not NAME.fullmatch(entry.name):
                raise ValueError(f"{entry.name[:80]!r} has no place in a bundle")
            if entry.name not in missing:
                raise ValueError(f"{entry.name} is not in its manifest, or there twice")
            listed = manifest[entry.name]
            self._unpack(entry, folder / entry.name, listed)
            missing.discard(entry.name)
        if missing:
            raise UserError(f"{len(missing)} files are missing, such as {min(missing)}.")
        while rest := self._stream.read(_ONE_READ):  # to the end, where gzip compares its own checksum
            if rest.strip(b"\0"):
                raise ValueError("something follows its last file")

    def _unpack(self, entry: tarfile.TarInfo, target: Path, listed: Mapping[str, Any]) -> None:
        content = self._archive.extractfile(entry) if entry.size == listed.get("bytes", entry.size) else None
        if content is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as file:
                shutil.copyfileobj(content, file)
        if content is None or describe_file(target)["sha256"] != listed["sha256"]:
            raise UserError(f"{entry.name} is not the file that was packed.")
        if target.suffix == ".json":
            parsed(target.read_bytes())


class _Measured:
    """A stream that refuses large reads, whatever lengths its headers claim."""

    def __init__(self, stream: gzip.GzipFile) -> None:
        self._stream = stream

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _ONE_READ:
            raise ValueError("a header of it claims to be larger than any")
        return self._stream.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()


def _plain(entry: tarfile.TarInfo) -> bool:
    """Whether the entry is an ordinary file: no link, no device, not sparse."""
    return entry.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not entry.issparse()


def _check(manifest: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    """Raises, before anything is written, if the manifest exceeds the limits of an archive or the free disk space."""
    if len(manifest) > MOST_FILES:
        raise ValueError(f"it claims {len(manifest):,} files")
    for name, listed in manifest.items():
        size = listed.get("bytes", 0)  # older manifests have no sizes: the archive's entries do
        if type(size) is not int or size < 0 or (name.endswith(".json") and size > LARGEST_RECORD):
            raise ValueError(f"{name[:80]!r} claims a size of {size!r} bytes")
    total = sum(listed.get("bytes", 0) for listed in manifest.values())
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
