"""Turn planned runs without valid results into jobs of the queue.

This module also writes the messages about finished runs that are trained, decoded or scored again, with the cost.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ablations.planning.plan import Plan, PlannedRun
from ablations.service.preflight import refuse
from ablations.service.run_states import lacks_checkpoints, stale_parts
from ablations.service.selected import Selected
from ablations.study.selectors import CORPUS
from experiments.dotted import flatten
from experiments.errors import UserError, explain_os_errors
from experiments.identity import digest, without_runs
from experiments.jobs.queue.job import Job, Member
from experiments.jobs.queue.queue import Queue
from experiments.records import TRAINING
from experiments.store import ledger
from experiments.store.checksummed import write_json
from experiments.store.durable import remove_folder
from experiments.store.layout import CONFIG, Store, TableRow, keep_row, spec_of
from experiments.store.retention import at_steps, union
from experiments.store.trees import keep
from experiments.tasks.base import Progress, Task, settings_read
from experiments.tasks.columns import Column

STALE = ("keep", "rerun")


def wanted(plan: Plan, stale: str) -> list[PlannedRun]:
    """Return the runs of a plan that need work, with the members and parent runs that they wait for.

    A run needs work if it is not finished, if its kept logs must be read again, or if it is stale and `stale` is
    "rerun". Imported runs are never included. Raises UserError if `stale` is neither "keep" nor "rerun".
    """
    if stale not in STALE:
        raise UserError(
            f"--stale {stale}: write keep (mark results of other code than the present) or rerun (make them again)."
        )
    done = {"finished"} if stale == "rerun" else {"finished", "stale"}
    runs = [run for run in plan.runs if (run.state not in done or run.store_state.to_read) and not run.spec.imported]
    asked = {run_id for run in runs for run_id in run.spec.reads}
    return [*runs, *(member for member in plan.members if member.run_id in asked and member.state not in done)]


def prepare(chosen: Selected, runs: Iterable[PlannedRun], progress: Progress) -> None:
    """Prepare the inputs of the runs, once per corpus. Mistakes in the inputs are reported before anything is queued.

    Raises UserError if preflight.py refuses a run, or if input files have changed since planning. The check of
    preflight.py runs before the corpus is prepared, and again afterwards, when the corpus has been measured. If this
    call created the store and fails, it removes the store again.
    """
    runs = list(runs)
    refuse(chosen, runs)
    existed = chosen.store.root.exists()
    Store.open(chosen.store.root, chosen.store.state_dir)
    different = {_prepared_key(chosen.task, run): run for run in runs}  # one run per preparation
    try:
        for run in different.values():
            chosen.task.with_trainer(run.spec.trainer).prepare(run.config, chosen.store.root, progress)
            if chosen.task.inputs(run.config, chosen.store.root) != without_runs(run.spec.inputs):
                raise UserError(
                    f"Nothing was queued, because the input files of {run.row} have changed during this command. "
                    "Repeat it when the files are final."
                )
        refuse(chosen, runs)
    except UserError:
        if not existed:
            remove_folder(chosen.store.root)
        raise


def enqueue(chosen: Selected, plan: Plan, runs: Iterable[PlannedRun], stale: str, limit: int | None = None) -> int:
    """Put runs into the queue. Return how many of them were not in the queue before. limit: see Job."""
    store, runs = chosen.store, list(runs)
    code = chosen.task.code
    keep_rows(chosen, plan, runs)
    for tree in dict.fromkeys(tree for run in runs for tree in run.spec.trainer.trees):
        keep(tree, store.root)  # planning kept the tree too, but `forget` removes trees that no run uses
    turn = turns(chosen, plan)
    jobs = [replace(_job(chosen, plan, run, stale, code), turn=turn(run), limit=limit) for run in runs]
    rows: dict[str, Any] = {}
    for run in runs:
        trainer = run.spec.trainer
        facts = {"command": trainer.command, "code_tree": trainer.tree}
        settings = digest(
            {**run.config.model_dump(mode="json"), "seed": None, **{name: fact for name, fact in facts.items() if fact}}
        )
        rows.setdefault(run.row, {"settings": settings, "runs": []})["runs"].append([run.run_id, *run.eval_ids])
    ledger.append(store, "request", study=plan.study.name, profile=plan.profile, rows=rows)
    with Queue(store.queue_db) as queue:
        return queue.enqueue(jobs)


def turns(chosen: Selected, plan: Plan) -> Callable[[PlannedRun], int]:
    """Return a function that gives a run's place in the order of training (`Job.turn`)."""
    seeds: dict[str, set[int]] = {}  # row → its seeds in the plan
    for run in plan.trainings:
        seeds.setdefault(run.row, set()).add(run.seed)
    places = _places(plan, chosen.columns)

    def turn(run: PlannedRun) -> int:
        # Order by the place of the seed in its row, then by the place of the row. A trial of tuning is not in the plan,
        # so its place is 0.
        return sum(seed < run.seed for seed in seeds.get(run.row, ())) * (len(places) + 1) + places.get(run.row, 0)

    return turn


