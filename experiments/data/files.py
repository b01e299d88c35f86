"""Text files, plain or .gz: their lines, and a checked fingerprint of their content. Imports no torch.

A line ends at "\\n" and nowhere else (`str.splitlines` breaks on U+2028, U+0085 and six more, which real text
holds). One "\\r" before the "\\n" belongs to the line end and is taken off; a byte order mark at the start too.
"""

import codecs
import contextlib
import gzip
import hashlib
import json
import time
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from experiments.errors import UserError
from experiments.store import write_json

BLOCK = 1 << 20  # bytes read at once
RECENT_S = 2.0  # a file changed this lately may change again within its time stamp's grain: not remembered


@dataclass(frozen=True)
class FilePair:
    """Two files whose lines belong together, by number."""

    source: Path
    target: Path


@dataclass(frozen=True)
class FileFacts:
    """What one pass over a file says: the SHA-256 of its (unpacked) bytes, its lines."""

    sha256: str
    lines: int


def read_lines(path: Path) -> Iterator[str]:
    """The lines without their ends, one at a time. Raises UserError for a file that cannot be read."""
    with _explained(path):
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8", newline="\n") as lines:
            for number, line in enumerate(lines):
                text = line.removesuffix("\n").removesuffix("\r")
                yield text if number else text.removeprefix("\ufeff")


def inspect(path: Path) -> FileFacts:
    """Hash, count and check a file in one pass of bounded memory.

    Raises UserError if it cannot be read, is empty, or is not UTF-8 (with the line's number).
    """
    content = hashlib.sha256()
    decoder = codecs.getincrementaldecoder("utf-8")()
    newlines = 0
    last = b""
    with _explained(path), _open_bytes(path) as file:
        while block := file.read(BLOCK):
            _check_utf8(path, decoder, block, newlines)
            content.update(block)
            newlines += block.count(b"\n")
            last = block[-1:]
    _check_utf8(path, decoder, b"", newlines)
    if not last:
        raise UserError(f"{path} is empty. Put one sentence on each line, or leave the file out.")
    return FileFacts(content.hexdigest(), newlines + (last != b"\n"))


def _open_bytes(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _check_utf8(path: Path, decoder: codecs.IncrementalDecoder, block: bytes, lines_before: int) -> None:
    """Decode a block; an empty block is the file's end."""
    try:
        decoder.decode(block, final=not block)
    except UnicodeDecodeError as error:
        # What the decoder kept of the block before is a cut character: no newline is in it.
        line = lines_before + error.object[: error.start].count(b"\n") + 1
        byte = error.object[error.start]
        raise UserError(
            f"{path}, line {line}: not UTF-8 (byte 0x{byte:02x}). Convert the file, for instance with "
            f"`iconv -f latin1 -t utf-8`, if it is Latin-1."
        ) from None


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn what can be wrong with a user's file into a UserError."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path} does not exist.") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be unpacked ({error}): it is cut off or not gzip. Copy it again.") from None
    except UnicodeDecodeError:
        inspect(path)  # says which line
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}. Check its permissions.") from None


_seen: dict[tuple[str, int, int], FileFacts] = {}  # by this process: path, size, time of change


class Fingerprints:
    """FileFacts remembered by (path, size, time of change), so that a second look at a corpus costs nothing.

    The memory is one JSON file in `folder`; without a folder, or one that cannot be written, nothing is kept.
    Paths enter it hashed: a store holds no absolute path.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = folder / "fingerprints.json" if folder else None
        self._known = self._load()
        self._fresh = False

    def facts(self, path: Path) -> FileFacts:
        """`inspect(path)`, remembered."""
        try:
            status = path.stat()
        except OSError:
            return inspect(path)  # which explains what is wrong
        stamp = [status.st_size, status.st_mtime_ns]
        seen_as = (str(path.absolute()), status.st_size, status.st_mtime_ns)
        if seen_as in _seen:
            return _seen[seen_as]
        key = hashlib.sha256(seen_as[0].encode()).hexdigest()[:32]
        if (entry := self._known.get(key)) and entry["stamp"] == stamp:
            facts = FileFacts(**entry["facts"])
        else:
            facts = inspect(path)
            if time.time() - status.st_mtime > RECENT_S:
                self._known[key] = {"stamp": stamp, "facts": asdict(facts)}
                self._fresh = True
        _seen[seen_as] = facts
        return facts

    def save(self) -> None:
        """Keep what was learnt; a writer at the same time loses nothing but time."""
        if self._fresh and self._path and self._path.parent.is_dir():
            with contextlib.suppress(OSError):
                write_json(self._path, self._known)

    def _load(self) -> dict[str, dict[str, Any]]:
        if self._path:
            with contextlib.suppress(OSError, ValueError):
                known = json.loads(self._path.read_text(encoding="utf-8"))
                return known if isinstance(known, dict) else {}
        return {}
