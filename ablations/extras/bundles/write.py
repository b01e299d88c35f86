"""Write a finished table to one archive: the plan, and the configurations, events, results and outputs of its runs.

With the archive, a reader can print the same table, repeat the significance tests and explain every cell, without
corpus, study file or GPU. The same table and the same ledger give the same archive. Host names and absolute paths are
left out unless the user asks for them (experiments/exchange/redaction.py).
"""

import getpass
import json
import re
import socket
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ablations.extras.bundles.archive import NAME, pack
from ablations.extras.bundles.plan_file import plan_to_json
from ablations.extras.bundles.read import SPENT, VERSION, column_to_json, read_stream
from ablations.planning.plan import Plan
from experiments.errors import UserError, explain_os_errors
from experiments.exchange.import_runs import files_of
from experiments.exchange.redaction import Redaction
from experiments.store import ledger
from experiments.store.checksummed import describe_file, with_checksum
from experiments.store.durable import whole_file
from experiments.store.layout import Store
from experiments.tasks.columns import Column
from reports.results.accounting import spending


def write_bundle(
    path: Path,
    plan: Plan,
    store: Store,
    columns: Sequence[Column],
    asked: Sequence[str],
    redaction: Redaction,
    weights: bool = False,
) -> int:
    """Write the archive completely or not at all. Return the number of files.

    The archive gets its final name after it has been read back. Raises UserError for an unfinished table, for links
    that lead out of the store, and for content that `read_stream` refuses.
    """
    unfinished = [run.name for run in plan.trainings if run.state not in ("finished", "stale")]
    if unfinished:
        raise UserError(
            f"Not finished: {', '.join(unfinished[:6])}{' …' if unfinished[6:] else ''}. A bundle needs a complete "
            "table. Run the missing rows, or leave them out with --rows."
        )
    if to_read := [run.name for run in plan.trainings if run.store_state.to_read]:
        raise UserError(
            "Not recorded yet: metrics that the study reads from the kept logs of "
            f"{', '.join(to_read[:6])}{' …' if to_read[6:] else ''}. Record them with `ablations run` and the same "
            "options; nothing is trained."
        )
    names = {str(name) for run in plan.trainings for name in files_of(store, run.run_id, run.eval_ids, weights)}
    with tempfile.TemporaryDirectory(prefix="ablations-bundle-") as place:
        files: dict[str, Path] = {}
        for name in sorted(names | {"store.json"}):
            if not NAME.fullmatch(name):
                raise UserError(
                    f"{path} was not written, because a bundle cannot contain the file name {name!r}. Rename it, or "
                    "leave out --weights."
                )
            kept = redaction.file(store.root / name, Path(place) / str(len(files)))
            if kept is not None:
                files[name] = kept
        if (store.root / ledger.FILE).exists():
            files[ledger.FILE] = Path(place) / ledger.FILE
            files[ledger.FILE].write_bytes(ledger.shared(store, plan.study.name, redaction.without_fields))
        head = _head(plan, store, columns, asked, redaction)
        head |= {"files": {n: describe_file(p) for n, p in files.items()}}
        # Keys are not sorted, because their order is the order of the table's columns.
        text = json.dumps(with_checksum(head), indent=1, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
        with explain_os_errors(f"write {path}"), whole_file(path.absolute()) as file:
            pack(file, text, files)
            file.flush()
            _read_back(file.fileno(), path)
    return len(files)


def _read_back(written: int, path: Path) -> None:
    """Read an open file as a bundle. Raises UserError if a reader would refuse it."""
    with (
        Path(f"/proc/self/fd/{written}").open("rb") as file,
        tempfile.TemporaryDirectory(prefix="ablations-bundle-") as folder,
    ):
        try:
            read_stream(file, Path(folder), weights=False)
        except UserError as error:
            raise UserError(f"{path} was not written, because it could not be read again: {error}") from None


def _head(
    plan: Plan, store: Store, columns: Sequence[Column], asked: Sequence[str], redaction: Redaction
) -> dict[str, Any]:
    shown = plan_to_json(plan)
    shared = redaction.value(shown)
    if not redaction.texts and plan.study.code_tree:  # anonymous: rows keep only numbers and the author's texts
        written = (plan.study.code_note, plan.study.trees_note)
        shared["notes"] = [note for note in shared["notes"] if note not in written]
        shared["study"] |= {"code_note": "", "trees_note": ""}
        for row in shared["study"]["variation"]:
            row |= {"diff": "", "commit": "", "commits": ""}
            row["label"] = re.sub("^commit .*", "another commit", row["label"])
    # If a run's identity contains a path or a name that is left out, a reader cannot compute its run_id.
    renamed = any(redaction.names_run(run.config, run.spec.trainer) for run in plan.trainings)
    return {
        "bundle": VERSION,
        "left_out": redaction.what,
        "names_can_be_checked": not renamed,
        "asked": redaction.value(list(asked)),
        "columns": [column_to_json(column) for column in columns],
        "plan": shared,
        SPENT: redaction.value(spending([run.run_id for run in plan.trainings], store).model_dump(mode="json")),
    }


_RECORDS = (".json", ".jsonl")


def traces(path: Path, store: Path) -> Iterator[str]:
    """Yield one sentence for each file of the archive and each path or name of the sender found in this file.

    Every file is searched for the absolute paths of the store, the current folder and the home folder. A path with one
    component, such as /data, is searched only if it is the home folder. Only JSON files (.json, .jsonl) are searched
    for the host name of this machine and the user name. The paths and names may come from texts of the study or from
    files of the trainer.
    """
    places = {str(form) for place in (store, Path.cwd(), Path.home()) for form in (place, place.resolve())}
    paths = [_alone(place) for place in sorted(places) if place.count("/") > 1 or place == str(Path.home())]
    names = [_alone(name) for name in _names()]
    for name, text in _contents(path):
        # Names are searched only in JSON files, because a model's output may contain one by chance.
        for pattern in [*paths, *(names if name.endswith(_RECORDS) else [])]:
            found = pattern.search(text)
            if found:
                yield f"{name} holds {found[0].decode(errors='replace')!r}"


def _contents(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each file of an archive that this program wrote."""
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
