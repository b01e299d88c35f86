"""A finished table in one archive: the plan, its runs' configurations, events, results and translations.

A reader prints the same bytes, repeats the tests and explains every cell without corpus, study file or GPU. The same
table gives the same archive. Host names and absolute paths are left out unless requested
(experiments/exchange/redaction.py).
"""

import getpass
import json
import re
import socket
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ablations.planning.plan_file import plan_to_json
from ablations.planning.planned import Plan
from experiments.errors import UserError, explain_os_errors
from experiments.exchange.import_runs import files_of
from experiments.exchange.redaction import Redaction
from experiments.store.checksummed import describe_file, with_checksum
from experiments.store.durable import whole_file
from experiments.store.layout import Store
from experiments.tasks.columns import Column
from reports.results.accounting import spending
from reports.trust.bundle_archive import CRATE_SUFFIX, pack, pack_crate
from reports.trust.bundle_crate import crate_files, metadata_of
from reports.trust.bundle_head import SPENT, VERSION, column_to_json
from reports.trust.statement import Statement


def write_bundle(
    path: Path,
    plan: Plan,
    store: Store,
    columns: Sequence[Column],
    asked: Sequence[str],
    redaction: Redaction,
    weights: bool = False,
    statement: Statement | None = None,
) -> int:
    """Write the archive, whole or not at all; returns the number of files.

    With a `statement` it is a crate.

    Raises UserError for an unfinished table, and for a store with links that lead out of it.
    """
    unfinished = [run.name for run in plan.trainings if run.state not in ("finished", "stale")]
    if unfinished:
        raise UserError(
            f"Not finished: {', '.join(unfinished[:6])}{' …' if unfinished[6:] else ''}. A bundle holds a whole table: "
            "run what is missing, or leave rows out with --rows."
        )
    names = {str(name) for run in plan.trainings for name in files_of(store, run.run_id, run.eval_ids, weights)}
    with tempfile.TemporaryDirectory(prefix="ablations-bundle-") as place:
        files: dict[str, Path] = {}
        for name in sorted(names | {"store.json"}):
            kept = redaction.file(store.root / name, Path(place) / str(len(files)))
            if kept is not None:
                files[name] = kept
        head = _head(plan, store, columns, asked, redaction)
        if statement is not None:
            files |= crate_files(head, files, redaction.value(statement.model_dump()), Path(place) / "crate")
        head |= {"files": {n: describe_file(p) for n, p in files.items()}}
        # the keys are not sorted: their order is that of the table's columns
        text = (json.dumps(with_checksum(head), indent=1, ensure_ascii=False) + "\n").encode(
            "utf-8", "backslashreplace"
        )
        described = None if statement is None else metadata_of(head, text, Path(place) / "crate")
        with explain_os_errors(f"write {path}"), whole_file(path.absolute()) as file:
            if described is None:
                pack(file, text, files)
            else:
                pack_crate(file, described, text, files)
    return len(files)


def _head(
    plan: Plan, store: Store, columns: Sequence[Column], asked: Sequence[str], redaction: Redaction
) -> dict[str, Any]:
    shown = plan_to_json(plan)
    shared = redaction.value(shown)
    # run_ids that depend on a path or a name that is left out cannot be computed by a reader
    renamed = any(redaction.names_run(run.config) for run in plan.trainings)
    return {
        "bundle": VERSION,
        "left_out": redaction.what,
        "names_can_be_checked": not renamed,
        "asked": redaction.value(list(asked)),
        "columns": [column_to_json(column) for column in columns],
        "plan": shared,
        SPENT: redaction.value(found.model_dump(mode="json") if (found := spending(plan, store)) else {}),
    }


# --- Search an anonymous bundle for names of this machine, of its user, and of their folders


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
