"""The ro-crate-metadata.json of a bundle: a Provenance Run Crate 0.5 (w3id.org/ro/wfrun/provenance).

The study is the workflow, bundle.json its file. It has three steps: train, evaluate, print the table. Each attempt of a
training and each evaluation is an action with its inputs, outputs, software and resource use. Everything follows from
the bundle's own files, so that nothing left out of them comes in, and a reader can make the description again.
"""

import json
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

from ablations.plan.planned import Plan
from ablations.study.messages import number
from experiments.store.layout import Store
from experiments.store.provenance import DISTRIBUTION
from experiments.store.results import FILE
from reports.results.spending import Spending, kept
from reports.trust.bundles import actions
from reports.trust.bundles.actions import COMPLETED
from reports.trust.bundles.archive import HEAD, STATEMENT, TABLES
from reports.trust.bundles.datasets import CROISSANT, Dataset
from reports.trust.bundles.graph import STEPS, Graph, Times, compact, date, ref
from reports.trust.bundles.head import VERSION

if TYPE_CHECKING:
    from rocrate.rocrate import ROCrate

_WORKFLOW_CRATE = "https://w3id.org/workflowhub/workflow-ro-crate/1.0"
_PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": ("Process Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/workflow/0.5": ("Workflow Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/provenance/0.5": ("Provenance Run Crate", "0.5"),
    _WORKFLOW_CRATE: ("Workflow RO-Crate", "1.0"),
}
# Terms that the context of RO-Crate 1.1 lacks, written out so that a reader needs no second context.
_TERMS = {name: f"https://w3id.org/ro/terms/workflow-run#{name}" for name in ("sha256", "resourceUsage")}
_FORMATS = {
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".txt": "text/plain",
    ".md": "text/markdown",
    ".csv": "text/csv",
    ".diff": "text/x-diff",
    ".npy": "application/octet-stream",
}
_ABOUT = {  # by the last part of a file's name
    HEAD: "The study as resolved: settings of each row, identities of runs and evaluations, a checksum of each file.",
    STATEMENT: "What was run, what was scored and what was chosen on what, derived from the author's store.",
    "store.json": "The version of the store's layout.",
    "config.json": "The settings of a run, and digests of its inputs.",
    "events.jsonl": "The course of an attempt: its start, its training curve, its end.",
    "log.txt": "What an attempt printed.",
    "uncommitted.diff": "Changes of the code that no commit has.",
    FILE: "The record of a training or of an evaluation.",
}
_NO_LICENCE = "No licence is given. Ask the author of the study before you reuse more than the law allows."


def describe(
    plan: Plan, store: Store, files: Mapping[str, Mapping[str, Any]], datasets: Mapping[str, Dataset],
    sentences: Sequence[str],
) -> dict[str, Any]:  # fmt: skip
    """The description. `store`: the bundle's files; `files`: size and SHA-256 of each, the head included."""
    from rocrate.rocrate import ROCrate  # imported late: only crates need it

    graph, times, found = Graph(), Times(plan, store), kept(store) or Spending()  # older crates say less
    _software(graph)
    for run in plan.trainings:
        if f"#run-{run.run_id}" not in graph.entities:  # rows may share a training
            actions.training(graph, run, store, times, files, found)
        for evaluation in run.evaluations:
            if f"#evaluation-{evaluation.eval_id}" not in graph.entities:
                actions.evaluation(graph, run, evaluation, store, times, files)
    actions.report(graph, plan, files)
    _workflow(graph, plan, times, datasets, found)
    crate = ROCrate(version="1.1")
    crate.metadata.extra_terms.update(_TERMS)
    _root(crate, plan, graph, times.last or date(0), sentences)
    _files(crate, files, graph, datasets)
    for entity in graph.entities.values():
        if entity["@id"] != HEAD:
            crate.add_jsonld(dict(entity))
    described: dict[str, Any] = crate.metadata.generate()
    return described


