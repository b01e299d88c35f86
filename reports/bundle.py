"""A finished table in one archive: the plan, its runs' configurations, events, results and translations.

Whoever has it prints the same bytes, tests again and explains every cell, with no corpus, study file or GPU. The same
table gives the same archive. Reading trusts nothing in it: names must be a store's, contents must match their digests.

    bundle.json       version, how the table was asked for, its columns and plan, SHA-256 of every other file
    store.json  runs/<run_id>/…     as in a store
"""

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from ablations.plan import Plan
from ablations.plan_file import plan_from_json, plan_to_json
from experiments.config import RunConfig
from experiments.errors import UserError
from experiments.exchange import files_of
from experiments.store import Store, explain_os_errors, whole_or_not
from experiments.tasks.base import Column

VERSION = 1
HEAD = "bundle.json"
SUFFIX = ".tar.gz"
_NAME = re.compile(
    r"store\.json|runs/[0-9a-f]{16}/(config\.json|result\.json|attempts/[0-9]{4,6}/([A-Za-z0-9._-]{1,80}"
    r"|final/[A-Za-z0-9._-]{1,80})|evaluations/[0-9a-f]{16}/[A-Za-z0-9._-]{1,80})"
)
_LARGEST = 64 << 30  # bytes unpacked: an archive may claim to be anything
_LARGEST_HEAD = 256 << 20


@dataclass(frozen=True)
class Bundle:
    plan: Plan
    columns: tuple[Column, ...]
    asked: tuple[str, ...]  # how the table was asked for
    store: Store


def write_bundle(
    path: Path, plan: Plan, store: Store, columns: Sequence[Column], asked: Sequence[str], weights: bool = False
) -> int:
    """Write the archive, whole or not at all; returns the number of files. Raises UserError for an unfinished table."""
    unfinished = [f"{run.row} (seed {run.seed})" for run in plan.runs if run.state not in ("finished", "stale")]
    if unfinished:
        raise UserError(
            f"Not finished: {', '.join(unfinished[:6])}{' …' if unfinished[6:] else ''}. A bundle holds a whole table: "
            "run what is missing, or leave rows out with --rows."
        )
    names = {str(name) for run in plan.runs for name in files_of(store, run.run_id, run.eval_ids, weights)}
    digests = {name: _digest(store.root / name) for name in sorted(names | {"store.json"})}
    head = {
        "bundle": VERSION,
        "asked": list(asked),
        "columns": [asdict(column) for column in columns],
        "plan": plan_to_json(plan),
        "files": digests,
    }
    # in the order written: it is that of the table's columns
    text = (json.dumps(head, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
    with explain_os_errors(f"write {path}"), whole_or_not(path.absolute()) as file:
        _archive(file, text, store.root, digests)
    return len(digests)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _archive(file: IO[bytes], head: bytes, root: Path, names: Iterable[str]) -> None:
    """A tar.gz with neither dates nor owners nor the name it is written to: the same files, the same bytes."""
    with (
        gzip.GzipFile(fileobj=file, mode="wb", mtime=0, filename="", compresslevel=6) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        _add(archive, HEAD, io.BytesIO(head), len(head))
        for name in names:
            with (root / name).open("rb") as content:
                _add(archive, name, content, os.fstat(content.fileno()).st_size)


def _add(archive: tarfile.TarFile, name: str, content: IO[bytes], size: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o644
    archive.addfile(entry, content)


def read_bundle(path: Path, folder: Path, config_type: type[RunConfig] = RunConfig) -> Bundle:
    """Unpack into `folder`, which is to be empty, and check. Raises UserError for what is no bundle or is damaged."""
    try:
        with tarfile.open(path, mode="r:gz") as archive:
            head = _head(archive, path)
            _unpack(archive, head["files"], folder, path)
        plan = plan_from_json(head["plan"], config_type)
        columns = tuple(Column(**column) for column in head["columns"])
        return Bundle(plan, columns, tuple(map(str, head["asked"])), Store.open(folder, create=False))
    except (tarfile.TarError, EOFError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        raise UserError(f"{path} is no bundle of `ablations bundle`, or it is damaged ({reason}).") from None


def _head(archive: tarfile.TarFile, path: Path) -> dict[str, Any]:
    first = archive.next()
    if first is None or first.name != HEAD or not first.isfile() or first.size > _LARGEST_HEAD:
        raise ValueError(f"it does not begin with {HEAD}")
    stream = archive.extractfile(first)
    head = json.loads(stream.read()) if stream else {}
    if head.get("bundle") != VERSION:
        raise UserError(f"{path} is a bundle of version {head.get('bundle')}; this program reads {VERSION}.")
    return dict(head)


def _unpack(archive: tarfile.TarFile, files: Mapping[str, str], folder: Path, path: Path) -> None:
    missing, size = set(files), 0
    for entry in archive:
        if entry.name == HEAD:
            continue
        size += entry.size
        if not entry.isfile() or not _NAME.fullmatch(entry.name) or size > _LARGEST:
            raise ValueError(f"{entry.name[:80]!r} has no place in a bundle")
        target = folder / entry.name
        target.parent.mkdir(parents=True, exist_ok=True)
        content = archive.extractfile(entry)
        if content is not None:
            with target.open("xb") as file:
                shutil.copyfileobj(content, file)
        if content is None or _digest(target) != files.get(entry.name):
            raise UserError(f"{path}: {entry.name} is not the file that was packed. Ask for the bundle again.")
        missing.discard(entry.name)
    if missing:
        raise UserError(f"{path}: {len(missing)} files are missing, such as {min(missing)}. Ask for the bundle again.")
