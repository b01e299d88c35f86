"""Encode and decode the lines of an event file, detect damaged lines, and define the kinds of events.

The first event of a file has "format": 2. The last field of every line is "crc": the CRC-32, as 8 hex digits, of the
event's canonical JSON (sorted keys, no spaces) without this field.
"""

import json
import math
import re
import zlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Required, Union

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import from_json
from typing_extensions import TypedDict

from experiments.masking import masked

FORMAT = 2
LONGEST_LINE = 4 << 20  # bytes; a longer line counts as damaged and is never loaded into memory
LONGEST_TEXT = 200_000  # characters of a text in an event; the middle of a longer text is removed
_CRC = re.compile(rb',"crc":"([0-9a-f]{8})"\}\n?\Z')
_NO_NEWLINE = re.compile(rb',"crc":"[0-9a-f]{8}"\}[^\n]\Z', re.DOTALL)
_CRC_LENGTH = len(b',"crc":"01234567"}\n')


class LineError(ValueError):
    """Raised for a line that is not a valid event."""


class _UnknownKindError(LineError):
    pass


def encode(event: Mapping[str, Any]) -> bytes:
    """Return an event as a line with checksum and newline. Raises LineError for an event that `decode` would refuse."""
    plain = _plain(event)
    line = _canonical(plain)
    _checked(from_json(line))
    line = b'%s,"crc":"%08x"}\n' % (line[:-1], zlib.crc32(line))
    if len(line) > LONGEST_LINE:
        raise LineError(f"an event of {len(line):,} bytes; the longest may have {LONGEST_LINE:,}")
    return line


def decode(line: bytes) -> dict[str, Any] | None:
    """Return the event in a line, or None if a later version defines its kind. Raises LineError for invalid lines."""
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
    """Return whether the last line is complete except that another byte replaces its newline.

    Such a line is damaged. If the result is False, the line is still being written or was cut off.
    """
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
    return text.encode(errors="replace")  # replaces invalid Unicode, for example in file names, by question marks


def _plain(value: Any) -> Any:
    """Convert a value to valid JSON: NaN becomes a string, long texts are shortened, credentials are masked."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        half = LONGEST_TEXT // 2
        value = f"{value[:half]}\n… {len(value) - 2 * half:,} characters left out …\n{value[-half:]}"
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


# Events may have further fields, which are not checked.


LAST_STEP = (1 << 63) - 1  # SQLite's largest integer
Step = Annotated[int, Field(ge=0, le=LAST_STEP)]
Time = Annotated[float, Field(ge=0, lt=253402300800)]  # Unix seconds, to the end of the year 9999
Count = Annotated[int, Field(ge=0, le=LAST_STEP)]
Number = float | Literal["nan", "inf", "-inf"]  # JSON has no NaN
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


_EVERY = {
    "t": Required[Time],
    "format": Annotated[int, Field(ge=2)],
    # Resources that the attempt had used before this event (experiments/processes/meter.py). Events of the coordinator
    # do not have these fields.
    "cpu_s": Amount,
    "cpu_joules": Amount,  # only if energy is measured
    "gpu_joules": Amount,
}
_KINDS: dict[str, dict[str, Any]] = {
    # The attempt has begun, `after_s` seconds after the start of its process.
    "started": {
        "attempt": Required[Count],
        "after_s": Required[Amount],
        "pid": Count,
        "members": list[Annotated[list[str], Field(min_length=5, max_length=5)]],  # study, profile, corpus, row, group
        "device": dict[str, Any],
        "code_digest": str,
        "revision": dict[str, Any] | None,
        "versions": dict[str, Any] | None,
        "host": str,
    },
    # Training continues from this step.
    "resumed": {"step": Required[Step], "path": Required[str], "run": str},
    # Training begins with the state of its parent run after this step.
    "branched": {"step": Required[Step], "path": Required[str], "run": Required[str]},
    # Earlier attempts no longer count. This event precedes "started".
    "restarted": {"why": str},
    # Values of the training curve.
    "metrics": {"step": Required[Step], "metrics": Required[dict[str, Number]]},
    # The next events repeat the curves of these metrics from the first point, because the study now extracts them with
    # another pattern.
    "redrawn": {"metrics": Required[list[str]]},
    # Progress of work without steps; at most one per second.
    "progress": {"what": Required[str], "done": Number, "total": Number},
    # A checkpoint was saved durably.
    "checkpoint": {"step": Required[Step], "path": Required[str]},
    # A checkpoint was not usable for a resume.
    "checkpoint_skipped": {"path": Required[str], "reason": Required[str]},
    # Values that later attempts must use, so that a resume is exact.
    "pinned": {
        "micro_batch_tokens": Count,
        # (number of pairs, source length, target length) of each shape; [] if shapes are not fixed
        "shapes": list[Annotated[list[Count], Field(min_length=3, max_length=3)]],
        "threads": Count,
        "training_threads": Count,  # how many of `threads` the training uses
        "precision": str,
        "attention_kernel": str,
    },
    # Training is finished; the weights are in the attempt's folder.
    "trained": {"step": Step | None},
    # An evaluation is finished. `renews`: the attempt whose evaluation this one replaces.
    "evaluated": {
        "eval_id": Required[Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]],
        "set": Required[str],
        "metrics": dict[str, Any],
        "renews": Count,
    },
    "finished": {},
    # The attempt stopped on request. `step`: step of its last checkpoint, or None if it saved none.
    "preempted": {"step": Step | None},
    # The attempt failed. `cls`: a FailureClass, or a name that another version defines.
    "failed": {"cls": Required[str], "message": Required[str], "traceback": str, "micro_batch_tokens": Count},
    # The coordinator found that an attempt has ended without an event, because its process was killed.
    "ended": {},
}


def _declared(kind: str, fields: dict[str, Any]) -> Any:
    every = {**_EVERY, **fields, "kind": Required[Literal[kind]]}
    made: Any = TypedDict(kind, every, total=False)  # type: ignore[misc]
    made.__pydantic_config__ = ConfigDict(strict=True, extra="allow")  # type: ignore[attr-defined]
    return made


_ANY: Any = Union[tuple(_declared(*each) for each in _KINDS.items())]  # noqa: UP007 - not known in advance
EVENT: TypeAdapter[Any] = TypeAdapter(Annotated[_ANY, Field(discriminator="kind")])