def as_text(described: Mapping[str, Any]) -> bytes:
    """The text of ro-crate-metadata.json."""
    return (json.dumps(described, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def _root(crate: "ROCrate", plan: Plan, graph: Graph, published: str, sentences: Sequence[str]) -> None:
    profiles = [ref(uri) for uri in _PROFILES]
    for uri, (name, version) in _PROFILES.items():
        crate.add_jsonld({"@id": uri, "@type": "CreativeWork", "name": name, "version": version})
    crate.metadata["conformsTo"] = [ref("https://w3id.org/ro/crate/1.1"), ref(_WORKFLOW_CRATE)]
    root = crate.root_dataset
    root["name"] = plan.study.title or plan.study.name
    root["description"] = " ".join([f"Study {plan.study.name}, profile {plan.profile}.", *sentences])
    root["datePublished"] = published
    root["license"] = _NO_LICENCE
    root["conformsTo"] = profiles
    root["mainEntity"] = ref(HEAD)
    root["mentions"] = [ref(i) for i, entity in graph.entities.items() if str(entity["@type"]).endswith("Action")]


def _files(
    crate: "ROCrate", files: Mapping[str, Mapping[str, Any]], graph: Graph, datasets: Mapping[str, Dataset]
) -> None:
    described = {dataset.path: dataset for dataset in datasets.values()}
    for name, facts in files.items():
        last, dataset = name.rpartition("/")[2], described.get(name)
        properties = {
            "name": dataset.name if dataset else name,
            "description": dataset.about if dataset else _ABOUT.get(last, ""),
            "contentSize": str(facts["bytes"]),
            "sha256": facts["sha256"],
            "encodingFormat": "application/ld+json" if dataset else _FORMATS.get(f".{last.rpartition('.')[2]}", ""),
            "exampleOfWork": compact([ref(i) for i, e in graph.entities.items() if ref(name) == e.get("workExample")]),
        }
        if dataset:
            properties["conformsTo"] = {"@id": CROISSANT}
        properties |= graph.entities.get(name, {})
        crate.add_file(
            dest_path=name, properties={key: value for key, value in properties.items() if value and key != "@id"}
        )
    if datasets:
        crate.add_jsonld({"@id": CROISSANT, "@type": "CreativeWork", "name": "Croissant", "version": "1.0"})


def _software(graph: Graph) -> None:
    graph.add(
        "#engine",
        "SoftwareApplication",
        name=DISTRIBUTION,
        softwareVersion=metadata.version(DISTRIBUTION),
        description="Plans, queues, trains and evaluates the runs of a study, and prints its table.",
    )


def _workflow(graph: Graph, plan: Plan, times: Times, datasets: Mapping[str, Dataset], found: Spending) -> None:
    conforms = {"@id": "https://bioschemas.org/profiles/FormalParameter/1.0-RELEASE"}
    graph.add(conforms["@id"], "CreativeWork", name="FormalParameter", version="1.0-RELEASE")
    inputs = [
        graph.add(
            f"#input-{each.digest}", "FormalParameter", name=each.name, additionalType="File", conformsTo=conforms,
            description=each.about, workExample=ref(each.path),
        )
        for each in datasets.values()
    ]  # fmt: skip
    outputs = [
        graph.add(
            f"#output-{format_}", "FormalParameter", name=f"table as {format_}", additionalType="File",
            conformsTo=conforms, encodingFormat=_FORMATS[f".{name.rpartition('.')[2]}"], workExample=ref(name),
        )
        for name, format_ in TABLES.items()
    ]  # fmt: skip
    for position, (step, name) in enumerate(STEPS.items(), start=1):
        tools = [ref(tool) for tool in graph.tools[step]]
        if tools:
            graph.add(f"#step-{step}", "HowToStep", name=name, position=str(position), workExample=tools)
            controlled = [ref(action) for action in graph.actions[step]]
            graph.add(
                f"#control-{step}", "ControlAction", name=name, instrument=ref(f"#step-{step}"), object=controlled
            )
    steps = [step for step in STEPS if f"#step-{step}" in graph.entities]
    language = graph.add(
        "#language", "ComputerLanguage", name=f"Study of {DISTRIBUTION}",
        description="Rows of a table, each a change of base's settings; the plan that follows from it, as JSON.",
    )  # fmt: skip
    workflow = "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"
    graph.add(workflow, "CreativeWork", name="ComputationalWorkflow", version="1.0-RELEASE")
    graph.add(
        HEAD, ["File", "SoftwareSourceCode", "ComputationalWorkflow", "HowTo"],
        name=f"Study {plan.study.name}",
        version=str(VERSION),
        conformsTo=ref(workflow),
        programmingLanguage=ref(language),
        step=[ref(f"#step-{step}") for step in steps],
        hasPart=[ref(tool) for step in steps for tool in graph.tools[step]],
        input=[ref(each) for each in inputs],
        output=[ref(each) for each in outputs],
    )  # fmt: skip
    graph.add(
        "#study", "CreateAction",
        name=f"Study {plan.study.name}, profile {plan.profile}",
        description=f"Training and evaluation of {number(len(plan.trainings), 'run')}, and their table.",
        instrument=ref(HEAD),
        actionStatus=COMPLETED,
        startTime=times.first, endTime=times.last,
        object=[ref(each.path) for each in datasets.values()],
        result=[ref(name) for name in TABLES],
        resourceUsage=actions.whole(graph, "#study", found),
    )  # fmt: skip
    graph.add(
        "#engine-run", "OrganizeAction",
        name=f"Run of {DISTRIBUTION}",
        instrument=ref("#engine"),
        startTime=times.first, endTime=times.last,
        object=[ref(f"#control-{step}") for step in steps],
        result=ref("#study"),
    )  # fmt: skip
