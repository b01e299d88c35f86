"""The ledger: all that was requested, started, ended, cancelled or discarded in a store, with the user and the reason.

`ledger.jsonl` has one JSON object per line: `n` (1, 2, …), `time`, `who`, `what` (the kind of line), and the facts of
this kind. Lines are only appended. A last line without a line break is incomplete, because its writer was killed. The
next append removes it. This module does not import torch.
"""

import json
import math
import os
import pwd
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from experiments.errors import Damaged, UserError, explain_os_errors
from experiments.masking import masked_value
from experiments.records import record_time
from experiments.store.durable import open_regular, take_lock
from experiments.store.layout import Store

FILE = "ledger.jsonl"
DAMAGED = "damaged"  # the `what` of the entry that replaces a damaged line in a bundle
LOCKED_S = 30.0  # longest wait in seconds for another process that writes a line
WINDOW = 1 << 16  # bytes read from the end to find the last line
Entry = dict[str, Any]
# The name of the present command, such as "run", under the key "verb", and the reason that the user gave.
command: ContextVar[Mapping[str, str]] = ContextVar("command", default={})  # noqa: B039 - nobody changes the default


def append(store: Store, what: str, **facts: Any) -> None:
    """Append a line about a request, with the verb and the reason of the command. The line is on the disk on return.

    Raises UserError if the disk is full or read-only.
    """
    append_all(store, [{"what": what, **facts, **command.get()}])


