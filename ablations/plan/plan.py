"""Study × selection → runs with identities, parameters, cost and state. Trains nothing, imports no torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ablations.plan.branches import steps_kept
from ablations.plan.published import published_names
from ablations.plan.resolve import PlannedRow, resolve
from ablations.study.messages import show
from ablations.study.selectors import Selection
from ablations.study.study import Study
from experiments.config import TaskConfig, total_steps
from experiments.errors import UserError
from experiments.identity import (
    NO_SEED,
    Trunk,
    digest,
    eval_identity,
    imported_in,
    members_in,
    of_imported,
    run_identity,
    trunk_in,
    with_members,
    with_trunk,
)
from experiments.store.adopted import Adopted
from experiments.store.known_runs import Found
from experiments.tasks.base import EvaluationSpec, Task, settings_read


class RunState(NamedTuple):
    """How far a run and its requested evaluations are.

    `word`: missing, waiting, running, finished, failed, stale or damaged. `stale`: what other code has made, where the
    word is stale: TRAINING, and parts of evaluations ("decode", "score").
    """

    word: str
    stale: tuple[str, ...] = ()


StateOf = Callable[[str, list[str]], RunState]
Find = Callable[[TaskConfig, Mapping[str, str]], Found]  # settings and inputs → the run (store/known_runs.py)


def by_name(config: TaskConfig, inputs: Mapping[str, str]) -> Found:
    """The run that settings and inputs name."""
    return Found(run_identity(config, inputs))


@dataclass(frozen=True)
class PlannedEvaluation:
    """One decoding and scoring of a run's weights, with its identity."""

    spec: EvaluationSpec
    eval_id: str


@dataclass(frozen=True)
class PlannedRun:
    """One training of one row with one seed, and its evaluations; or one ensemble, which trains nothing."""

    row: str
    group: str
    label: str
    seed: int  # NO_SEED: an ensemble
    config: TaskConfig
    run_id: str
    inputs: Mapping[str, str]  # digests of what training reads; its members' or its trunk's run_ids too
    evaluations: tuple[PlannedEvaluation, ...]
    num_params: int | None  # None: known only after training; an ensemble has those of all members
    cost: float  # predicted floating-point operations of training, of a branch's own steps; 0: unknown, or an ensemble
    overrides: Mapping[str, Any]  # changes from base, after scaling, by dotted name
    paper: Mapping[str, float]
    state: str  # RunState.word
    stale: tuple[str, ...] = ()  # RunState.stale
    read_by: tuple[EvaluationSpec, ...] = ()  # evaluations of ensembles, which read its checkpoints
    kept_at: tuple[int, ...] = ()  # steps after which rows of the study branch from it: it keeps these checkpoints
    read_at: tuple[int, ...] = ()  # those of them with which planned branches that are not finished begin
    adopted: Adopted | None = None  # on whose word a run of other settings stands for it

    @property
    def members(self) -> tuple[str, ...]:
        """The run_ids of an ensemble's members; () for a training."""
        return members_in(self.inputs)

    @property
    def imported(self) -> bool:
        """Whether it was trained elsewhere; nothing trains it here."""
        return imported_in(self.inputs)

    @property
    def trunk(self) -> Trunk | None:
        """Where a branch begins; None for a training from the start."""
        return trunk_in(self.inputs)

    @property
    def reads(self) -> tuple[str, ...]:
        """The run_ids that must be trained before: an ensemble's members, a branch's trunk."""
        return (*self.members, *([self.trunk.run_id] if self.trunk else []))

    @property
    def own_steps(self) -> int | None:
        """Steps that this run trains itself; None if unknown. Of an ensemble 0."""
        if self.members:
            return 0
        steps = total_steps(self.config)
        return steps if steps is None or self.trunk is None else steps - self.trunk.step

    @property
    def name(self) -> str:
        """The row and the seed, for messages: "base (seed 1)"; of an ensemble the row alone."""
        return self.row if self.members else f"{self.row} (seed {self.seed})"

    @property
    def eval_ids(self) -> list[str]:
        """Identities of the run's evaluations, in order."""
        return [evaluation.eval_id for evaluation in self.evaluations]


