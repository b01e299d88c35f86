"""Types of the keys and one-line texts in a study file, and the short form of a long key."""

import hashlib
from typing import Annotated

from pydantic import AfterValidator, Field

LONGEST_KEY = 64  # maximum length of the key of a row or group in characters


def printable(text: str) -> str:
    """Return the text. Raises ValueError if it contains a control character or a line break."""
    if not text.isprintable():
        raise ValueError("it contains a control character or a line break; labels are one line of printable text")
    return text


# Keys are used as labels, MLflow tags and arguments on the command line (--rows a,b). They are not used as paths.
Key = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=LONGEST_KEY)]
Group = Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?$", max_length=LONGEST_KEY)]
Text = Annotated[str, AfterValidator(printable)]


def short_key(key: str) -> str:
    """Return the key. A key of more than LONGEST_KEY characters is cut, and a digest of the key is appended."""
    if len(key) <= LONGEST_KEY:
        return key
    return f"{key[: LONGEST_KEY - 9].rstrip('-._')}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
