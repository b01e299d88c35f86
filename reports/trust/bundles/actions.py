"""The actions of a crate's description: attempts at trainings, evaluations, the printing of the table."""

from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any

from ablations.plan.planned import Plan, PlannedEvaluation, PlannedRun
from experiments.identity import digest, seed_in_words, without_runs
from experiments.store.layout import Store
from experiments.store.provenance import DISTRIBUTION
from experiments.store.results import FILE, EvaluationResult, TrainingResult
from reports.results.amounts import Amounts, amounts_of
from reports.results.spending import Spending
from reports.trust.bundles.archive import TABLES
from reports.trust.bundles.graph import STEPS, Graph, Times, ref

_SECONDS, _BYTES, _NUMBER = (f"https://qudt.org/vocab/unit/{unit}" for unit in ("SEC", "BYTE", "NUM"))
# Resource use in records: field → what it is, unit.
_TRAINING_USE = {
    "train_s": ("Time of training, all attempts together", _SECONDS),
    "wall_s": ("Time of the last attempt", _SECONDS),
    "peak_memory_bytes": ("Largest memory in use", _BYTES),
    "flops": ("Floating-point operations of training", _NUMBER),
    "devices": ("Devices that trained together", _NUMBER),
}
_EVALUATION_USE = {"wall_s": ("Time of the evaluation", _SECONDS)}
_JOULES = "https://qudt.org/vocab/unit/J"
# Of whole attempts (experiments/events/spent.py), and of the study: field → what it is, unit.
_SPENT_USE = {
    "attempt_s": ("Wall time, from the start of the process to its end, of evaluations too", _SECONDS),
    "thread_s": ("Time of processor threads leased", _SECONDS),
    "gpu_s": ("Time of GPUs leased, times their share", _SECONDS),
    "cpu_s": ("CPU time", _SECONDS),
    "cpu_joules": ("Energy of processors and memory (RAPL), divided by CPU time", _JOULES),
    "gpu_joules": ("Energy of GPUs (NVML), times their share", _JOULES),
}
COMPLETED, _FAILED = "http://schema.org/CompletedActionStatus", "http://schema.org/FailedActionStatus"


def _tool(
    graph: Graph, step: str, plan_task: str, code: str, revision: Mapping[str, Any], versions: Mapping[str, str]
) -> str:
    """The software that did a step: its code and packages, one entity for each that differs."""
    id_ = f"#{step}-{digest([plan_task, code, dict(revision), dict(versions)])}"
    packages = [
        graph.add(f"#package-{name}-{version}", "SoftwareApplication", name=name, softwareVersion=version)
        for name, version in sorted(versions.items())
    ]
    commit, changed = revision.get("commit"), " with uncommitted changes" if revision.get("dirty") else ""
    version = " ".join(filter(None, (revision.get("version"), f"commit {commit}{changed}" if commit else "")))
    return graph.add(
        id_,
        "SoftwareApplication",
        name=f"{STEPS[step]}: task {plan_task}",
        softwareVersion=version or code or "not recorded",
        description=f"Digest of its code: {code}." if code else "",
        softwareRequirements=[ref(package) for package in packages],
    )


def _spent(graph: Graph, id_: str, amounts: Amounts | None) -> list[dict[str, str]]:
    """References to what whole attempts used, as far as it is known of all of them."""
    if amounts is None or not amounts.attempts:
        return []
    known = {
        "attempt_s": True,
        "thread_s": amounts.thread_s > 0,
        "gpu_s": amounts.gpu_s > 0,
        "cpu_s": not amounts.without_cpu,
        "cpu_joules": not amounts.without_cpu_joules,
        "gpu_joules": amounts.on_gpus > 0 and not amounts.without_gpu_joules,
    }
    values = {**vars(amounts), "attempt_s": amounts.wall_s}
    return graph.used(id_, {name: values[name] for name in _SPENT_USE if known[name]}, _SPENT_USE)


def whole(graph: Graph, id_: str, found: Spending) -> list[dict[str, str]]:
    """References to what all attempts together used, trials of a tuning included."""
    return _spent(graph, id_, amounts_of(one for attempts in found.runs.values() for one in attempts))