def _places(plan: Plan, columns: Sequence[Column]) -> dict[str, int]:
    """Return each row's place in the order of training: base, then the rows with the largest published changes.

    The first metric with a published number for base decides. This order gives an informative table early. Rows without
    a published number share the last place.
    """
    rows, base = plan.study.variations, plan.study.base_row
    published = base.paper if base else {}
    metric = next((column.paper for column in columns if published.get(column.paper)), "")
    changes = {
        row.key: abs(row.paper[metric] / published[metric] - 1) for row in rows if metric and metric in row.paper
    }
    largest = sorted(changes, key=lambda key: -changes[key])
    order = dict.fromkeys([base.key, *largest] if base else largest)
    return dict.fromkeys((row.key for row in rows), len(order)) | {key: at for at, key in enumerate(order)}


def join(chosen: Selected, plan: Plan) -> None:
    """Record that finished runs belong to this table too, because another study may have trained them."""
    store = chosen.store
    if store.queue_db.exists():
        done = [run for run in plan.trainings if run.state in ("finished", "stale")]
        with Queue(store.queue_db) as queue:
            queue.join((run.run_id, member(plan, run)) for run in done)
        keep_rows(chosen, plan, done)


def keep_rows(chosen: Selected, plan: Plan, runs: Iterable[PlannedRun]) -> None:
    """Write the description and the rows of runs to their folders.

    Rows are recorded with the decoding settings of the study, even if the command overrides them.
    """
    own: dict[tuple[str, str], PlannedRun] = {}
    if chosen.own_plan is not None:
        with contextlib.suppress(UserError):  # the study has no valid plan without the command's settings
            own = {(run.run_id, run.row): run for run in chosen.own_plan().trainings}
    with explain_os_errors(f"write to the store {chosen.store.root}"):
        for run in runs:
            row = row_of(plan, own.get((run.run_id, run.row), run), chosen.store)
            if (chosen.store.run_folder(run.run_id) / CONFIG).exists():
                keep_row(chosen.store, run.run_id, row)
            else:
                _describe(chosen.store, run, row)


def row_of(plan: Plan, run: PlannedRun, store: Store) -> TableRow:
    """Return the record of a run's row: its place in the table, evaluations, code trees and differing settings.

    A differing setting has another value in this row than in the record of the run.
    """
    first = spec_of(store, run.run_id, forgiving=True)
    usual = dict(flatten(first.config)) if first else {}
    settings = {name: value for name, value in flatten(run.config) if usual.get(name, value) != value}
    evaluations = {evaluation.set: evaluation.eval_id for evaluation in run.evaluations}
    return TableRow(member(plan, run), evaluations, settings, run.spec.trainer.trees)


def _prepared_key(task: Task, run: PlannedRun) -> str:
    """Return the digest of the settings and code on which `Task.prepare` depends.

    Runs with equal digests share one preparation.
    """
    trainer = run.spec.trainer
    trees = {"code_tree": trainer.tree, "code_base": trainer.base} if trainer.tree else {}
    return digest({**settings_read(run.config, task.prepare_reads), **trees})


def member(plan: Plan, run: PlannedRun) -> Member:
    """Return a run's place in the plan's table."""
    corpus = str(dict(flatten(run.config)).get(CORPUS, ""))
    return Member(plan.study.name, plan.profile, Path(corpus).name, run.row, run.variation.group)


def _job(chosen: Selected, plan: Plan, run: PlannedRun, stale: str, code: Mapping[str, str]) -> Job:
    store = chosen.store
    result = store.result(run.run_id)
    renewed = bool(run.store_state.stale) and stale == "rerun"
    retrain = renewed and TRAINING in run.store_state.stale
    present = code if renewed and not retrain else None
    return Job(
        spec=run.spec,
        train=result is None or retrain or bool(trained_again(chosen, [run])),
        evaluations=run.evaluations,
        renew=_renewed(store, run, present),
        prepared_key=_prepared_key(chosen.task, run),
        memory_gb=memory_gb(chosen.task, run, "cpu"),
        gpu_memory_gb=memory_gb(chosen.task, run, "cuda"),
        devices=1 if run.spec.members else chosen.devices_per_run,
        priority=chosen.priority,
        members=(member(plan, run),),
        rerun_after=result.attempt if result and retrain else 0,
        keeps=() if run.spec.members else union(chosen.task.keeps(run.config), at_steps(run.kept_at)),
        continues=() if run.spec.members else tuple(_shorter(store, run)),
        read_by=run.read_by,
        read_at=run.read_at,
    )


