"""What a record says of the machine and the people beside the numbers, and how it is left out of what is given away.

`PLACES` leaves out host names and absolute paths. `IDENTITY` is for double-blind review: also user names, platform,
repository and commits, and whole files of free text (logs, uncommitted changes). Numbers, and what a model has put out,
stay as they are. Imports no torch.
"""

import json
import re
import socket
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.config import TaskConfig, identity_settings
from experiments.events.lines import LineError, decode, encode, format_of
from experiments.store.layout import Store
from experiments.store.sealed import read_json, write_json

_PATH = re.compile(r"(?<![\w.:/~…-])~?(?:/[^\s/'\"`<>|:;,()\[\]{}]+){2,}/?")
_WHOLE = re.compile(r"~?/[^\s/][^\n]*")
_PLACES = ("host", "command", "pid")  # of a result, of an event
_IDENTITY = (*_PLACES, "platform", "revision", "tool", "traceback", "message")
_MUST_BE = ("message",)  # of an event that is whole (event_kinds.py)
_RECORDS = ("result.json", "config.json", "store.json")
_EVENTS = "events.jsonl"
_TEXTS = ("log.txt", "uncommitted.diff")  # free text, written by anybody


@dataclass(frozen=True)
class Redaction:
    """`fields` of records are left out; known `paths`, and `words` of free text, are replaced in the order given."""

    what: str = "nothing"
    fields: tuple[str, ...] = ()
    paths: tuple[tuple[str, str], ...] = ()
    words: tuple[tuple[str, str], ...] = ()
    texts: bool = True  # whether files of free text are given away at all

    def file(self, path: Path, place: Path) -> Path | None:
        """The file to give away: itself, or a redacted copy at `place`; None if it is left out."""
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
        """A JSON value without paths: of a text that is a path its last part is left."""
        if isinstance(value, str) and self.fields:
            whole = _WHOLE.fullmatch(value)
            return value.rstrip("/").rpartition("/")[2] if whole else self._without_paths(value)
        if isinstance(value, Mapping):
            return {name: self.value(part) for name, part in value.items()}
        return [self.value(part) for part in value] if isinstance(value, list | tuple) else value

    def text(self, text: str) -> str:
        """Free text with words replaced and of each path only its last part."""
        if not self.fields:
            return text
        for word, instead in self.words:  # in free text alone: elsewhere a machine's name may be a set's or a row's
            text = _alone(word).sub(instead, text)
        return self._without_paths(text)

    def _without_paths(self, text: str) -> str:
        for path, instead in self.paths:
            text = text.replace(path, instead)
        return _PATH.sub(lambda found: f"…/{found[0].rstrip('/').rpartition('/')[2]}", text)

    def names_run(self, config: TaskConfig) -> bool:
        """Whether something is left out of the settings that make a run's name."""
        settings = identity_settings(config)
        return bool(self.value(settings) != json.loads(json.dumps(settings)))

    def without_fields(self, record: Mapping[str, Any]) -> dict[str, Any]:
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
        """Line by line; one that is damaged stays so, without what it says."""
        with path.open("rb") as file, place.open("wb") as out:
            format_ = 0
            for line in file:
                format_ = format_ or format_of(line) or 0
                try:
                    decode(line, format_ or 1)
                except LineError:
                    out.write(b"damaged\n")
                else:
                    out.write(self._event(line))
        return place

    def _event(self, line: bytes) -> bytes:
        event = json.loads(line)
        crc = event.pop("crc", None)
        kept = self.without_fields(event)
        if kept == event:
            return line
        return encode(kept) if crc else json.dumps(kept, ensure_ascii=False).encode() + b"\n"


NOTHING = Redaction()
ANYONE = Redaction("identity", _IDENTITY)  # whose records they are does not matter: what two may be compared by


def places(store: Store, run_ids: Iterable[str], folder: Path | None = None) -> Redaction:
    """Leave out host names and absolute paths. `folder`: where the study lies."""
    return Redaction("hosts and paths", _PLACES, _known_paths(store, folder), _hosts(store, run_ids))


def identity(store: Store, folder: Path | None = None) -> Redaction:
    """Leave out what tells who made a table, as far as this program knows it."""
    return Redaction("identity", _IDENTITY, _known_paths(store, folder), texts=False)


def _known_paths(store: Store, folder: Path | None) -> tuple[tuple[str, str], ...]:
    """Longest first: a path may lie in another, and may hold blanks, which no pattern could tell from the text's."""
    named = {store.root: "STORE", store.state_dir: "STATE", Path.cwd(): "FOLDER", Path.home(): "HOME"}
    named |= {Path(sys.prefix): "PYTHON"} | ({folder: "STUDY"} if folder else {})
    found = {str(form): name for path, name in named.items() for form in (path, path.resolve())}
    return tuple(sorted(((p, name) for p, name in found.items() if p.count("/") > 1), key=lambda pair: -len(pair[0])))


def _hosts(store: Store, run_ids: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """This machine's name and those that the runs recorded; the short form of each too."""
    names = [socket.gethostname(), *(str((store.result(run_id) or {}).get("host") or "") for run_id in run_ids)]
    forms = [form for name in names for form in (name, name.partition(".")[0])]
    return tuple((name, "HOST") for name in sorted(set(filter(None, forms)), key=lambda name: (-len(name), name)))


def _alone(word: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])")