@dataclass(frozen=True)
class Plan:
    """All rows and runs of a study under one profile and selection."""

    study: Study
    profile: str
    rows: tuple[PlannedRow, ...]
    runs: tuple[PlannedRun, ...]  # by row in the study's order, then by seed
    notes: tuple[str, ...]  # for the reader of the table: declared values that were replaced, the profile's notes
    paper_keys: tuple[str, ...]  # names of the published numbers that the task's columns can print
    members: tuple[PlannedRun, ...] = ()  # trainings that ensembles and branches among `runs` read, each once
    by_rule: bool = False  # whether the study's rule decides the number of seeds

    def members_of(self, run: PlannedRun) -> list[PlannedRun]:
        """The members of an ensemble, by seed; [] for a training."""
        return [member for member in self.members if member.run_id in run.members]

    def trunk_of(self, run: PlannedRun) -> PlannedRun | None:
        """The run with which a branch begins; None for a training from the start."""
        return next((m for m in self.members if run.trunk and m.run_id == run.trunk.run_id), None)

    @property
    def trainings(self) -> list[PlannedRun]:
        """All runs, and the members that are not among them."""
        known = {run.run_id for run in self.runs}
        return [*self.runs, *(member for member in self.members if member.run_id not in known)]


def plan_study(
    study: Study, selection: Selection, task: Task, store: Path, state_of: StateOf, find: Find = by_name
) -> Plan:
    """Work out the runs of a study.

    store: the store's folder. state_of: looks up a run's state. find: looks up the run of settings.
    Raises UserError for mistakes in the study or the selection (see `resolve`), and for an unreadable corpus.
    """
    rows = resolve(study, selection, task)
    inputs = _Inputs(task, store, find)
    name, profile = study.profile_named(selection.profile)
    kept_at = steps_kept(study, name, profile)
    runs: list[PlannedRun] = []
    members: dict[str, PlannedRun] = {}
    for row in rows:
        if row.variation.imported:
            runs += _imported(study, row, task, store, state_of)
            continue
        if row.trunk is not None:
            trunks = _runs_of(row.trunk, inputs, task, store, state_of)
            branches = _runs_of(row, inputs, task, store, state_of, [run.run_id for run in trunks])
            runs += branches
            for trunk, branch in zip(trunks, branches, strict=True):
                before = members.get(trunk.run_id, replace(trunk, evaluations=()))
                read_at = {*before.read_at, *([row.shared_steps] if branch.state != "finished" else [])}
                members[trunk.run_id] = replace(
                    before,
                    kept_at=kept_at[row.trunk.variation.key],
                    read_at=tuple(sorted(read_at)),
                    **_state(state_of(trunk.run_id, [])),
                )
            continue
        if row.variation.ensemble is None:
            of_row = kept_at.get(row.variation.key, ())
            runs += [replace(run, kept_at=of_row) for run in _runs_of(row, inputs, task, store, state_of)]
            continue
        single = _members(study, row)
        trained = _runs_of(single, inputs, task, store, state_of)
        runs.append(_ensemble(row, trained, state_of))
        for member in trained:
            before = members.get(member.run_id, member)
            read_by = (*before.read_by, *(e.spec for e in member.evaluations))
            overrides = {name: value for name, value in row.overrides.items() if not name.startswith("evaluation.")}
            members[member.run_id] = replace(
                member,
                evaluations=(),
                read_by=read_by,
                overrides=overrides,
                kept_at=kept_at.get(single.variation.key, ()),
                read_at=before.read_at,
                **_state(state_of(member.run_id, [])),
            )
    _refuse_same_runs(runs, study)
    # A profile's notes describe results of its own settings, so they are left out for another corpus or other settings.
    of_profile = () if selection.forced else profile.notes
    notes = (*_notes(rows), *_taken_over(runs), *_on_target(study, name, selection), *of_profile)
    paper_keys = tuple(published_names(study, task))
    by_rule = study.seed_rule is not None and selection.seeds is None
    return Plan(study, name, tuple(rows), tuple(runs), notes, paper_keys, tuple(members.values()), by_rule)


