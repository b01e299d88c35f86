"""A bundle as a crate: a zip whose ro-crate-metadata.json describes its files to other programs.

The description is in no manifest: anyone may add authors, a licence or a preview to it. The checksums that it gives
have to be the manifest's.
"""

import io
import stat
import zipfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

from experiments.errors import UserError
from reports.trust.bundles.archive import HEAD, LARGEST_HEAD, LARGEST_RECORD, MOST_FILES, Archive, Entry, parsed

METADATA, PREVIEW = "ro-crate-metadata.json", "ro-crate-preview.html"
_FIRST_DAY = (1980, 1, 1, 0, 0, 0)  # of a zip's calendar: equal files give equal bytes
_LARGE = 1 << 31  # bytes; above, a zip's older form has no room for the size
_READ = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class ForeignZipError(UserError):
    """A zip of another program, or of none."""


def pack_crate(file: IO[bytes], metadata: bytes, head: bytes, files: Mapping[str, Path]) -> None:
    """Write a zip without dates and owners."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name, content in ((METADATA, metadata), (HEAD, head)):
            _add(archive, name, io.BytesIO(content), len(content))
        for name, path in files.items():
            with path.open("rb") as stream:
                _add(archive, name, stream, path.stat().st_size)


def _add(archive: zipfile.ZipFile, name: str, content: IO[bytes], size: int) -> None:
    entry = zipfile.ZipInfo(name, _FIRST_DAY)
    entry.create_system, entry.external_attr = 3, (stat.S_IFREG | 0o644) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    with archive.open(entry, "w", force_zip64=size > _LARGE) as out:
        while part := content.read(1 << 20):
            out.write(part)


class Crate(Archive):
    """A zip that is open for reading. Raises ForeignZipError, ValueError, or an error of zipfile or zlib for others."""

    def __init__(self, file: IO[bytes]) -> None:
        try:
            self._archive = zipfile.ZipFile(file)
        except (NotImplementedError, OverflowError) as error:
            raise ValueError(str(error)) from None
        listed = self._archive.infolist()
        names = [entry.filename for entry in listed]
        if len(names) > MOST_FILES:
            raise ValueError(f"it claims {len(names):,} files")
        for name in (METADATA, HEAD):
            if names.count(name) > 1:
                raise ValueError(f"{name} is there twice")
        if METADATA not in names:
            raise ForeignZipError(f"is a zip, but no RO-Crate: it has no {METADATA}. {_OURS}")
        self.metadata = parsed(self._text(METADATA, LARGEST_RECORD))
        if HEAD not in names:
            raise ForeignZipError(
                f"is an RO-Crate of another program{_title(self.metadata)}: it has no {HEAD}. {_OURS}"
            )
        self.head_text = self._text(HEAD, LARGEST_HEAD)

    def _text(self, name: str, largest: int) -> bytes:
        entry = self._archive.getinfo(name)
        if entry.file_size > largest or not _plain(entry):
            raise ValueError(f"{name} claims a size of {entry.file_size:,} bytes, or is no ordinary file")
        with self._open(entry) as content:
            return content.read(largest)

    def entries(self) -> Iterator[Entry]:
        for entry in self._archive.infolist():
            if entry.filename not in (METADATA, PREVIEW, HEAD) and not _folder(entry):
                yield Entry(entry.filename, entry.file_size, _plain(entry), partial(self._open, entry))

    def _open(self, entry: zipfile.ZipInfo) -> IO[bytes]:
        try:
            return self._archive.open(entry)
        except (NotImplementedError, RuntimeError) as error:  # another compression; encrypted
            raise ValueError(f"{entry.filename[:80]!r}: {error}") from None


_OURS = "This program reads the crates that `ablations bundle --crate` writes"


def _folder(entry: zipfile.ZipInfo) -> bool:
    """Whether the entry is a folder: other programs list them, and they hold nothing."""
    return entry.is_dir() and entry.file_size == 0


def _plain(entry: zipfile.ZipInfo) -> bool:
    """Whether the entry is an ordinary file, packed in one of the two usual ways."""
    kind = stat.S_IFMT(entry.external_attr >> 16)  # 0 where the packing system has no such kinds
    return kind in (0, stat.S_IFREG) and entry.compress_type in _READ and not entry.flag_bits & 1


def _title(metadata: Mapping[str, Any]) -> str:
    """The crate's own name in brackets, where it has one."""
    graph = metadata.get("@graph")
    entities = [entity for entity in graph if isinstance(entity, dict)] if isinstance(graph, list) else []
    name = next((entity.get("name") for entity in entities if entity.get("@id") == "./"), None)
    return f' ("{name[:80]}")' if isinstance(name, str) and name.isprintable() else ""
