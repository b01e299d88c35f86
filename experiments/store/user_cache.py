"""A cache of computed facts in the user's cache folder. The key of an entry is a digest of the content it describes.

If the cache is damaged, missing or cannot be written, the facts are computed again. If two processes write at the same
time, the new entries of one process are lost.
"""

import contextlib
import os
from pathlib import Path
from typing import Any

from experiments.errors import UserError
from experiments.store.checksummed import read_json, write_json

LARGEST = 5_000  # maximum number of entries; a full cache is emptied


class UserCache:
    """A dictionary of JSON values in ~/.cache/ablations/NAME.json.

    New values are written at the end of the `with` block.
    """

    def __init__(self, name: str, largest: int = LARGEST) -> None:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
        self._file = Path(home) / "ablations" / f"{name}.json"
        self._largest = largest
        self._known: dict[str, Any] = {}
        self._new = False

    def __enter__(self) -> "UserCache":
        with contextlib.suppress(UserError):
            known = (read_json(self._file) or {}).get("known")
            self._known = known if isinstance(known, dict) else {}
        return self

    def __exit__(self, *_: object) -> None:
        if self._new and self._file.is_absolute():
            with contextlib.suppress(OSError, UserError):
                self._file.parent.mkdir(parents=True, exist_ok=True)
                write_json(self._file, {"known": self._known})

    def get(self, key: str) -> Any:
        """Return the value of a key; None if there is none."""
        return self._known.get(key)

    def put(self, key: str, value: Any) -> None:
        """Store a value that JSON can represent."""
        self._known = self._known if len(self._known) < self._largest else {}
        self._known[key] = value
        self._new = True
