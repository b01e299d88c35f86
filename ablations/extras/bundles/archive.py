"""Pack and unpack the files of a bundle, a tar.gz.

bundle.json                     the head: the table, and the size and SHA-256 of every other file (the manifest)
store.json  runs/<run_id>/…     files as in a store

Unpacking treats the archive as untrusted and enforces limits. Packing equal files gives equal bytes.
"""

import gzip
import hashlib
import io
import json
import re
import shutil
import tarfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

from ablations.study.study_file import deeper
from experiments.errors import UserError
from experiments.messages import number

HEAD = "bundle.json"
SUFFIX = ".tar.gz"
# The folder `final` of a trainer may contain files and folders with any printable name.
_PART = r"(?!\.{1,2}(?:/|$))[^/\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,255}"
NAME = re.compile(
    r"store\.json|ledger\.jsonl|"
    r"runs/(?P<run_id>[0-9a-f]{16})/(config\.json|result\.json|"
    rf"attempts/(?P<attempt>[0-9]{{4,6}})/((?!\.)[A-Za-z0-9._-]{{1,80}}|(?P<final>final/){_PART}(?:/{_PART}){{0,30}})|"
    r"evaluations/(?P<eval_id>[0-9a-f]{16})/(?!\.)[A-Za-z0-9._-]{1,80})"
)
# Limits of an archive: about a hundred times a large table with its weights.
LARGEST = 64 << 30  # bytes of all unpacked files
LARGEST_HEAD = 256 << 20  # bytes of the head
LARGEST_RECORD = 64 << 20  # bytes of a .json file, which is read as a whole
MOST_FILES = 1_000_000
DEEPEST = 64  # levels of nested brackets in JSON
_ONE_READ = 1 << 20  # maximum bytes per read; tarfile would read an extended header of any claimed length


class Packed:
    """A bundle that is open for reading.

    Raises ValueError, or an error of tarfile, gzip or zlib, for a file that is not a bundle.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._stream = _Measured(gzip.GzipFile(fileobj=file, mode="rb"))
        self._archive = tarfile.open(fileobj=self._stream, mode="r:")  # type: ignore[call-overload]  # noqa: SIM115
        first = self._archive.next()
        if first is None or first.name != HEAD or not _is_plain(first) or first.size > LARGEST_HEAD:
            raise ValueError(f"it does not begin with {HEAD}")
        content = self._archive.extractfile(first)
        self._head_text = b"".join(iter(partial(content.read, _ONE_READ), b"")) if content else b""

    @property
    def head(self) -> dict[str, Any]:
        """The parsed head."""
        return parsed(self._head_text)

    def unpack(self, manifest: Mapping[str, Mapping[str, Any]], folder: Path, *, weights: bool = True) -> None:
        """Write the files of the manifest below `folder`, which must be empty. Raises UserError for a changed file.

        weights: if False, the files of the trainers' folders `final` are checked but not written.
        """
        _check(manifest, folder, weights)
        missing = set(manifest)
        for entry in self._archive:
            if entry.name == HEAD and entry.offset == 0:
                continue
            found = NAME.fullmatch(entry.name) if _is_plain(entry) else None
            if found is None:
                raise ValueError(f"{entry.name[:80]!r} cannot be in a bundle")
            if entry.name not in missing:
                raise ValueError(f"{entry.name} is not in its manifest, or there twice")
            is_record = entry.name.endswith(".json") and not found["final"]
            target = folder / entry.name if weights or not found["final"] else None
            self._unpack(entry, target, manifest[entry.name], is_record)
            missing.discard(entry.name)
        if missing:
            verb = "is" if len(missing) == 1 else "are"
            raise UserError(f"{number(len(missing), 'file')} {verb} missing, such as {min(missing)}.")
        while rest := self._stream.read(_ONE_READ):  # read to the end, where gzip compares its checksum
            if rest.strip(b"\0"):
                raise ValueError("data follows its last file")

    def _unpack(self, entry: tarfile.TarInfo, target: Path | None, listed: Mapping[str, Any], is_record: bool) -> None:
        """Compare a file with its entry in the manifest, and write it to `target` if that is not None."""
        content = self._archive.extractfile(entry) if entry.size == listed["bytes"] else None
        found = None
        if content is not None and target is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as file:
                found = _copy(content, file, entry.size)
        elif content is not None:
            found = _copy(content, None, entry.size)
        if found != listed["sha256"]:
            raise UserError(f"{entry.name} is not the file that was packed.")
        if is_record and target is not None:
            parsed(target.read_bytes())


def _copy(content: IO[bytes], file: IO[bytes] | None, size: int) -> str:
    """Copy at most `size` bytes and return their SHA-256. The data may be longer than its entry claims."""
    digest = hashlib.sha256()
    while size > 0 and (read := content.read(min(size, _ONE_READ))):
        size -= len(read)
        digest.update(read)
        if file is not None:
            file.write(read)
    return digest.hexdigest()


def _check(manifest: Mapping[str, Mapping[str, Any]], folder: Path, weights: bool) -> None:
    """Raise an error if the manifest exceeds the limits or the free disk space. Called before anything is written."""
    if len(manifest) > MOST_FILES:
        raise ValueError(f"it claims {len(manifest):,} files")
    total = needed = 0
    for name, listed in manifest.items():
        size, found = listed["bytes"], NAME.fullmatch(name)
        of_trainer = bool(found and found["final"])
        if type(size) is not int or size < 0 or (name.endswith(".json") and not of_trainer and size > LARGEST_RECORD):
            raise ValueError(f"{name[:80]!r} claims a size of {size!r} bytes")
        total += size
        needed += size if weights or not of_trainer else 0
    if total > LARGEST:
        raise ValueError(f"it claims to unpack to {total / 1e9:,.0f} GB")
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(f"it unpacks to {needed / 1e9:.1f} GB, and {folder} has {free / 1e9:.1f} GB free (see TMPDIR).")


def parsed(text: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises ValueError for other content, and for brackets nested too deeply."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("brackets are nested without end") from None
    if not isinstance(value, dict):
        raise ValueError("expected a JSON object")
    if deeper(value, DEEPEST):
        raise ValueError(f"brackets are nested more than {DEEPEST} deep")
    return value


def pack(file: IO[bytes], head: bytes, files: Mapping[str, Path]) -> None:
    """Write a tar.gz without dates, owners and a file name, so that equal files give equal bytes."""
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


class _Measured:
    """A stream that refuses large reads, so that the lengths claimed by headers cannot exhaust memory."""

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


def _is_plain(entry: tarfile.TarInfo) -> bool:
    """Return whether the entry is a regular file, not a link, a device or a sparse file."""
    return entry.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not entry.issparse()