def memory_gb(task: Task, run: PlannedRun, kind: str) -> float:
    """Return the predicted memory of a run. An ensemble needs at least the memory of all its members' weights."""
    weights = 4.0 * (run.spec.num_params or 0) if run.spec.members else 0.0
    return max(task.memory_bytes(run.config, kind), weights) / 1e9


def _renewed(store: Store, run: PlannedRun, code: Mapping[str, str] | None) -> dict[str, int]:
    """Return the stored evaluations to make again: eval_id → the attempt that made the evaluation.

    These are the evaluations whose metrics must be read again. If `code` (the digests of the present code) is given,
    evaluations that other code made are included too.
    """
    found = {}
    for eval_id in run.eval_ids:
        to_read = eval_id in run.store_state.to_read
        made = store.evaluation(run.run_id, eval_id) if code or to_read else None
        if made and (to_read or (code and stale_parts(made, code))):
            found[eval_id] = made.attempt
    return found


def _shorter(store: Store, run: PlannedRun) -> list[str]:
    """Return the runs of the same schedule with fewer steps, longest first.

    The planned run may continue from the checkpoints of these runs.
    """
    mine, steps = run.spec.lineage, run.spec.steps
    if steps is None or not run.config.roles().not_in_lineage:
        return []
    found = []
    for run_id in store.run_ids():
        other = spec_of(store, run_id, forgiving=True)
        if other is not None and other.lineage == mine and (other.steps or 0) < steps:
            found.append((other.steps or 0, run_id))
    return [run_id for _, run_id in sorted(found, reverse=True)]


def _describe(store: Store, run: PlannedRun, row: TableRow) -> None:
    """Write runs/<run_id>/config.json, which describes the run. row: the first row that is recorded for the run."""
    record = {**run.spec.portable.to_json(), "row": asdict(row)}
    path = store.run_folder(run.run_id) / CONFIG
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, record)


def renewed(runs: Iterable[PlannedRun], stale: str) -> list[PlannedRun]:
    """Return the runs that `--stale rerun` trains again, because their training code has changed."""
    return [run for run in runs if stale == "rerun" and TRAINING in run.store_state.stale]


def trained_again(chosen: Selected, runs: Iterable[PlannedRun]) -> list[PlannedRun]:
    """Return the finished runs that kept too few checkpoints for a requested average, best checkpoint or branch.

    Such a run is trained again. Its present result stays until then.
    """
    # The checkpoints of a damaged run are unknown, so damaged runs are left out.
    return [run for run in runs if run.state != "damaged" and lacks_checkpoints(run, chosen.store, chosen.task)]


def say_trained_again(runs: Sequence[PlannedRun]) -> str:
    """Return a message about the runs that are trained again; "" if there are none."""
    if not runs:
        return ""
    steps = sorted({step for run in runs for step in run.read_at})
    what = f"a branch from step {', '.join(map(str, steps))}" if steps else "evaluation.checkpoint"
    return (
        f"{_rows(runs)}: trained again{_cost(runs)}, because the training kept fewer checkpoints than {what} needs. "
        "The scores stay, unless the new weights differ (on another device): then all scores are made again."
    )


def say_renewed(runs: Sequence[PlannedRun], stale: str) -> str:
    """Return a message about the work that `--stale rerun` repeats and its cost; "" if it repeats nothing."""
    if stale != "rerun":
        return ""
    trained = renewed(runs, stale)
    repeated = [f"training and all scores of {_rows(trained)}{_cost(trained)}"] if trained else []
    rest = [run for run in runs if run.store_state.stale and TRAINING not in run.store_state.stale]
    for part in dict.fromkeys(part for run in rest for part in run.store_state.stale):
        repeated.append(f"{part} of {_rows([run for run in rest if part in run.store_state.stale])} without training")
    return f"made again, because the code has changed: {'; '.join(repeated)}" if repeated else ""


def say_read(plan: Plan, runs: Sequence[PlannedRun], stale: str) -> str:
    """Return a message about the metrics that are read again from kept logs; "" if there are none.

    Runs that are trained again are not mentioned.
    """
    trained = {run.run_id for run in renewed(runs, stale)}
    reading = [run for run in runs if run.store_state.to_read and run.run_id not in trained]
    if not reading:
        return ""
    sets = dict.fromkeys(e.set for run in reading for e in run.evaluations if e.eval_id in run.store_state.to_read)
    metrics = [one.column.header for one in plan.study.metrics if one.set in sets] or list(sets)
    return f"{', '.join(metrics)} of {_rows(reading)}: read from the kept logs, without training"


def _rows(runs: Iterable[PlannedRun]) -> str:
    return ", ".join(dict.fromkeys(run.row for run in runs))


def _cost(runs: Iterable[PlannedRun]) -> str:
    """Return the cost of training the runs, in brackets; "" if it is unknown."""
    cost = sum({run.run_id: run.spec.cost for run in runs}.values())
    return f" ({cost:.1e} FLOP)" if cost else ""
