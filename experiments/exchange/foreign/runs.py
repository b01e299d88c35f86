"""Runs of other programs, as their files describe them: what every reader in this folder returns."""

import hashlib
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.errors import UserError

SEED_NAMES = ("seed", "random_seed", "training.seed", "args.seed")


@dataclass(frozen=True)
class ForeignRun:
    """A run. `fields` are columns of a table that does not say which are settings and which are metrics."""

    where: str  # for messages: "line 3", "run sweet-sun-3"
    name: str = ""
    id: str = ""
    row: str = ""  # as the source names it; "": it does not
    group: str = ""
    seed: str = ""  # "": it has none
    fields: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)  # by dotted name
    metrics: Mapping[str, float] = field(default_factory=dict)  # by the source's name: "bleu", "dev/bleu"


@dataclass(frozen=True)
class Foreign:
    """The runs of a source, and what of it is left out."""

    kind: str
    source: str
    runs: tuple[ForeignRun, ...]
    sha256: str | None = None
    left_out: tuple[str, ...] = ()  # a sentence each
    t: float = field(default_factory=time.time)


def read_bytes(path: Path, option: str) -> tuple[bytes, str]:
    """A file's content and SHA-256. Raises UserError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{option} {path} cannot be read: {error.strerror}. Nothing was imported.") from None
    return data, hashlib.sha256(data).hexdigest()


def as_text(data: bytes, path: Path, option: str) -> str:
    """UTF-8, with or without a byte order mark. Raises UserError."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{option} {path} is not UTF-8 text ({error.reason} at byte {error.start}).") from None


def number(text: Any) -> float | None:
    """A finite or infinite number or NaN; None for anything else, also for Python's 1_000, a name elsewhere."""
    if isinstance(text, bool) or (isinstance(text, str) and "_" in text):
        return None
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def value(text: Any) -> Any:
    """A setting's value from text: a whole number of 64 bits, a finite number, true or false, else the text itself."""
    if not isinstance(text, str):
        return text
    words = {"true": True, "false": False}
    if text.strip().lower() in words:
        return words[text.strip().lower()]
    for kind in (int, float) if "_" not in text else ():
        try:
            found = kind(text)
        except ValueError:
            continue
        if isinstance(found, int) and found.bit_length() > 63:
            return text
        if math.isfinite(found):
            return found
    return text


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted name; lists as they are."""
    found: dict[str, Any] = {}
    for name, inner in settings.items():
        if isinstance(inner, Mapping) and inner:
            found |= flat(inner, f"{prefix}{name}.")
        elif not isinstance(inner, Mapping):
            found[f"{prefix}{name}"] = inner
    return found


def seed_of(settings: Mapping[str, Any], name: str = "") -> tuple[str, dict[str, Any]]:
    """The seed, and the settings without it. `name`: the setting that holds it."""
    found = next((one for one in ([name] if name else SEED_NAMES) if settings.get(one) not in (None, "")), "")
    return (str(settings[found]) if found else ""), {key: v for key, v in settings.items() if key != found}
