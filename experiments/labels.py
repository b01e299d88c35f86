"""Types of keys and one-line texts that a study file writes, and the short form of a long key."""

import hashlib
from typing import Annotated

from pydantic import AfterValidator, Field

LONGEST_KEY = 64  # characters of a row's or a group's key


def printable(text: str) -> str:
    """Return the text. Raises ValueError if it contains a control character or a line break."""
    if not text.isprintable():
        raise ValueError("it contains a control character or a line break; labels are one line of printable text")
    return text


# Keys become labels, MLflow tags and arguments of a command line (--rows a,b); they are never paths.
Key = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=LONGEST_KEY)]
Group = Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?$", max_length=LONGEST_KEY)]
Text = Annotated[str, AfterValidator(printable)]


def short_key(key: str) -> str:
    """Return a key of at most LONGEST_KEY characters: a longer one is cut, and a digest of the whole is appended."""
    if len(key) <= LONGEST_KEY:
        return key
    return f"{key[: LONGEST_KEY - 9].rstrip('-._')}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
