"""Text on its way into a document: one line, nothing that steers a terminal or reorders what is read."""

import unicodedata

_REORDERING = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_BREAKING = {"Cc", "Zl", "Zp"}


def plain(text: object) -> str:
    """Controls and line breaks become spaces, direction marks go, lone surrogates become U+FFFD; then stripped."""
    text = str(text)
    return (text if text.isascii() and text.isprintable() else "".join(map(_harmless, text))).strip()


def _harmless(char: str) -> str:
    if char in _REORDERING:
        return ""
    category = unicodedata.category(char)
    if category in _BREAKING:
        return " "
    return "\ufffd" if category == "Cs" else char


def width(text: str) -> int:
    """Columns that a terminal gives to a text: 2 for wide characters, 0 for combining ones."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Cf", "Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