class _Inputs:
    """Digests of the task's training inputs, computed once per corpus, because hashing takes time."""

    def __init__(self, task: Task, store: Path, find: Find) -> None:
        self._task, self._store, self.find = task, store, find
        self._known: dict[str, dict[str, str]] = {}

    def of(self, config: TaskConfig) -> dict[str, str]:
        key = digest(settings_read(config, self._task.inputs_read))
        if key not in self._known:
            self._known[key] = self._task.inputs(config, self._store)
        return self._known[key]


def _runs_of(
    row: PlannedRow, inputs: _Inputs, task: Task, store: Path, state_of: StateOf, trunks: Sequence[str] = ()
) -> list[PlannedRun]:
    """One run per seed. Parameters, cost and evaluations are the same for all seeds of a row.

    trunks: of a branch, the runs with which its own begin, by seed.
    """
    data = inputs.of(row.config)
    specs = task.evaluations(row.config, store)
    num_params, cost = task.num_params(row.config), task.cost(row.config)
    if row.trunk is not None:
        steps = total_steps(row.config) or row.shared_steps
        cost *= (steps - row.shared_steps) / steps
    runs = []
    for place, seed in enumerate(row.seeds):
        config = row.config_of(seed)
        digests = with_trunk(data, Trunk(trunks[place], row.shared_steps)) if trunks else data
        run_id, adopted = inputs.find(config, digests)
        evaluations = tuple(
            PlannedEvaluation(spec, eval_identity(run_id, spec.settings, spec.inputs)) for spec in specs
        )
        state = state_of(run_id, [evaluation.eval_id for evaluation in evaluations])
        runs.append(
            PlannedRun(
                row=row.variation.key,
                group=row.variation.group,
                label=row.variation.label,
                seed=seed,
                config=config,
                run_id=run_id,
                inputs=digests,
                evaluations=evaluations,
                num_params=num_params,
                cost=cost,
                overrides=row.overrides,
                paper=row.variation.paper,
                adopted=adopted,
                **_state(state),
            )
        )
    return runs


def _imported(study: Study, row: PlannedRow, task: Task, store: Path, state_of: StateOf) -> list[PlannedRun]:
    """One run per seed, named by study and row. How its sets were decoded elsewhere is not known here."""
    inputs = of_imported(study.name, row.variation.key)
    sets = [spec.set for spec in task.evaluations(row.config, store)]
    runs = []
    for seed in row.seeds:
        config = row.config_of(seed)
        run_id = run_identity(config, inputs)
        specs = [EvaluationSpec(name, {"imported": name}, {}) for name in sets]
        evaluations = tuple(PlannedEvaluation(spec, eval_identity(run_id, spec.settings, {})) for spec in specs)
        state = state_of(run_id, [evaluation.eval_id for evaluation in evaluations])
        runs.append(
            PlannedRun(
                row=row.variation.key,
                group=row.variation.group,
                label=row.variation.label,
                seed=seed,
                config=config,
                run_id=run_id,
                inputs=inputs,
                evaluations=evaluations,
                num_params=None,
                cost=0.0,
                overrides=row.overrides,
                paper=row.variation.paper,
                **_state(state),
            )
        )
    return runs


def _state(state: RunState) -> dict[str, Any]:
    return {"state": state.word, "stale": state.stale}


def _members(study: Study, ensemble: PlannedRow) -> PlannedRow:
    """The members of an ensemble as a row of the row that it names: the settings are the same but for decoding."""
    about = ensemble.variation.ensemble
    assert about is not None
    of = next(row for row in study.variations if row.key == about.of)
    return replace(ensemble, variation=of, seeds=about.seeds)


