"""Check the checksums of TensorBoard's event files, because TensorBoard's reader accepts damaged records.

An event file is a sequence of TFRecord frames. Each frame has a masked CRC-32C of its length and one of its data.
"""

import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from experiments.errors import UserError
from experiments.store.durable import open_regular

if TYPE_CHECKING:
    from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78  # polynomial of CRC-32C, bits reflected
_CHUNK = 64  # bytes per chunk; the chunks of all records are processed together
_AT_ONCE = 16 << 20  # bytes of records that are checked together


def check_records(file: Path) -> str:
    """Check all records of a file. Return a sentence if the last record is truncated, else "".

    Raises UserError for a record with a wrong checksum.
    """
    with open_regular(file) as opened:
        batch: list[tuple[int, bytes, int]] = []
        size, cut = 0, ""
        for place, data, checksum in _records(opened):
            if checksum is None:
                cut = f"{file}: its last record, at byte {place:,}, is cut off"
                break
            batch.append((place, data, checksum))
            size += len(data)
            if size > _AT_ONCE:
                _check(file, batch)
                batch, size = [], 0
        _check(file, batch)
    return cut


def _records(opened: BinaryIO) -> Iterator[tuple[int, bytes, int | None]]:
    """Yield the two parts of each frame, its length and its data, as (position of the frame, bytes, masked checksum).

    The checksum is None if the file ends within the part.
    """
    place, left = 0, opened.seek(0, 2)
    opened.seek(0)
    while left:
        head = opened.read(12)
        if len(head) < 12:
            yield place, head, None
            return
        yield place, head[:8], struct.unpack("<I", head[8:])[0]
        size = struct.unpack("<Q", head[:8])[0]
        if _plainly(head[:8]) != _unmasked(struct.unpack("<I", head[8:])[0]):
            return  # the length is wrong, so the next frame cannot be found
        data = opened.read(min(size + 4, left))
        if len(data) < size + 4:
            yield place, data, None
            return
        yield place, data[:-4], struct.unpack("<I", data[-4:])[0]
        place += 16 + size
        left -= 16 + size


def _check(file: Path, batch: list[tuple[int, bytes, int]]) -> None:
    found = crc32c([data for _, data, _ in batch])
    for (place, _, checksum), own in zip(batch, found, strict=True):
        if own != _unmasked(checksum):
            raise UserError(
                f"{file} is damaged: the record at byte {place:,} has another checksum. Copy the file again, or move "
                "it out of the folder."
            )


def _unmasked(checksum: int) -> int:
    rotated = (checksum - 0xA282EAD8) & 0xFFFFFFFF
    return ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF


def crc32c(texts: list[bytes]) -> list[int]:
    """Return the CRC-32C of each text.

    The CRC is linear: the CRC of a text is the XOR of the CRCs of its chunks, each advanced over the chunks that follow
    it. The chunks of all texts are computed together. If the register starts at zero, zeros before a text do not change
    the result, so texts are padded at the start. The standard starts with all ones, which is equivalent to inverting
    the first four bytes of the text.
    """
    import numpy as np

    table = np.array(_table(), dtype=np.uint32)
    padded = bytearray()
    counts = []
    for text in texts:
        if len(text) < 4:
            counts.append(0)
            continue
        padded += bytes(-len(text) % _CHUNK) + bytes(one ^ 0xFF for one in text[:4]) + text[4:]
        counts.append(-(-len(text) // _CHUNK))
    chunks: NDArray[np.uint8] = np.frombuffer(bytes(padded), dtype=np.uint8).reshape(-1, _CHUNK)
    register = np.zeros(len(chunks), dtype=np.uint32)
    for place in range(_CHUNK):
        register = table[(register ^ chunks[:, place]) & 0xFF] ^ (register >> 8)
    of_chunks = iter(register.tolist())
    advance = _advance()
    found = []
    for text, count in zip(texts, counts, strict=True):
        if not count:
            found.append(_plainly(text))
            continue
        state = 0
        for _ in range(count):
            state = (
                advance[0][state & 0xFF]
                ^ advance[1][state >> 8 & 0xFF]
                ^ advance[2][state >> 16 & 0xFF]
                ^ advance[3][state >> 24]
                ^ next(of_chunks)
            )
        found.append(state ^ 0xFFFFFFFF)
    return found


def _plainly(text: bytes) -> int:
    state = 0xFFFFFFFF
    for one in text:
        state = _table()[(state ^ one) & 0xFF] ^ (state >> 8)
    return state ^ 0xFFFFFFFF


@cache
def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


@cache
def _advance() -> list[list[int]]:
    """Return, for each of the four bytes of the register and each value, the register after a chunk of zeros."""
    table = _table()

    def after(state: int) -> int:
        for _ in range(_CHUNK):
            state = table[state & 0xFF] ^ (state >> 8)
        return state

    return [[after(value << shift) for value in range(256)] for shift in (0, 8, 16, 24)]
