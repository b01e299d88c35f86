"""The last selection used in a store, for verbs that are called without a study.

It is a small file of the store: losing it loses nothing, and on a read-only disk it is not written. A study of one's
own names code that planning imports, so such an entry counts only where this user wrote it (signed as jobs are).
"""

import contextlib
import json
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablations.study.study import builtin_studies
from experiments.errors import UserError
from experiments.jobs.queue import trust
from experiments.store.layout import MARKER, Store
from experiments.store.sealed import read_json, write_json

FILE = "last-selection.json"
VERSION = 1
FIELDS = ("profile", "corpus", "rows", "seeds", "sets")  # of Selectors


@dataclass(frozen=True)
class LastSelection:
    """A study's name or path, and the options with which it was selected."""

    study: str
    options: dict[str, Any]

    @property
    def words(self) -> str:
        """As on a command line."""
        words = [self.study]
        for name, value in self.options.items():
            given = value if name == "sets" else [value]
            words += [word for one in given for word in (f"--{'set' if name == 'sets' else name}", str(one))]
        return shlex.join(words)


def remember(store: Store, study: str, options: dict[str, Any]) -> None:
    """Keep a selection as the store's last one. Does nothing where the store does not exist or cannot be written."""
    if not (store.root / MARKER).is_file() or not os.access(store.root, os.W_OK):
        return
    given = {name: options[name] for name in FIELDS if options.get(name)}
    if given.get("corpus", "builtin") != "builtin":
        given["corpus"] = _from(store, given["corpus"])
    record = {"version": VERSION, "study": study if study in builtin_studies() else _from(store, study)}
    record |= {"selectors": given}
    if record["study"] != study:
        record["signature"] = trust.sign(_text(record))
    with contextlib.suppress(OSError, UserError):
        if read_json(store.root / FILE) == record:
            return
    with contextlib.suppress(OSError):
        write_json(store.root / FILE, record)


def recall(store: Store) -> LastSelection | None:
    """The store's last selection; None if there is none, or none that this program can use.

    Raises UserError for one that names another user's study.
    """
    try:
        record = read_json(store.root / FILE) or {}
    except UserError:  # damaged: it is never needed
        return None
    study, given = record.get("study"), record.get("selectors")
    if record.get("version") != VERSION or not isinstance(study, str) or not isinstance(given, dict):
        return None
    options = {name: given[name] for name in FIELDS if name in given}
    if study not in builtin_studies():
        if not trust.signed(_text(record), str(record.get("signature", ""))):
            raise UserError(
                f"The last selection in {store.root} is {study}, used by another user or on another machine. Its code "
                "would be imported: name the study yourself, if you trust it."
            )
        study = _here(store, study)
    if options.get("corpus", "builtin") != "builtin":
        options["corpus"] = _here(store, options["corpus"])
    return LastSelection(study, options)


def _text(record: dict[str, Any]) -> str:
    return json.dumps([record["study"], record["selectors"]], sort_keys=True)


def _from(store: Store, path: str) -> str:
    """A path as seen from the store, so that both can be moved together."""
    return os.path.relpath(Path(path).expanduser().absolute(), store.root.resolve())


def _here(store: Store, path: str) -> str:
    """The path again, as short as it is from the working directory."""
    found = os.path.normpath(store.root.resolve() / path)
    near = os.path.relpath(found)
    return found if near.startswith("..") else near
