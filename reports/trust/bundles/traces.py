"""Search an anonymous bundle for what reveals its maker: names of this machine, of the user, and of their folders."""

import getpass
import re
import socket
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from reports.trust.bundles.archive import CRATE_SUFFIX

_RECORDS = (".json", ".jsonl")


def traces(path: Path, store: Path) -> Iterator[str]:
    """One sentence per file and word: the study's own texts and its trainer's files may contain some."""
    places = {str(form) for place in (store, Path.cwd(), Path.home()) for form in (place, place.resolve())}
    paths = [_alone(place) for place in sorted(places) if place.count("/") > 1 or place == str(Path.home())]
    names = [_alone(name) for name in _names()]
    for name, text in _contents(path):
        # names only in records: a model's output may contain one by chance
        for pattern in [*paths, *(names if name.endswith(_RECORDS) else [])]:
            found = pattern.search(text)
            if found:
                yield f"{name} holds {found[0].decode(errors='replace')!r}"


def _contents(path: Path) -> Iterator[tuple[str, bytes]]:
    """Each file of an archive or a crate of our own."""
    if path.name.endswith(CRATE_SUFFIX):
        with zipfile.ZipFile(path) as crate:
            yield from ((name, crate.read(name)) for name in crate.namelist())
        return
    with tarfile.open(path) as archive:
        for entry in archive:
            content = archive.extractfile(entry)
            yield entry.name, content.read() if content else b""


def _names() -> list[str]:
    host = socket.gethostname()
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user id without a name
        user = ""
    return list(dict.fromkeys(filter(None, (host, host.partition(".")[0], user))))


def _alone(word: str) -> re.Pattern[bytes]:
    return re.compile(rb"(?<![\w-])" + re.escape(word.encode()) + rb"(?![\w-])")
