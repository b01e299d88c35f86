"""What a crate has beside a bundle's files: the printed table, the statement, and what the crate says of itself.

Its ro-crate-metadata.json is written by the library rocrate (the extra [crate]): a Process Run Crate 0.5
(w3id.org/ro/wfrun/process). It has every file with its checksum, and for each training and each evaluation an action:
what it read and made, with which code, and when. All of it is made from the bundle's files as its reader sees them,
after what was left out; reading a crate needs no library.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from ablations.planning.plan_file import plan_from_json
from ablations.planning.planned import Plan
from experiments.errors import UserError
from experiments.events.event_log import Tail
from experiments.identity import digest, seed_in_words
from experiments.store.checksummed import write_json
from experiments.store.layout import Store
from experiments.store.results import RESULT_FILE, EvaluationResult, TrainingResult
from reports.render.formats import render
from reports.results.table import Table
from reports.table.build import build_table
from reports.trust.bundle_agreement import check
from reports.trust.bundle_archive import HEAD, STATEMENT, TABLES
from reports.trust.bundle_head import columns_of, keep_spent
from reports.trust.statement import read_statement, sentences

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
    STATEMENT: "What was run, what was scored and what was chosen on what, derived from the author's store.",
    "store.json": "The version of the store's layout.",
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


def crate_files(
    head: Mapping[str, Any], files: Mapping[str, Path], statement: Mapping[str, Any], folder: Path
) -> dict[str, Path]:
    """Write the files that a crate adds into `folder`, beside links to the bundle's; returns those by name."""
    for name, path in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(path.resolve())
    keep_spent(head, folder)
    plan, store = _as_read(head, folder)
    columns = columns_of(head["columns"], plan.study)
    word = check(plan, columns, store, bool(head["names_can_be_checked"])).word
    made = {name: folder / name for name in (*TABLES, STATEMENT)}
    for name, text in printed(replace(build_table(plan, store, columns), bundle=word)).items():
        made[name].write_text(text, encoding="utf-8")
    write_json(made[STATEMENT], statement, checksummed=False)
    return made


def printed(table: Table) -> dict[str, str]:
    """The table in the formats that a crate has it in, by file."""
    return {name: render(table, format_) for name, format_ in TABLES.items()}


def metadata_of(head: Mapping[str, Any], text: bytes, folder: Path) -> bytes:
    """The text of ro-crate-metadata.json. `text`: of bundle.json; `folder`: the crate's other files."""
    from rocrate.rocrate import ROCrate

    plan, store = _as_read(head, folder)
    said = sentences(read_statement(json.loads((folder / STATEMENT).read_bytes()), plan))
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
    root["description"] = " ".join([f"Study {plan.study.name}, profile {plan.profile}.", *said])
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
                ended = told.get(each.eval_id)
                yield _Action(
                    f"#evaluation-{each.eval_id}",
                    name,
                    f"digest {code}",
                    [f"{home}/{RESULT_FILE}"],
                    folder,
                    None,
                    ended,
                )
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


def facts_of(text: bytes) -> dict[str, Any]:
    """Size and SHA-256, as a manifest lists them."""
    return {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}


def check_described(metadata: Mapping[str, Any], files: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises UserError if a description gives another checksum than the manifest, ValueError for no description."""
    graph = metadata.get("@graph")
    if not isinstance(graph, list) or not all(isinstance(entity, dict) for entity in graph):
        raise ValueError("its ro-crate-metadata.json has no @graph of entities")
    for entity in graph:
        name = entity.get("@id")
        listed = files.get(name) if isinstance(name, str) else None
        if listed is not None and entity.get("sha256", listed["sha256"]) != listed["sha256"]:
            raise UserError(f"ro-crate-metadata.json and bundle.json give different checksums of {name}.")
