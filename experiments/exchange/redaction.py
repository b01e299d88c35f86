"""Remove information about machines and people from records before they are shared.

`places` removes host names and absolute paths. `identity` is for double-blind review. It also removes user names,
platform, repository and commits, and all files of free text (logs, uncommitted changes). Numbers and model outputs are
not changed.

This module does not import torch.
"""

import json
import re
import socket
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.config.task_config import TaskConfig
from experiments.events.lines import LineError, decode, encode
from experiments.identity import identity_settings
from experiments.run_spec import TrainerSpec
from experiments.store.checksummed import read_json, write_json
from experiments.store.durable import open_regular
from experiments.store.layout import Store

_PATH = re.compile(r"(?<![\w.:/~…-])~?(?:/[^\s/'\"`<>|:;,()\[\]{}]+){2,}/?")
_WHOLE = re.compile(r"~?/[^\s/][^\n]*")
_PLACES = ("host", "command", "pid")  # fields of results and events
_IDENTITY = (*_PLACES, "platform", "revision", "tool", "traceback", "message", "who", "because")
_MUST_BE = ("message",)  # required fields of events (experiments/events/lines.py), which are emptied, not removed
_RECORDS = ("result.json", "config.json", "store.json")
_EVENTS = "events.jsonl"
_TEXTS = ("log.txt", "uncommitted.diff")  # files of free text


@dataclass(frozen=True)
class Redaction:
    """The rules of a redaction.

    fields: names of fields to remove. paths, words: (text, replacement) pairs, applied in the given order. `words` are
    replaced only in free text.
    """

    what: str = "nothing"
    fields: tuple[str, ...] = ()
    paths: tuple[tuple[str, str], ...] = ()
    words: tuple[tuple[str, str], ...] = ()
    texts: bool = True  # whether files of free text are included at all

    def file(self, path: Path, place: Path) -> Path | None:
        """Return the file to share: the file itself, or a redacted copy at `place`. Return None to leave it out."""
        if self.what == "nothing":
            return path
        if path.name in _TEXTS:
            return self._lines(path, place) if self.texts else None
        if path.name == _EVENTS:
            return self._events(path, place)
        if path.name in _RECORDS:
            return self._record(path, place)
        return path

    def value(self, value: Any) -> Any:
        """Return a JSON value without absolute paths. A text that is a path is reduced to its last component."""
        if isinstance(value, str) and self.fields:
            whole = _WHOLE.fullmatch(value)
            return value.rstrip("/").rpartition("/")[2] if whole else self._without_paths(value)
        if isinstance(value, Mapping):
            return {name: self.value(part) for name, part in value.items()}
        return [self.value(part) for part in value] if isinstance(value, list | tuple) else value

    def text(self, text: str) -> str:
        """Return free text with `words` and known paths replaced. Other paths are reduced to their last component."""
        if not self.fields:
            return text
        for word, instead in self.words:  # only in free text; in a record, the word may be the name of a set or row
            text = re.sub(rf"(?<![\w-]){re.escape(word)}(?![\w-])", instead, text)
        return self._without_paths(text)

    def _without_paths(self, text: str) -> str:
        for path, instead in self.paths:
            text = text.replace(path, instead)
        return _PATH.sub(lambda found: f"…/{found[0].rstrip('/').rpartition('/')[2]}", text)

    def names_run(self, config: TaskConfig, trainer: TrainerSpec) -> bool:
        """Return whether the redaction changes settings of the run's identity, or the trainer's command."""
        settings = {**identity_settings(config), "command": trainer.command}
        return bool(self.value(settings) != json.loads(json.dumps(settings)))

    def without_fields(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return a record without the redacted fields and paths."""
        kept = {name: self.value(part) for name, part in record.items() if name not in self.fields}
        return kept | {name: "" for name in _MUST_BE if name in record and name in self.fields}

    def _record(self, path: Path, place: Path) -> Path:
        record = read_json(path) or {}
        kept = self.without_fields(record)
        if kept == record:
            return path
        write_json(place, kept)
        return place

    def _lines(self, path: Path, place: Path) -> Path:
        with (
            path.open(encoding="utf-8", errors="surrogateescape", newline="") as file,
            place.open("w", encoding="utf-8", errors="surrogateescape", newline="") as out,
        ):
            out.writelines(self.text(line) for line in file)
        return place

    def _events(self, path: Path, place: Path) -> Path:
        """Redact a file of events. A damaged line is replaced by another damaged line without its content."""
        with open_regular(path) as file, place.open("wb") as out:
            for line in file:
                try:
                    decode(line)
                except LineError:
                    out.write(b"damaged\n")
                else:
                    event = json.loads(line)
                    del event["crc"]
                    kept = self.without_fields(event)
                    out.write(line if kept == event else encode(kept))
        return place


NOTHING = Redaction()
ANYONE = Redaction("identity", _IDENTITY)  # for comparing records from different machines


def places(store: Store, run_ids: Iterable[str], folder: Path | None = None) -> Redaction:
    """Return a redaction that removes host names and absolute paths. folder: the study's folder."""
    return Redaction("hosts and paths", _PLACES, _known_paths(store, folder), _hosts(store, run_ids))


def identity(store: Store, folder: Path | None = None) -> Redaction:
    """Return a redaction that removes all information known to identify the author of a table."""
    return Redaction("identity", _IDENTITY, _known_paths(store, folder), texts=False)


def _known_paths(store: Store, folder: Path | None) -> tuple[tuple[str, str], ...]:
    """Return known paths with their replacements, longest first, since one may contain another.

    This list is needed because `_PATH` does not match paths with spaces.
    """
    named = {store.root: "STORE", store.state_dir: "STATE", Path.cwd(): "FOLDER", Path.home(): "HOME"}
    named |= {Path(sys.prefix): "PYTHON"} | ({folder: "STUDY"} if folder else {})
    found = {str(form): name for path, name in named.items() for form in (path, path.resolve())}
    return tuple(sorted(((p, name) for p, name in found.items() if p.count("/") > 1), key=lambda pair: -len(pair[0])))


def _hosts(store: Store, run_ids: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return replacements for the names of this machine and of the machines in the runs' records.

    The names are replaced in their full and short forms.
    """
    names = [socket.gethostname(), *(getattr(store.result(run_id), "host", None) or "" for run_id in run_ids)]
    forms = [form for name in names for form in (name, name.partition(".")[0])]
    return tuple((name, "HOST") for name in sorted(set(filter(None, forms)), key=lambda name: (-len(name), name)))