def _ensemble(row: PlannedRow, members: Sequence[PlannedRun], state_of: StateOf) -> PlannedRun:
    """The row's one entry. It and its evaluations are named by the members."""
    inputs = with_members(members[0].inputs, [member.run_id for member in members])
    run_id = run_identity(row.config, inputs)
    specs = [evaluation.spec for evaluation in members[0].evaluations]
    evaluations = tuple(PlannedEvaluation(spec, eval_identity(run_id, spec.settings, spec.inputs)) for spec in specs)
    num_params = members[0].num_params
    return PlannedRun(
        row=row.variation.key,
        group=row.variation.group,
        label=row.variation.label,
        seed=NO_SEED,
        config=row.config,
        run_id=run_id,
        inputs=inputs,
        evaluations=evaluations,
        num_params=None if num_params is None else num_params * len(members),
        cost=0.0,
        overrides=row.overrides,
        paper=row.variation.paper,
        **_state(state_of(run_id, [evaluation.eval_id for evaluation in evaluations])),
    )


def _refuse_same_runs(runs: list[PlannedRun], study: Study) -> None:
    """Refuse rows that differ only in settings outside the identities: they would print the same numbers."""
    seen: dict[tuple[str, ...], PlannedRun] = {}
    for run in runs:
        other = seen.setdefault((run.run_id, *run.eval_ids), run)
        if other.row != run.row:
            names = ", ".join(dict.fromkeys([*other.overrides, *run.overrides]))
            raise UserError(
                f'{study.origin}: the rows "{other.row}" and "{run.row}" are the same run (seed {run.seed}): '
                f"their changes ({names}) affect neither training nor a score here. Leave one of them out."
            )


def _notes(rows: list[PlannedRow]) -> list[str]:
    """One sentence per replaced setting, with the rows concerned; one per repeated row."""
    concerned: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        for r in row.replaced:
            concerned.setdefault((r.by, r.name, show(r.value)), []).append(f"{r.row} (declares {show(r.declared)})")
    return [
        *(
            f"{by} sets {name} = {value} in every row, also in {', '.join(k)}."
            for (by, name, value), k in concerned.items()
        ),
        *(f"{', '.join(r.repeated_by)} equals {r.variation.key} and is printed once." for r in rows if r.repeated_by),
    ]


def _taken_over(runs: Sequence[PlannedRun]) -> list[str]:
    """One sentence per word of a user by which runs of other settings stand for planned ones."""
    concerned: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        if run.adopted is not None:
            said = f"by `ablations adopt` on {run.adopted.when}" if run.adopted.when else "by the study's same_as"
            was = ", ".join(f"{name} = {show(value)}" for name, value in run.adopted.was.items()) or "fewer settings"
            concerned.setdefault((f"with {was} and taken over {said}", run.adopted.why), []).append(run.name)
    return [f"{', '.join(names)}: trained {how}: {why.rstrip('.')}." for (how, why), names in concerned.items()]


def _on_target(study: Study, profile: str, selection: Selection) -> list[str]:
    """A target is a number for one text, size and length of training; a profile's is for the profile's own."""
    if not selection.forced or study.rule is None or study.profiles[profile].target is None:
        return []
    given = ", ".join(f"{option} {name}" for name, (_, option) in selection.forced.items())
    return [f"The target of the rule {study.rule} was chosen for the profile {profile} as it is, not for {given}."]


def plan_as_json(plan: Plan) -> list[dict[str, Any]]:
    """The plan for other programs: one object per run, members of ensembles too. Missing published numbers are null."""
    return [
        {
            "row": run.row,
            "members": list(run.members),
            **({"trunk": run.trunk._asdict()} if run.trunk else {}),
            "group": run.group,
            "label": run.label,
            "seed": run.seed,
            "run_id": run.run_id,
            "eval_ids": run.eval_ids,
            "num_params": run.num_params,
            "cost": run.cost,
            "overrides": dict(run.overrides),
            "described": run.config.described(),
            "paper": {key: run.paper.get(key) for key in plan.paper_keys},
            "state": run.state,
            "stale": list(run.stale),
        }
        for run in plan.trainings
    ]
