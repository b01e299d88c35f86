"""`ablations run --smoke`: two steps and two sentences of every row, in a store of its own that is removed again."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ablations.plan.planned import Plan, PlannedEvaluation, PlannedRun
from ablations.service.enqueue import enqueue, prepare
from ablations.service.selected import Selected
from ablations.study.overrides import nested
from experiments.config import flatten
from experiments.errors import UserError
from experiments.identity import Trunk, eval_identity, run_identity, with_members, with_trunk, without_runs
from experiments.jobs.queue.queue import Queue
from experiments.jobs.queue.states import State
from experiments.store.durable import folder_beside
from experiments.store.layout import Store
from experiments.tasks.base import EvaluationSpec, Progress

STEPS, EXAMPLES = 2, 2
_CHECKPOINT, _PRECISION = "evaluation.checkpoint", "training.precision"


@dataclass(frozen=True)
class Smoke:
    """A table in small, queued in a store of its own."""

    store: Store
    runs: tuple[PlannedRun, ...]

    def failed(self) -> dict[str, str]:
        """row → why it failed, or was not run."""
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
    """The first seed of every row with STEPS steps, in a store inside the chosen one. Corpora are prepared and kept.

    Raises UserError for a task that names no setting for its steps, and for what `prepare` refuses.
    """
    whole = chosen.plan
    whole = replace(whole, runs=tuple(run for run in whole.runs if not run.imported))
    plan = shortened(chosen, whole)
    prepare(chosen, whole.trainings, progress)
    with folder_beside(chosen.store.root, ".smoke-") as folder:
        store = Store.open(folder)
        store.corpora.rmdir()
        store.corpora.symlink_to(chosen.store.corpora)
        enqueue(replace(chosen, store=store, priority=0), plan, plan.trainings, "keep", limit=EXAMPLES)
        yield Smoke(store, tuple(plan.trainings))


def shortened(chosen: Selected, plan: Plan) -> Plan:
    """The plan with one seed of each row and STEPS steps; identities follow."""
    trainings = {run.run_id: _short(chosen, run) for run in plan.trainings if not run.reads}
    trainings |= {
        run.run_id: _short(chosen, run, trainings[run.trunk.run_id].run_id) for run in plan.trainings if run.trunk
    }
    runs = [
        _ensemble(run, [trainings[run_id] for run_id in run.members]) if run.members else trainings[run.run_id]
        for run in _first_seeds(plan.runs)
    ]
    members = [trainings[run.run_id] for run in plan.members]
    return replace(plan, runs=tuple(runs), members=tuple(members))


def _first_seeds(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    return list({run.row: run for run in reversed(runs)}.values())[::-1]


def _short(chosen: Selected, run: PlannedRun, trunk: str = "") -> PlannedRun:
    """The run with STEPS steps. Its last weights are scored: so few steps leave nothing to average.

    No number is kept, so bf16 is used only where the device has instructions for it: a laptop tries a study for a GPU.
    trunk: of a branch, the short run with which it begins, one step before the end.
    """
    settings, name = dict(flatten(run.config)), run.config.setting_roles.steps
    if not name or name not in settings:
        raise UserError(
            f"--smoke: the task {run.config.task} names no setting for its training steps (docs/own-task.md)."
        )
    settings |= {name: STEPS} | ({_CHECKPOINT: "last"} if _CHECKPOINT in settings else {})
    if settings.get(_PRECISION) == "bf16":
        settings[_PRECISION] = "auto"
    config = type(run.config).from_mapping(nested(settings))
    specs = chosen.task.evaluations(config, chosen.store.root) if run.evaluations else []
    read_by = tuple(replace(e, settings={**e.settings, "checkpoint": "last"}) for e in run.read_by)
    inputs = with_trunk(without_runs(run.inputs), Trunk(trunk, STEPS - 1)) if trunk else run.inputs
    at = (STEPS - 1,)
    kept_at, read_at = at if run.kept_at else (), at if run.read_at else ()
    short = replace(run, config=config, cost=0.0, read_by=read_by, inputs=inputs, kept_at=kept_at, read_at=read_at)
    return _named(short, run_identity(config, inputs), specs)


def _ensemble(run: PlannedRun, members: Sequence[PlannedRun]) -> PlannedRun:
    inputs = with_members(members[0].inputs, [member.run_id for member in members])
    config = members[0].config.model_copy(update={"seed": run.config.seed})
    specs = [replace(e.spec, settings={**e.spec.settings, "checkpoint": "last"}) for e in run.evaluations]
    return _named(replace(run, inputs=inputs, config=config), run_identity(config, inputs), specs)


def _named(run: PlannedRun, run_id: str, specs: Sequence[EvaluationSpec]) -> PlannedRun:
    """The run under an identity, with nothing of it done."""
    evaluations = tuple(PlannedEvaluation(spec, eval_identity(run_id, spec.settings, spec.inputs)) for spec in specs)
    return replace(run, run_id=run_id, evaluations=evaluations, state="missing", stale=())