def training(
    graph: Graph, run: PlannedRun, store: Store, times: Times, files: Mapping[str, Any], found: Spending
) -> None:
    """Add the attempts of a run; of an ensemble, its making. What it reads of other runs is among its inputs."""
    record = store.result(run.run_id) or TrainingResult()
    revision = {**record.revision.model_dump(), **{"version": record.tool.version}}
    tool = _tool(graph, "train", record.task or run.config.task, record.code_digest or "", revision, record.versions)
    name = f"row {run.row}, {seed_in_words(run.seed)}"
    given = [ref(file) for file in (f"runs/{run.run_id}/config.json", *_described(run.inputs, files)) if file in files]
    given += [ref(f"runs/{member}/{FILE}") for member in run.reads]
    settings = {"seed": run.seed, **run.overrides} if not run.members else dict(run.overrides)
    given += [graph.setting(key, value) for key, value in settings.items()]
    used = {one.attempt: amounts_of([one]) for one in found.runs.get(run.run_id, ())}
    told = {earlier.attempt for earlier in record.earlier_attempts}
    for earlier in record.earlier_attempts:
        id_ = f"#run-{run.run_id}-attempt-{earlier.attempt}"
        graph.act(
            "train", id_, tool,
            name=f"Attempt {earlier.attempt} at {name}",
            description="It ended early; a later attempt went on from its last checkpoint, or began again.",
            actionStatus=_FAILED,
            error=earlier.ended or "ended early",
            object=given,
            resourceUsage=[
                *graph.used(id_, {"seconds": earlier.seconds}, {"seconds": ("Time of the attempt", _SECONDS)}),
                *_spent(graph, id_, used.get(earlier.attempt)),
            ],
        )  # fmt: skip
    for one in found.runs.get(run.run_id, ()):
        if one.attempt in (*told, record.attempt, 0):
            continue
        id_ = f"#run-{run.run_id}-attempt-{one.attempt}"
        graph.act(
            "train", id_, tool,
            name=f"Attempt {one.attempt} at {name}",
            description="It only evaluated, or its training was made again.",
            actionStatus=COMPLETED if one.ended == "finished" else _FAILED,
            error="" if one.ended == "finished" else one.ended or "ended early",
            object=given,
            resourceUsage=_spent(graph, id_, used[one.attempt]),
        )  # fmt: skip
    id_ = f"#run-{run.run_id}"
    graph.act(
        "train", id_, tool,
        name=f"{'Ensemble of' if run.members else 'Training of'} {name}",
        description=f"On {record.device or 'a device that is not recorded'}.",
        actionStatus=COMPLETED,
        startTime=times.of(run.run_id, "started"),
        endTime=times.of(run.run_id, "trained"),
        object=given,
        result=[ref(f) for f in files if f.startswith((f"runs/{run.run_id}/{FILE}", f"runs/{run.run_id}/attempts/"))],
        resourceUsage=[
            *graph.used(id_, record.content, _TRAINING_USE), *_spent(graph, id_, used.get(record.attempt))
        ],
    )  # fmt: skip


def evaluation(
    graph: Graph, run: PlannedRun, of: PlannedEvaluation, store: Store, times: Times, files: Mapping[str, Any]
) -> None:
    """Add one evaluation of a run."""
    record = store.evaluation(run.run_id, of.eval_id) or EvaluationResult()
    folder = f"runs/{run.run_id}/evaluations/{of.eval_id}/"
    versions = {**record.versions, **{n: v for part in record.parts.values() for n, v in part.versions.items()}}
    code = " ".join(f"{part} {code}".strip() for part, code in sorted(record.code.items()))
    tool = _tool(graph, "evaluate", run.config.task, code, {}, versions)
    id_ = f"#evaluation-{of.eval_id}"
    graph.act(
        "evaluate", id_, tool,
        name=f"Evaluation of row {run.row}, {seed_in_words(run.seed)}, on {of.spec.set}",
        description=f"On {record.device or 'a device that is not recorded'}.",
        actionStatus=COMPLETED,
        endTime=times.of(run.run_id, of.eval_id),
        object=[
            ref(f"runs/{run.run_id}/{FILE}"),
            *(ref(file) for file in _described(of.spec.inputs, files)),
            *(graph.setting(key, value) for key, value in of.spec.settings.items()),
        ],
        result=[ref(file) for file in files if file.startswith(folder)],
        resourceUsage=graph.used(id_, record.content, _EVALUATION_USE),
    )  # fmt: skip


def report(graph: Graph, plan: Plan, files: Mapping[str, Any]) -> None:
    """Add the printing of the table from the evaluations."""
    tool = _tool(graph, "report", plan.study.task, "", {"version": metadata.version(DISTRIBUTION)}, {})
    results = [f"runs/{r.run_id}/evaluations/{e.eval_id}/{FILE}" for r in plan.runs for e in r.evaluations]
    graph.act(
        "report", "#table", tool,
        name=f"The table of {plan.study.name}",
        description="Means over seeds, changes from base and their tests, from the records of the evaluations.",
        actionStatus=COMPLETED,
        object=[ref(name) for name in dict.fromkeys(results) if name in files],
        result=[ref(name) for name in TABLES],
    )  # fmt: skip


def _described(inputs: Mapping[str, str], files: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"datasets/{each}.json" for each in without_runs(inputs).values() if f"datasets/{each}.json" in files)
