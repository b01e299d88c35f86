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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from ablations.planning.plan_file import plan_from_json, plan_to_json
from ablations.planning.planned import Plan
from experiments.errors import UserError, explain_os_errors
from experiments.events.event_log import Tail
from experiments.exchange.import_runs import files_of
from experiments.exchange.redaction import Redaction
from experiments.identity import digest, seed_in_words
from experiments.store import ledger
from experiments.store.checksummed import describe_file, with_checksum
from experiments.store.durable import whole_file
from experiments.store.layout import Store
from experiments.store.results import RESULT_FILE, EvaluationResult, TrainingResult
from experiments.tasks.columns import Column
from reports.audit.bundle_agreement import check
from reports.audit.bundle_archive import CRATE_SUFFIX, HEAD, NAME, TABLES, pack, pack_crate
from reports.audit.bundle_read import SPENT, VERSION, column_to_json, columns_of, facts_of, keep_spent, read_stream
from reports.render.formats import render
from reports.results.accounting import spending
from reports.table.build import build_table


def write_bundle(
    path: Path,
    plan: Plan,
    store: Store,
    columns: Sequence[Column],
    asked: Sequence[str],
    redaction: Redaction,
    weights: bool = False,
    as_crate: bool = False,
) -> int:
    """Write the archive, or a crate, whole or not at all; returns the number of files.

    It gets its name once it was read back. Raises UserError for an unfinished table, for a store with links that lead
    out of it, and for what no reader would accept.
    """
    unfinished = [run.name for run in plan.trainings if run.state not in ("finished", "stale")]
    if unfinished:
        raise UserError(
            f"Not finished: {', '.join(unfinished[:6])}{' …' if unfinished[6:] else ''}. A bundle holds a whole table: "
            "run what is missing, or leave rows out with --rows."
        )
    if to_read := [run.name for run in plan.trainings if run.to_read]:
        raise UserError(
            f"Not recorded yet: metrics that the study reads from the kept logs of {', '.join(to_read[:6])}"
            f"{' …' if to_read[6:] else ''}. `ablations run` with the same words records them, without training."
        )
    names = {str(name) for run in plan.trainings for name in files_of(store, run.run_id, run.eval_ids, weights)}
    with tempfile.TemporaryDirectory(prefix="ablations-bundle-") as place:
        files: dict[str, Path] = {}
        for name in sorted(names | {"store.json"}):
            if not NAME.fullmatch(name):
                raise UserError(
                    f"{path} is not written: no bundle can hold a file of the name {name!r}. Rename it, or leave out "
                    "--weights."
                )
            kept = redaction.file(store.root / name, Path(place) / str(len(files)))
            if kept is not None:
                files[name] = kept
        if (store.root / ledger.FILE).exists():
            files[ledger.FILE] = Path(place) / ledger.FILE
            files[ledger.FILE].write_bytes(ledger.shared(store, plan.study.name, redaction.without_fields))
        head = _head(plan, store, columns, asked, redaction)
        crate = Path(place) / "crate"
        if as_crate:
            files |= crate_files(head, files, crate)
        head |= {"files": {n: describe_file(p) for n, p in files.items()}}
        # the keys are not sorted: their order is that of the table's columns
        text = json.dumps(with_checksum(head), indent=1, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
        with explain_os_errors(f"write {path}"), whole_file(path.absolute()) as file:
            if as_crate:
                pack_crate(file, metadata_of(head, text, crate), text, files)
            else:
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
            raise UserError(f"{path} is not written, because no reader would accept it: {error}") from None


def _head(
    plan: Plan, store: Store, columns: Sequence[Column], asked: Sequence[str], redaction: Redaction
) -> dict[str, Any]:
    shown = plan_to_json(plan)
    shared = redaction.value(shown)
    if not redaction.texts and plan.study.code_tree:  # a reviewer's rows have their numbers and the words of the author
        written = (plan.study.code_note, plan.study.trees_note)
        shared["notes"] = [note for note in shared["notes"] if note not in written]
        shared["study"] |= {"code_note": "", "trees_note": ""}
        for row in shared["study"]["variation"]:
            row |= {"diff": "", "commit": "", "commits": ""}
            row["label"] = re.sub("^commit .*", "another commit", row["label"])
    # run_ids that depend on a path or a name that is left out cannot be computed by a reader
    renamed = any(redaction.names_run(run.config) for run in plan.trainings)
    return {
        "bundle": VERSION,
        "left_out": redaction.what,
        "names_can_be_checked": not renamed,
        "asked": redaction.value(list(asked)),
        "columns": [column_to_json(column) for column in columns],
        "plan": shared,
        SPENT: redaction.value(spending(plan, store).model_dump(mode="json")),
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


# --- What a crate has beside a bundle's files: the printed table, and what the crate says of itself


_PROCESS_RUN = "https://w3id.org/ro/wfrun/process/0.5"
# A term that the context of RO-Crate 1.1 lacks, written out so that a reader needs no second context.
_TERMS = {"sha256": "https://w3id.org/ro/terms/workflow-run#sha256"}
_FORMATS = {
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".txt": "text/plain",
    ".md": "text/markdown",
    ".csv": "text/csv",
    ".diff": "text/x-diff",
}
_ABOUT = {  # by the last part of a file's name
    HEAD: "The study as resolved: settings of each row, identities of runs and evaluations, a checksum of each file.",
    "store.json": "The version of the store's layout.",
    ledger.FILE: "What was ever requested, started, ended and discarded: each line has the digest of the one before.",
    "config.json": "The settings of a run, and digests of its inputs.",
    "events.jsonl": "The course of an attempt: its start, its training curve, its end.",
    "log.txt": "What an attempt printed.",
    "uncommitted.diff": "Changes of the code that no commit has.",
    RESULT_FILE: "The record of a training or of an evaluation.",
}
_NO_LICENCE = "No licence is given. Ask the author of the study before you reuse more than the law allows."


def check_library() -> None:
    """Raises UserError if rocrate is not installed."""
    try:
        import rocrate.rocrate  # noqa: F401 - a crate alone needs it
    except ImportError:
        raise UserError(
            "--crate needs the library rocrate: pip install 'transformer-ablations[crate]'. Without --crate the bundle "
            "holds the same runs, and this program reads both."
        ) from None


def crate_files(head: Mapping[str, Any], files: Mapping[str, Path], folder: Path) -> dict[str, Path]:
    """Write the files that a crate adds into `folder`, beside links to the bundle's; returns those by name."""
    for name, path in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(path.resolve())
    keep_spent(head, folder)
    plan, store = _as_read(head, folder)
    columns = columns_of(head["columns"], plan.study)
    word = check(plan, columns, store, bool(head["names_can_be_checked"])).word
    table = replace(build_table(plan, store, columns), bundle=word)
    for name, format_ in TABLES.items():
        (folder / name).write_text(render(table, format_), encoding="utf-8")
    return {name: folder / name for name in TABLES}


def metadata_of(head: Mapping[str, Any], text: bytes, folder: Path) -> bytes:
    """The text of ro-crate-metadata.json. `text`: of bundle.json; `folder`: the crate's other files."""
    from rocrate.rocrate import ROCrate

    plan, store = _as_read(head, folder)
    crate = ROCrate(version="1.1")
    crate.metadata.extra_terms.update(_TERMS)
    for name, facts in {HEAD: facts_of(text), **head["files"]}.items():
        last = name.rpartition("/")[2]
        properties = {"name": name, "contentSize": str(facts["bytes"]), "sha256": facts["sha256"]}
        properties["encodingFormat"] = _FORMATS.get(f".{last.rpartition('.')[2]}", "application/octet-stream")
        properties |= {"description": _ABOUT[last]} if last in _ABOUT else {}
        crate.add_file(dest_path=name, properties=properties)
    last = 0.0
    for action in _actions(plan, store):
        software = {"@type": "SoftwareApplication", "name": f"task {plan.study.task}", "softwareVersion": action.code}
        code = f"#code-{digest(action.code)}"
        tool = crate.get(code) or crate.add_jsonld({"@id": code, **software})
        times = {"startTime": action.began, "endTime": action.ended}
        known = {name: _date(time) for name, time in times.items() if time is not None}
        read = [crate.get(name) for name in action.read if name in head["files"]]
        made = [crate.get(name) for name in head["files"] if name.startswith(action.made)]
        done = crate.add_action(tool, action.id, read, made, {"name": action.name, **known})
        crate.root_dataset.append_to("mentions", done)
        last = max(last, action.ended or 0.0)
    crate.add_jsonld({"@id": _PROCESS_RUN, "@type": "CreativeWork", "name": "Process Run Crate", "version": "0.5"})
    root = crate.root_dataset
    root["name"] = plan.study.title or plan.study.name
    root["description"] = f"Study {plan.study.name}, profile {plan.profile}."
    root["datePublished"] = _date(last)
    root["license"] = _NO_LICENCE
    root["conformsTo"] = {"@id": _PROCESS_RUN}
    described = json.dumps(crate.metadata.generate(), indent=1, ensure_ascii=False) + "\n"
    return described.encode("utf-8", "backslashreplace")


class _Action(NamedTuple):
    """A training or an evaluation. Times in Unix seconds; None where no event tells them."""

    id: str
    name: str
    code: str
    read: Sequence[str]  # names of files
    made: str  # the beginning of the names
    began: float | None
    ended: float | None


def _actions(plan: Plan, store: Store) -> Iterator[_Action]:
    seen: set[str] = set()  # rows may share a training
    for run in plan.trainings:
        record, row = store.result(run.run_id) or TrainingResult(), f"row {run.row}, {seed_in_words(run.seed)}"
        home, told = f"runs/{run.run_id}", _told(store, run.run_id, record)
        if run.run_id not in seen:
            changed = " with uncommitted changes" if record.revision.dirty else ""
            commit = f"commit {record.revision.commit}{changed}, " if record.revision.commit else ""
            code = f"{commit}digest {record.code_digest or 'not recorded'}"
            read = [f"{home}/config.json", *(f"runs/{other}/{RESULT_FILE}" for other in run.reads)]
            times = told.get("started"), told.get("trained")
            yield _Action(f"#run-{run.run_id}", f"Training of {row}", code, read, f"{home}/attempts/", *times)
        for each in run.evaluations:
            if each.eval_id not in seen:
                made = store.evaluation(run.run_id, each.eval_id) or EvaluationResult()
                code = ", ".join(f"{part} {code}" for part, code in sorted(made.code.items())) or "not recorded"
                name, folder = f"Evaluation of {row}, on {each.spec.set}", f"{home}/evaluations/{each.eval_id}/"
                times = None, told.get(each.eval_id)
                read = [f"{home}/{RESULT_FILE}"]
                yield _Action(f"#evaluation-{each.eval_id}", name, f"digest {code}", read, folder, *times)
        seen |= {run.run_id, *run.eval_ids}


def _told(store: Store, run_id: str, record: TrainingResult) -> dict[str, float]:
    """When the attempt that trained a run started, ended its training ("trained"), made an evaluation (its eval_id)."""
    events = Tail(store.attempt_folder(run_id, record.attempt)).read()
    return {
        event.get("eval_id", event["kind"]): event["t"]
        for event in events
        if event["kind"] in ("started", "trained", "evaluated")
    }


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _as_read(head: Mapping[str, Any], folder: Path) -> tuple[Plan, Store]:
    """The plan and the store as a reader of the bundle has them."""
    return plan_from_json(json.loads(json.dumps(head["plan"]))), Store.open(folder, create=False)