def append_all(store: Store, lines: Sequence[Mapping[str, Any]], *, durable: bool = True) -> None:
    """Append lines in one write. Each line must have the key `what`.

    durable: if True, the lines survive a power cut from now on. If False, a power cut before the next durable append
        may lose them.
    """
    if not lines:
        return
    with explain_os_errors(f"write the ledger of {store.root}"):
        file = os.open(store.root / FILE, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise UserError(f"{store.root / FILE} is not a regular file: move it away. Then a new ledger begins.")
            take_lock(file, store.root / FILE, LOCKED_S)
            end, last = _last(file)
            text = b""
            for n, line in enumerate(lines, _number(file, end, last) + 1):
                entry = {"n": n, "time": round(record_time(), 3), "who": _user(), **line}
                text += json.dumps(masked_value(entry)).encode() + b"\n"
            try:
                written = os.write(file, text)
                if written < len(text):
                    os.write(file, text[written:])  # if the disk is full, this call raises OSError
            except OSError:
                os.ftruncate(file, end)
                raise
            if durable:
                os.fsync(file)
        finally:
            os.close(file)


def entries(store: Store) -> list[Entry]:
    """Return all lines except damaged ones, oldest first. `damaged` describes the damaged lines."""
    return [entry for _, entry in _parsed(store) if entry is not None]


def damaged(store: Store) -> list[str]:
    """Return a sentence about each damaged line; [] if there are none."""
    found = []
    for count, (line, entry) in enumerate(_parsed(store), 1):
        if entry is None:
            found.append(f"Line {count} of the ledger ({store.root / FILE}) is damaged and skipped: {line[:40]!r}.")
        elif entry["what"] == DAMAGED:
            found.append(f"Line {count} of the ledger was damaged when it was bundled.")
    return found


def since(store: Store, begin: int) -> tuple[list[Entry], int]:
    """Return the lines from byte `begin` on, and the byte where the next line will begin.

    Raises Damaged for a damaged line, because that line may have set a limit of the budget.
    """
    found = []
    for line in _lines(store, begin):
        entry = _entry(line)
        if entry is None:
            raise Damaged(
                f"A line of the store's ledger ({store.root / FILE}) is damaged: {line[:40]!r}. Restore the file from "
                "a backup."
            )
        found.append(entry)
        begin += len(line) + 1
    return found, begin


def of_study(found: Sequence[Entry], study: str) -> list[Entry]:
    """Return the lines about a study: its requests, and all lines about the runs in these requests."""
    runs = {names[0] for of_row in tried(found, study).values() for names in of_row}
    return [
        entry
        for entry in found
        if entry.get("study") == study or runs.intersection([entry.get("run_id"), *entry.get("run_ids", ())])
    ]


def tried(found: Sequence[Entry], study: str) -> dict[tuple[str, str], set[tuple[str, ...]]]:
    """Return all rows of a study that were ever requested: (row, settings) → its runs, each as run_id and eval_ids."""
    rows: dict[tuple[str, str], set[tuple[str, ...]]] = {}
    for entry in found:
        if entry.get("study") == study and "rows" in entry:
            for row, asked in entry["rows"].items():
                rows.setdefault((row, asked["settings"]), set()).update(map(tuple, asked["runs"]))
    return rows


def rows_with_results(found: Sequence[Entry], study: str) -> list[set[tuple[str, ...]]]:
    """Return the requested rows of a study for which at least one attempt has finished, each row once.

    A row is the set of its evaluations, as pairs of run_id and eval_id. A run without evaluations is represented by its
    run_id alone. Requests that share an evaluation count as the same row, even if the study was edited between them.
    """
    finished = {entry.get("run_id") for entry in found if entry["what"] == "end" and entry.get("outcome") == "finished"}
    rows: list[set[tuple[str, ...]]] = []
    for asked in tried(found, study).values():
        row = {pair for run_id, *eval_ids in asked if run_id in finished for pair in pairs(run_id, eval_ids)}
        if row:
            same = [other for other in rows if not other.isdisjoint(row)]
            rows = [other for other in rows if other.isdisjoint(row)] + [row.union(*same)]
    return rows


def pairs(run_id: str, eval_ids: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the run_id with each of its eval_ids; the run_id alone if it has none."""
    yield from ((run_id, eval_id) for eval_id in eval_ids)
    if not eval_ids:
        yield (run_id,)


def shared(store: Store, study: str, redacted: Callable[[Entry], Entry]) -> bytes:
    """Return the ledger for readers of one study.

    Lines about other studies keep only their number, time and kind. A damaged line keeps only its number.
    """
    found, lines = list(_parsed(store)), []
    own = {id(entry) for entry in of_study([entry for _, entry in found if entry is not None], study)}
    for count, (line, entry) in enumerate(found, 1):
        if entry is None:
            kept = {"n": count, "time": 0.0, "what": DAMAGED}
        elif id(entry) in own:
            kept = redacted(entry)
        else:
            kept = {name: entry[name] for name in _EVERY if name in entry}
        lines.append(line if kept == entry else json.dumps(kept).encode())
    return b"".join(line + b"\n" for line in lines)


def reason(text: str) -> str:
    """Return the text of --because without white space around it.

    Raises UserError for control characters, which include line breaks, and for more than 1,000 characters.
    """
    if not text.isprintable() or len(text) > 1000:
        raise UserError("--because: write at most 1,000 characters without line breaks or control characters.")
    return text.strip()


def _lines(store: Store, begin: int = 0) -> Iterator[bytes]:
    try:
        with open_regular(store.root / FILE) as file:
            file.seek(begin)
            for line in file:
                if line.endswith(b"\n"):  # otherwise the writer of the line was killed or is still writing
                    yield line[:-1]
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise UserError(
            f"{store.root / FILE} cannot be read: {error.strerror}. Check that it is a file and its permissions."
        ) from None


def _parsed(store: Store) -> Iterator[tuple[bytes, Entry | None]]:
    """Return each line with its entry; the entry of a damaged line is None."""
    return ((line, _entry(line)) for line in _lines(store))


_EVERY = ("n", "time", "what")  # fields that every line has, even in a bundle
_LAST = 253402300800.0  # Unix time of the end of the year 9999


def _entry(line: bytes) -> Entry | None:
    """Return the entry on a line; None for a damaged line.

    A line is damaged if it is not JSON, lacks its number, time or kind, or has facts of wrong types.
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or any(name not in found for name in _EVERY):
        return None
    if type(found["n"]) is not int or not _is_number(found["time"]) or found["time"] >= _LAST:
        return None
    whole = all(_FACTS[name](value) for name, value in found.items() if name in _FACTS)
    return found if whole else None


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _are_rows(value: Any) -> bool:
    """Return whether a value has the form of the rows in a request: {row: {settings, runs}}."""
    return isinstance(value, dict) and all(
        isinstance(row, dict)
        and isinstance(row.get("settings"), str)
        and isinstance(row.get("runs"), list)
        and all(_are_texts(names) and names for names in row["runs"])
        for row in value.values()
    )


_FACTS: dict[str, Callable[[Any], bool]] = {  # name → check of the value's type
    **dict.fromkeys(("what", "who", "study", "profile", "run_id", "outcome", "because", "verb"), _is_text),
    **dict.fromkeys(("attempt", "seconds", "slots", "predicted_s"), _is_number),
    **dict.fromkeys(("run_ids", "planned"), _are_texts),
    "rows": _are_rows,
}


def _last(file: int) -> tuple[int, bytes]:
    """Return the byte where the last complete line ends, and this line. Remove an incomplete line at the end."""
    size, window = os.fstat(file).st_size, WINDOW
    while True:
        begin = max(0, size - window)
        *whole, torn = os.pread(file, size - begin, begin).split(b"\n")
        if len(whole) > (begin > 0):  # the first line of a window may be incomplete
            break
        if not begin:
            whole = [b""]
            break
        window *= 8
    if torn:
        os.ftruncate(file, size - len(torn))
    return size - len(torn), whole[-1]


def _number(file: int, end: int, last: bytes) -> int:
    """Return the number of the last line."""
    try:
        return int(json.loads(last)["n"]) if last else 0
    except (ValueError, KeyError, TypeError, RecursionError):  # the line is damaged, so count the lines
        return os.pread(file, end, 0).count(b"\n")


def _user() -> str:
    """Return the name of the user who runs this process. Environment variables do not change it."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container may have no name for the user
        return f"uid {os.getuid()}"
