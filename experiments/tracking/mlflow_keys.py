"""Convert names of metrics, parameters and tags to keys that MLflow accepts, and back.

MLflow accepts only letters, digits, spaces and `_ . - : /`. MLflow refuses names that are not normalized paths (`a//b`,
`..`), and allows 250 characters. A refused character is replaced by its code point: `_x25_`. A name that is too long
is cut and gets a digest. A tag of the run then contains the full name.
"""

import functools
import posixpath
import re
from collections.abc import Iterable

from experiments.identity import digest

LONGEST = 250  # maximum length of a key in characters
# A refused character, or an underscore that could be the beginning of an escape.
_REFUSED = re.compile(r"[^\w.\- :/]|_(?=x[0-9A-F]*(?:_|[^\w.\- :/]))")
_REFUSED_AND_PATH = re.compile(r"[^\w\- :]|_(?=x[0-9A-F]*(?:_|[^\w\- :]))")
_ESCAPED = re.compile(r"_x([0-9A-F]*)_")


@functools.lru_cache(10_000)
def to_key(name: str) -> str:
    """Return MLflow's key for a name. Different names have different keys."""
    key = _escape(_REFUSED, name) or "_x_"
    if posixpath.normpath(key) != key or key == "." or key.startswith(("..", "/")):
        key = _escape(_REFUSED_AND_PATH, name)
    return key if len(key) <= LONGEST else f"{key[:200]}.{digest(name)}"


def from_key(key: str) -> str:
    """Return the name for a key that was not cut."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)) if found[1] else "", key)


def whole_names(names: Iterable[str]) -> dict[str, str]:
    """Return tags with the full names of keys that were cut: `name.<digest>` → name."""
    return {f"name.{digest(name)}": name for name in names if from_key(to_key(name)) != name}


def _escape(pattern: re.Pattern[str], text: str) -> str:
    return pattern.sub(lambda found: f"_x{ord(found[0]):X}_", text)
