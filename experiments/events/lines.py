"""Encode and decode a line of an event file, with its checksum; recognise damaged lines.

The file's first event has "format": 2, and every line ends with "crc", 8 hex digits of CRC-32 over the line's canonical
JSON (sorted keys, no blanks) without "crc".
"""

import json
import math
import re
import zlib
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from experiments.events.kinds import EVENT

FORMAT = 2
LONGEST_LINE = 4 << 20  # bytes; a longer line counts as damaged and is never read as a whole
LONGEST_TEXT = 200_000  # characters of a text in an event; the middle of a longer text is cut out
_CRC = re.compile(rb',"crc":"([0-9a-f]{8})"\}\n?\Z')
_NO_NEWLINE = re.compile(rb',"crc":"[0-9a-f]{8}"\}[^\n]\Z', re.DOTALL)
_CRC_LENGTH = len(b',"crc":"01234567"}\n')


class LineError(ValueError):
    """The line is not a valid event."""


class _UnknownKindError(LineError):
    pass


def encode(event: Mapping[str, Any]) -> bytes:
    """An event as a line with checksum and newline. Raises LineError for an event that `decode` would refuse."""
    plain = _plain(event)
    line = _canonical(plain)
    _checked(from_json(line))
    line = b'%s,"crc":"%08x"}\n' % (line[:-1], zlib.crc32(line))
    if len(line) > LONGEST_LINE:
        raise LineError(f"an event of {len(line):,} bytes; the longest may have {LONGEST_LINE:,}")
    return line


def decode(line: bytes) -> dict[str, Any] | None:
    """The event of a line; None for a kind of a later version. Raises LineError."""
    try:
        event = from_json(line, allow_inf_nan=False, cache_strings="keys")
        if not isinstance(event, dict):
            raise LineError("not an object")
        _check_crc(line, event)
        return _checked(event)
    except _UnknownKindError:
        return None
    except ValueError as error:  # includes bad UTF-8, NaN, lone surrogates and nesting beyond 200
        raise LineError(str(error)) from None


def past_its_end(line: bytes) -> bool:
    """Whether a last line without newline goes on after its end: the newline was damaged. One cut short does not."""
    return _NO_NEWLINE.search(line, max(0, len(line) - _CRC_LENGTH)) is not None


def _check_crc(line: bytes, event: dict[str, Any]) -> None:
    crc = event.pop("crc", None)
    found = _CRC.match(line, max(0, len(line) - _CRC_LENGTH))
    if found is not None and zlib.crc32(b"}", zlib.crc32(line[: found.start()])) == int(found[1], 16):
        return
    if crc != f"{zlib.crc32(_canonical(event)):08x}":
        raise LineError("the checksum is wrong" if crc else "there is no checksum")


def _checked(event: Any) -> dict[str, Any]:
    try:
        found: dict[str, Any] = EVENT.validate_python(event)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        later = first["type"] == "union_tag_invalid" and isinstance(event["kind"], str)
        raise (_UnknownKindError if later else LineError)(
            f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        ) from None
    if found["kind"] == "metrics":
        found["metrics"] = {name: float(value) for name, value in found["metrics"].items()}
    elif found["kind"] == "progress":
        found |= {name: float(found[name]) for name in ("done", "total") if name in found}
    return found


def _canonical(value: Mapping[str, Any]) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode(errors="replace")  # file names that are not Unicode get question marks


def _plain(value: Any) -> Any:
    """Make a value valid JSON: NaN and infinity become strings, long texts are cut in the middle."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        half = LONGEST_TEXT // 2
        return f"{value[:half]}\n… {len(value) - 2 * half:,} characters left out …\n{value[-half:]}"
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value
