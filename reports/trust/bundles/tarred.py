"""A bundle as tar.gz, its head first: equal files are packed to equal bytes."""

import gzip
import io
import tarfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO

from reports.trust.bundles.archive import HEAD, LARGEST_HEAD, Archive, Entry

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


class Packed(Archive):
    """A tar.gz that is open for reading. Raises ValueError, or an error of tarfile, gzip or zlib, for anything else."""

    def __init__(self, file: IO[bytes]) -> None:
        self._stream = _Measured(gzip.GzipFile(fileobj=file, mode="rb"))
        self._archive = tarfile.open(fileobj=self._stream, mode="r:")  # type: ignore[call-overload]  # noqa: SIM115
        first = self._archive.next()
        if first is None or first.name != HEAD or not _plain(first) or first.size > LARGEST_HEAD:
            raise ValueError(f"it does not begin with {HEAD}")
        content = self._archive.extractfile(first)
        self.head_text = content.read() if content else b""

    def entries(self) -> Iterator[Entry]:
        for entry in self._archive:
            if entry.name != HEAD or entry.offset != 0:
                yield Entry(entry.name, entry.size, _plain(entry), partial(self._archive.extractfile, entry))

    def finish(self) -> None:
        while rest := self._stream.read(_ONE_READ):  # to the end, where gzip compares its own checksum
            if rest.strip(b"\0"):
                raise ValueError("something follows its last file")


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
