"""Names of metrics, parameters and tags as MLflow takes them, and back. Imports no mlflow.

MLflow refuses all but letters, digits and `_ . - : / blank`, names that are no plain path (`a//b`, `..`), and names of
over 250 characters. A character that it refuses is written `_x25_`, by its code point. Of a name that is too long the
beginning stands before a digest, and a tag of the run holds the whole.
"""

import functools
import posixpath
import re
from collections.abc import Iterable

from experiments.config import digest

LONGEST = 250
# a character that is refused, or an underscore that would look like the beginning of an escape
_REFUSED = re.compile(r"[^\w.\- :/]|_(?=x[0-9A-F]*(?:_|[^\w.\- :/]))")
_REFUSED_AND_PATH = re.compile(r"[^\w\- :]|_(?=x[0-9A-F]*(?:_|[^\w\- :]))")
_ESCAPED = re.compile(r"_x([0-9A-F]*)_")


@functools.lru_cache(10_000)
def to_key(name: str) -> str:
    """The key under which MLflow keeps what is called `name`; different names have different keys."""
    key = _escape(_REFUSED, name) or "_x_"
    if posixpath.normpath(key) != key or key == "." or key.startswith(("..", "/")):
        key = _escape(_REFUSED_AND_PATH, name)
    return key if len(key) <= LONGEST else f"{key[:200]}.{digest(name)}"


def from_key(key: str) -> str:
    """The name of a key that is not shortened."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)) if found[1] else "", key)


def whole_names(names: Iterable[str]) -> dict[str, str]:
    """Tags with the names that are too long for a key, by the digest at the key's end."""
    return {f"name.{digest(name)}": name for name in names if from_key(to_key(name)) != name}


def _escape(pattern: re.Pattern[str], text: str) -> str:
    return pattern.sub(lambda found: f"_x{ord(found[0]):X}_", text)
