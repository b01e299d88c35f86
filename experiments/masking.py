"""Mask credentials in messages and records: passwords and tokens in URLs, in queries and in header lines.

This module imports nothing of this program, so that every module can use it.
"""

import functools
import os
import re
from typing import Any

MASK = "…"

# `user:password@` in a URL. The password extends to the last "@", because it may contain "@" and "/".
_PASSWORD = re.compile(r"""(?<=://)([^\s/@:"'<>]*):[^\s"'<>]*@""")
_TOKEN_AS_USER = re.compile(r"""\b(https?://)[^\s/@:"'<>]+@""")
_QUERY = re.compile(
    r"""(?i)((?:^|[?&;\s])(?:password|passwd|access_token|auth_token|token|api_?key|secret|signature|sig)=)[^&;\s"'<>]+"""
)
_HEADER = re.compile(r"""(?i)(\bauthorization["']?\s*[:=]\s*["']?(?:bearer|basic|token)\s+)[^\s"',]+""")
_NAMES = re.compile(r"(?i)(^|_)(password|passwd|token|secret|api_?key|access_key|passphrase)(_|$)")
_SHORTEST = 8  # minimum length of a masked environment variable; a shorter value may be an ordinary word


def masked(text: str) -> str:
    """Return the text with its passwords and tokens masked. Masking a masked text changes nothing."""
    if "@" in text and "://" in text:
        text = _TOKEN_AS_USER.sub(rf"\1{MASK}@", _PASSWORD.sub(rf"\1:{MASK}@", text))
    if "=" in text:
        text = _QUERY.sub(rf"\1{MASK}", text)
    return _HEADER.sub(rf"\1{MASK}", text) if "uthorization" in text.casefold() else text


def masked_message(text: str) -> str:
    """Mask a message as `masked` does, and also the values of environment variables whose names denote secrets.

    Do not use this function for data, which may contain such a value by chance.
    """
    for secret in _secrets():
        text = text.replace(secret, MASK)
    return masked(text)


def masked_value(value: Any) -> Any:
    """Return a JSON value with all its texts masked. Keys of objects are not masked."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, dict):
        return {name: masked_value(part) for name, part in value.items()}
    return [masked_value(part) for part in value] if isinstance(value, list | tuple) else value


@functools.cache
def _secrets() -> tuple[str, ...]:
    """Return the values of environment variables whose names denote secrets.

    The longest value comes first, because one value may contain another.
    """
    found = {value for name, value in os.environ.items() if _NAMES.search(name) and _is_secret(value)}
    return tuple(sorted(found, key=lambda value: (-len(value), value)))


def _is_secret(value: str) -> bool:
    """Return whether a value is probably a secret and not a word, number or path, which should not be masked."""
    kinds = (any(map(str.islower, value)), any(map(str.isupper, value)), any(map(str.isdigit, value)))
    return len(value) >= _SHORTEST and sum(kinds) >= 2 and not value.startswith(("/", "~", "."))
