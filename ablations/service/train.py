"""Train the runs of a plan, for `ablations run` and for `ablations.run` in Python. The callers print the table.

This module also prepares the dry run of `--smoke`.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ablations.planning.plan import Plan, PlannedRun
from ablations.service.coordination import WorkOptions, complete_mlflow, track_ended
from ablations.service.enqueue import (
    enqueue,
    join,
    prepare,
    say_read,
    say_renewed,
    say_trained_again,
    trained_again,
    wanted,
)
from ablations.service.forecast import refuse_above
from ablations.service.gpu_sharing import sharing_lines
from ablations.service.preflight import refuse, warnings
from ablations.service.selected import Say, Selected
from ablations.service.store_tables import orphans, say_orphans
from experiments.config.task_config import TaskConfig
from experiments.dotted import flatten, nested
from experiments.errors import UserError
from experiments.identity import (
    ParentRun,
    with_members,
    with_parent_run,
    without_runs,
)
from experiments.jobs.coordinator.reporter import Summary
from experiments.jobs.queue.job import State
from experiments.jobs.queue.queue import Queue
from experiments.messages import number
from experiments.run_spec import EvaluationSpec, run_spec
from experiments.run_state import RunState
from experiments.store.durable import folder_beside
from experiments.store.layout import Store
from experiments.store.run_names import named_by_of, run_name
from experiments.store.trees import TREES
from experiments.tasks.base import Progress


def train(
    chosen: Selected,
    stale: str,
    work_on: Callable[[Plan, list[PlannedRun]], Summary],
    progress: Progress,
    say: Say,
    queued: bool = False,
) -> Summary:
    """Queue the runs of a selection that have no valid results, and work on them.

    stale: see enqueue.wanted. work_on: the function that works on the queued runs of a plan. queued: if true, the runs
    were queued before. They are not queued again, because a user may have cancelled some of them.
    """
    plan, store = chosen.plan, chosen.store
    runs = wanted(plan, stale)
    summary = Summary()
    if runs:
        if not queued:
            queue_runs(chosen, plan, runs, stale, progress, say)
        if others := len(_waiting(store).difference(run.run_id for run in plan.trainings)):
            say(f"{number(others, 'queued run')} of other selections not started; train with `ablations work`")
        summary = work_on(plan, runs)
        if summary.left:  # count only these runs, because other runs may belong to another user
            summary = replace(summary, left=len(_waiting(store).intersection(run.run_id for run in runs)))
    else:
        join(chosen, plan)
        track_ended(store)
        others = sum(run.state == "stale" for run in plan.trainings)
        kept = f"; {others} by other code, kept (train again with --stale rerun)" if others else ""
        say(f"nothing to train: all {number(len(plan.trainings), 'run')} done{kept}")
    if not summary.interrupted:
        complete_mlflow(store, say)
    return summary


def _waiting(store: Store) -> set[str]:
    with Queue(store.queue_db, create=False) as queue:
        return {run_id for run_id, state in queue.states().items() if state is State.WAITING}


def queue_runs(
    chosen: Selected, plan: Plan, runs: list[PlannedRun], stale: str, progress: Progress, say: Say
) -> dict[str, int]:
    """Prepare the inputs of these runs and queue them. Raises UserError (see `prepare`).

    Returns the numbers of runs that are done, that this call queued, and that were queued before.
    """
    made_again = [say_trained_again(trained_again(chosen, runs)), say_renewed(runs, stale), say_read(plan, runs, stale)]
    for note in filter(None, [*plan.notes, *say_orphans(orphans(chosen, plan, runs)), *made_again]):
        say(f"note: {note}")
    prepare(chosen, runs, progress)
    added = enqueue(chosen, plan, runs, stale)
    join(chosen, plan)
    asked, every = {run.run_id for run in runs}, plan.trainings
    left = sum(run.run_id in asked for run in every)
    counts = {"done": len(every) - left, "queued_now": added, "queued_before": left - added}
    kinds = Counter(run.state_in_words for run in runs if run.state != "waiting")
    kinds_in_words = "; ".join(f"{count} {kind}" for kind, count in kinds.items())
    say(f"{queued_in_words(counts)}{f' ({kinds_in_words})' if kinds.keys() - {'missing'} else ''}")
    return counts


def queued_in_words(counts: Mapping[str, int]) -> str:
    """Return a text such as "6 runs queued" or "20 runs: 12 done, 5 queued, 3 already queued"."""
    if counts["queued_now"] == sum(counts.values()):
        return f"{number(counts['queued_now'], 'run')} queued"
    words = {"done": "done", "queued_now": "queued", "queued_before": "already queued"}
    parts = ", ".join(f"{count} {words[name]}" for name, count in counts.items() if count)
    return f"{number(sum(counts.values()), 'run')}: {parts}"


def check(
    chosen: Selected, working: WorkOptions, *, stale: str, max_hours: float | None, progress: Progress, say: Say
) -> None:
    """Raise UserError if runs cannot run on the devices, or would take longer than `max_hours`. Print warnings.

    The devices of a cluster are not checked.
    """
    here = working.engine == "local"
    todo = wanted(chosen.plan, stale)
    if here:
        refuse(chosen, todo, working.slots)
        for warning in warnings(chosen, todo, working.slots):
            say(f"note: {warning}")
        for line in sharing_lines(chosen, chosen.plan, todo, working.slots):
            say(line)
    if max_hours is not None and todo:
        say(refuse_above(max_hours, chosen, todo, working.slots, progress, here=here, stale=stale))


SMOKE_STEPS, EXAMPLES = 2, 2
_CHECKPOINT, _PRECISION = "evaluation.checkpoint", "training.precision"


@dataclass(frozen=True)
class Smoke:
    """A shortened table, queued in a temporary store."""

    store: Store
    runs: tuple[PlannedRun, ...]

    def failed(self) -> dict[str, str]:
        """Return the rows that failed or were not run, with the reason."""
        with Queue(self.store.queue_db) as queue:
            states = {row.run_id: row for row in queue.status()}
        ended = {run.row: states[run.run_id] for run in self.runs}
        return {
            row: status.error or status.held or status.state.value
            for row, status in ended.items()
            if status.state is not State.FINISHED
        }


@contextlib.contextmanager
def smoke(chosen: Selected, progress: Progress) -> Iterator[Smoke]:
    """Queue the first seed of every row with SMOKE_STEPS steps, in a temporary store inside the chosen store.

    Corpora are prepared in the chosen store and stay there. Raises UserError if the task names no setting for its
    steps, or if `prepare` refuses a run.
    """
    whole = chosen.plan
    whole = replace(whole, runs=tuple(run for run in whole.runs if not run.spec.imported))
    plan = shortened(chosen, whole)
    prepare(chosen, whole.trainings, progress)
    with folder_beside(chosen.store.root, ".smoke-") as folder:
        store = Store.open(folder)
        store.corpora.rmdir()
        store.corpora.symlink_to(chosen.store.corpora)
        (store.root / TREES).symlink_to(chosen.store.root / TREES)
        enqueue(replace(chosen, store=store, priority=0), plan, plan.trainings, "keep", limit=EXAMPLES)
        yield Smoke(store, tuple(plan.trainings))


def shortened(chosen: Selected, plan: Plan) -> Plan:
    """Return the plan with one seed of each row and SMOKE_STEPS steps. The shortened runs get new run_ids."""
    trainings = {run.run_id: _short(chosen, run) for run in plan.trainings if not run.spec.reads}
    trainings |= {
        run.run_id: _short(chosen, run, trainings[run.spec.parent_run.run_id].run_id)
        for run in plan.trainings
        if run.spec.parent_run
    }
    runs = [
        _ensemble(run, [trainings[run_id] for run_id in run.spec.members])
        if run.spec.members
        else trainings[run.run_id]
        for run in reversed({run.row: run for run in reversed(plan.runs)}.values())  # the first seed of each row
    ]
    members = [trainings[run.run_id] for run in plan.members]
    return replace(plan, runs=tuple(runs), members=tuple(members))


def _short(chosen: Selected, run: PlannedRun, parent_run: str = "") -> PlannedRun:
    """Return the run with SMOKE_STEPS steps. Its last weights are scored, because no checkpoints can be averaged.

    bf16 is replaced by auto, so that a laptop can try a study for a GPU. No number of a dry run is kept, so its
    precision does not matter. parent_run: the shortened parent run of a branch. The branch begins one step before the
    end of the parent run.
    """
    settings, name = dict(flatten(run.config)), run.config.setting_roles.steps
    if not name or name not in settings:
        raise UserError(
            f"--smoke: the task {run.config.task} does not name the setting of its training steps (docs/own-task.md)."
        )
    settings |= {name: SMOKE_STEPS} | ({_CHECKPOINT: "last"} if _CHECKPOINT in settings else {})
    if settings.get(_PRECISION) == "bf16":
        settings[_PRECISION] = "auto"
    config = type(run.config).from_mapping(nested(settings))
    sets = {e.set for e in run.evaluations}
    specs = [s for s in chosen.task.evaluations(config, chosen.store.root) if s.set in sets] if sets else []
    read_by = tuple(replace(e, settings={**e.settings, "checkpoint": "last"}) for e in run.read_by)
    inputs, at = run.spec.inputs, (SMOKE_STEPS - 1,)
    if parent_run:
        inputs = with_parent_run(without_runs(inputs), ParentRun(parent_run, *at))
    kept_at, read_at = at if run.kept_at else (), at if run.read_at else ()
    short = replace(run, read_by=read_by, kept_at=kept_at, read_at=read_at)
    return _named(short, config, inputs, specs)


def _ensemble(run: PlannedRun, members: Sequence[PlannedRun]) -> PlannedRun:
    """Return the ensemble of shortened members."""
    inputs = with_members(members[0].spec.inputs, [member.run_id for member in members])
    config = members[0].config.model_copy(update={"seed": run.config.seed})
    specs = [replace(e, settings={**e.settings, "checkpoint": "last"}) for e in run.evaluations]
    return _named(run, config, inputs, specs)


def _named(
    run: PlannedRun, config: TaskConfig, inputs: Mapping[str, str], specs: Sequence[EvaluationSpec]
) -> PlannedRun:
    """Return the run with other settings and inputs. Its run_id follows from them, and its state is missing."""
    name = run_name(config, inputs, run.spec.trainer)
    spec = run_spec(
        config,
        name.run_id,
        inputs,
        run.spec.trainer,
        named_by=named_by_of(name),
        num_params=run.spec.num_params,
        folder=run.spec.folder,
        python=run.spec.python,
    )
    evaluations = tuple(evaluation.named(spec.run_id) for evaluation in specs)
    row = replace(run.planned_row, config=config)
    return replace(run, spec=spec, planned_row=row, store_state=RunState(), evaluations=evaluations, added={})
