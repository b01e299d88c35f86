r"""Read text files, plain or .gz, and compute fingerprints of their content. Imports no torch.

A line ends only at "\n". (`str.splitlines` also breaks at U+2028, U+0085 and other characters, which occur in real
text.) A "\r" before the "\n" belongs to the line end and is removed. A byte order mark at the start of a file is also
removed.
"""

import codecs
import contextlib
import gzip
import hashlib
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self, cast

from experiments.errors import UserError
from experiments.store.checksummed import read_json, write_json

BLOCK = 1 << 20  # bytes per read
LONGEST_LINE = 1 << 20  # characters; a longer line is not a sentence, and encoding it could exhaust the memory
# Facts of a file that was changed less than RECENT_S seconds ago are not stored, because the file may change again with
# the same time stamp.
RECENT_S = 2.0


@dataclass(frozen=True)
class FileFacts:
    """The SHA-256 of a file's unpacked bytes, and its number of lines."""

    sha256: str
    lines: int


def read_lines(path: Path, sha256: str = "") -> Iterator[str]:
    """Yield the lines of a file without their line ends.

    sha256: the expected hash of the unpacked bytes; "" skips the check.
    Raises UserError if the file cannot be read. If the hash differs, raises UserError after the last line.
    """
    with _explained(path):
        for number, line in enumerate(read_raw(path, sha256)):
            text = line.decode().removesuffix("\n").removesuffix("\r")
            yield text if number else text.removeprefix("\ufeff")


def read_raw(path: Path, sha256: str = "") -> Iterator[bytes]:
    """Yield the lines of a file with their line ends, as bytes. `sha256` and errors are as in `read_lines`."""
    content = hashlib.sha256()
    with _explained(path), _open_bytes(path) as file:
        for line in file:
            if sha256:
                content.update(line)
            yield line
    if sha256 and content.hexdigest() != sha256:
        _seen.pop(str(path.absolute()), None)
        raise UserError(
            f"{path} was changed after it was hashed and before it was read: its content no longer matches the "
            "names of these runs. Nothing of it was kept. Run the same command again when the file is final."
        )


def inspect(path: Path, *, raw: bool = False) -> FileFacts:
    """Hash a file, count its lines and check its content, in one pass with bounded memory.

    raw: the file may contain any bytes.
    Raises UserError if the file cannot be read or is empty. Unless `raw`, raises UserError also if the file is not
    UTF-8 or if its only line ends are carriage returns.
    """
    content = hashlib.sha256()
    decoder = codecs.getincrementaldecoder("utf-8")()
    newlines = returns = 0
    last = b""
    with _explained(path), _open_bytes(path) as file:
        while block := file.read(BLOCK):
            if not raw:
                _check_utf8(path, decoder, block, newlines)
            content.update(block)
            newlines += block.count(b"\n")
            returns += block.count(b"\r")
            last = block[-1:]
    if not raw:
        _check_utf8(path, decoder, b"", newlines)
    if not last:
        raise UserError(f"{path} is empty. Put one sentence on each line, or leave the file out.")
    if returns > 1 and not newlines and not raw:
        raise UserError(
            f"{path} has carriage returns ({returns:,}) as its only line ends, so it would be read as one line. "
            f"Convert them, for "
            "instance with `tr '\\r' '\\n'`."
        )
    return FileFacts(content.hexdigest(), newlines + (last != b"\n"))


def _open_bytes(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _check_utf8(path: Path, decoder: codecs.IncrementalDecoder, block: bytes, lines_before: int) -> None:
    """Raise UserError if a block is not UTF-8. An empty block marks the end of the file."""
    try:
        decoder.decode(block, final=not block)
    except UnicodeDecodeError as error:
        # error.object may begin with bytes of the previous block. They are part of one character, not a newline.
        line = lines_before + error.object[: error.start].count(b"\n") + 1
        byte = error.object[error.start]
        raise UserError(
            f"{path}, line {line}: not UTF-8 (byte 0x{byte:02x}). Convert the file, for instance with "
            f"`iconv -f latin1 -t utf-8`, if it is Latin-1."
        ) from None


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn errors of a user's file into a UserError."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path} does not exist.") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be unpacked ({error}): it is cut off or not gzip. Copy it again.") from None
    except UnicodeDecodeError:
        inspect(path)  # raises a UserError with the line number
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}. Check its permissions.") from None


_seen: dict[str, tuple[list[int], FileFacts]] = {}  # in-process cache: path → (stamp, facts)


class Fingerprints:
    """A cache of FileFacts by path and stamp, so that unchanged files are read only once.

    The facts are stored in a JSON file in `folder`. Without a folder, or if it is read-only, they are not stored.
    The JSON file contains hashes of paths, because a store must not contain absolute paths.
    pinned: facts to return without checking the file. raw: the files may contain any bytes.
    """

    def __init__(
        self, folder: Path | None, pinned: Mapping[Path, FileFacts] | None = None, *, raw: bool = False
    ) -> None:
        self._raw = raw
        self._path = folder / "fingerprints.json" if folder else None
        self._pinned = pinned or {}
        self._known: dict[str, dict[str, Any]] = {}
        self._fresh = False
        if self._path:
            with contextlib.suppress(UserError):  # the JSON file is damaged: read the corpus again
                self._known = read_json(self._path) or {}

    def facts(self, path: Path) -> FileFacts:
        """Return the facts of a file, from the cache if the file has not changed. Errors are those of `inspect`."""
        if path in self._pinned:
            return self._pinned[path]
        try:
            status = path.stat()
        except OSError:
            return inspect(path)  # raises a UserError with the reason
        # The inode and the change time (ctime) detect new content, even if a copy (`cp -p`, rsync) preserves the size
        # and the modification time (mtime).
        stamp = [status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns]
        name = f"{path.absolute()}{' raw' * self._raw}"
        if name in _seen and _seen[name][0] == stamp:
            return _seen[name][1]
        key = hashlib.sha256(name.encode()).hexdigest()[:32]
        if (entry := self._known.get(key)) and entry["stamp"] == stamp:
            facts = FileFacts(**entry["facts"])
        else:
            facts = inspect(path, raw=self._raw)
            if time.time() - max(status.st_mtime, status.st_ctime) > RECENT_S:
                self._known[key] = {"stamp": stamp, "facts": asdict(facts)}
                self._fresh = True
        _seen[name] = (stamp, facts)
        return facts

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Store new facts, unless an error was raised. Concurrent writers may lose facts, which are computed again."""
        if self._fresh and error is None and self._path and self._path.parent.is_dir():
            with contextlib.suppress(OSError):
                write_json(self._path, self._known)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines in the given order. A line feed within a line is written as a space."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(line.replace("\n", " ") + "\n" for line in lines)


def written_lines(path: Path) -> list[str]:
    """Return the lines of a file that `write_lines` wrote. Only a line feed ends a line."""
    with path.open(encoding="utf-8", newline="\n") as file:
        return [line.removesuffix("\n") for line in file]
