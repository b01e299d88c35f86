"""Mask credentials in messages and records: user names and passwords in addresses, tokens in queries, header lines.

Imports nothing of this program, so that every part can use it.
"""

import functools
import os
import re
from typing import Any

MASK = "…"

# `user:password@` of an address: to the last @, because a password may contain one, or a slash
_PASSWORD = re.compile(r"""(?<=://)([^\s/@:"'<>]*):[^\s"'<>]*@""")
_TOKEN_AS_USER = re.compile(r"""\b(https?://)[^\s/@:"'<>]+@""")
_QUERY = re.compile(
    r"""(?i)((?:^|[?&;\s])(?:password|passwd|access_token|auth_token|token|api_?key|secret|signature|sig)=)[^&;\s"'<>]+"""
)
_HEADER = re.compile(r"""(?i)(\bauthorization["']?\s*[:=]\s*["']?(?:bearer|basic|token)\s+)[^\s"',]+""")
_NAMES = re.compile(r"(?i)(^|_)(password|passwd|token|secret|api_?key|access_key|passphrase)(_|$)")
_SHORTEST = 8  # characters of a secret in the environment: a shorter one may be a word of any text


def masked(text: str) -> str:
    """The text without passwords and tokens of addresses. Masking twice changes nothing more."""
    if "@" in text and "://" in text:
        text = _TOKEN_AS_USER.sub(rf"\1{MASK}@", _PASSWORD.sub(rf"\1:{MASK}@", text))
    if "=" in text:
        text = _QUERY.sub(rf"\1{MASK}", text)
    return _HEADER.sub(rf"\1{MASK}", text) if "uthorization" in text.casefold() else text


def masked_message(text: str) -> str:
    """Like `masked`, also without the values of environment variables that are secrets by their names.

    For messages alone: in data, such a value may occur by chance.
    """
    for secret in _secrets():
        text = text.replace(secret, MASK)
    return masked(text)


def masked_value(value: Any) -> Any:
    """A value of JSON with all its texts `masked`; the names in it stay."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, dict):
        return {name: masked_value(part) for name, part in value.items()}
    return [masked_value(part) for part in value] if isinstance(value, list | tuple) else value


@functools.cache
def _secrets() -> tuple[str, ...]:
    """Values of the environment that are secrets by their names, the longest first: one may contain another."""
    found = {value for name, value in os.environ.items() if _NAMES.search(name) and _is_secret(value)}
    return tuple(sorted(found, key=lambda value: (-len(value), value)))


def _is_secret(value: str) -> bool:
    """Return whether a value can be no word, number or path, which would be masked wherever it occurs."""
    kinds = (any(map(str.islower, value)), any(map(str.isupper, value)), any(map(str.isdigit, value)))
    return len(value) >= _SHORTEST and sum(kinds) >= 2 and not value.startswith(("/", "~", "."))
