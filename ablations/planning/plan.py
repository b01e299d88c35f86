"""Study × selection → plan, with notes for the reader of its table."""

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

from ablations.planning.match import matched
from ablations.planning.planned import Find, Plan, PlannedRow, PlannedRun, StateOf
from ablations.planning.resolve import published_names, resolve
from ablations.planning.runs import Inputs, ensemble_of, imported_runs, members_of, runs_of, steps_kept
from ablations.study.selectors import Selection
from ablations.study.study import Study
from experiments.command_words import names
from experiments.dotted import flatten, nested
from experiments.errors import UserError
from experiments.messages import show
from experiments.store.run_names import plain_name
from experiments.tasks.base import Task

AUTO = "auto"


def plan_study(
    study: Study, selection: Selection, task: Task, store: Path, state_of: StateOf, find: Find = plain_name
) -> Plan:
    """Work out the runs of a study.

    store: the store's folder. state_of: looks up a run's state. find: looks up the run of settings.
    Raises UserError for mistakes in the study or the selection (see `resolve`), and for an unreadable corpus.
    """
    study, of_match = matched(study, selection, task)
    rows, of_settled = settled(resolve(study, selection, task), study, selection, task)
    inputs = Inputs(task, store, find)
    name, profile = study.profile_named(selection.profile)
    kept_at = steps_kept(study, name, profile)
    runs: list[PlannedRun] = []
    members: dict[str, PlannedRun] = {}
    for row in rows:
        if row.variation.imported:
            runs += imported_runs(study, row, task, store, state_of, find)
            continue
        if row.parent_run is not None:
            parent_runs = runs_of(row.parent_run, inputs, task, store, state_of)
            branches = runs_of(row, inputs, task, store, state_of, [run.run_id for run in parent_runs])
            runs += branches
            for parent_run, branch in zip(parent_runs, branches, strict=True):
                before = members.get(parent_run.run_id, replace(parent_run, evaluations=()))
                read_at = {*before.read_at, *([row.shared_steps] if branch.state != "finished" else [])}
                members[parent_run.run_id] = replace(
                    before,
                    kept_at=kept_at[row.parent_run.variation.key],
                    read_at=tuple(sorted(read_at)),
                    store_state=state_of(parent_run.run_id, [], parent_run.spec.trainer),
                )
            continue
        if row.variation.ensemble is None:
            of_row = kept_at.get(row.variation.key, ())
            runs += [replace(run, kept_at=of_row) for run in runs_of(row, inputs, task, store, state_of)]
            continue
        single = members_of(study, row)
        trained = runs_of(single, inputs, task, store, state_of)
        runs.append(ensemble_of(row, trained, state_of))
        for member in trained:
            before = members.get(member.run_id, member)
            read_by = (*before.read_by, *member.evaluations)
            overrides = {name: value for name, value in row.overrides.items() if not name.startswith("evaluation.")}
            members[member.run_id] = replace(
                member,
                evaluations=(),
                read_by=read_by,
                planned_row=replace(single, overrides=overrides),
                kept_at=kept_at.get(single.variation.key, ()),
                read_at=before.read_at,
                store_state=state_of(member.run_id, [], member.spec.trainer),
            )
    _refuse_same_runs(runs, study)
    # A profile's notes describe results of its own settings, so they are left out for another corpus or other settings.
    of_profile = () if selection.forced else profile.notes
    notes = (
        *filter(None, [study.code_note, study.trees_note]),
        *of_match,
        *of_settled,
        *of_refused(rows),
        *of_settings(rows),
        *of_added(runs),
        *of_seeds(study, rows),
        *of_profile,
    )
    paper_keys = tuple(published_names(study, task))

    def of_study(run: PlannedRun) -> PlannedRun:
        return replace(run, spec=replace(run.spec, folder=str(study.folder or ""), python=study.python))

    of_plan, read = tuple(map(of_study, runs)), tuple(map(of_study, members.values()))
    return Plan(study, name, tuple(rows), of_plan, notes, paper_keys, read)


def settled(
    rows: list[PlannedRow], study: Study, selection: Selection, task: Task
) -> tuple[list[PlannedRow], list[str]]:
    """Replace "auto" in settings that depend on the whole table. Returns the rows, and a note on each such setting.

    The values are the same whichever rows are selected.
    """
    notes = []
    for name in task.settled_for_table:
        asks = attrgetter(name)
        if not any(asks(row.config) == AUTO for row in rows):
            continue
        every = resolve(study, replace(selection, rows=()), task) if selection.rows else rows
        configs = {row.variation.key: row.config for row in every if asks(row.config) == AUTO}
        value, note = task.for_table(name, configs)
        notes.append(note)
        rows = [_with(row, name, value) for row in rows]
    return rows, notes


def _with(row: PlannedRow, name: str, value: object) -> PlannedRow:
    """The row with a value in place of "auto"; a branch's parent too."""
    settings = dict(flatten(row.config))
    parent_run = row.parent_run and _with(row.parent_run, name, value)
    if settings[name] != AUTO:
        return replace(row, parent_run=parent_run)
    config = type(row.config).from_mapping(nested({**settings, name: value}))
    return replace(row, config=config, parent_run=parent_run)


def _refuse_same_runs(runs: list[PlannedRun], study: Study) -> None:
    """Refuse rows that differ only in settings outside the identities: they would print the same numbers."""
    seen: dict[tuple[str, ...], PlannedRun] = {}
    for run in runs:
        other = seen.setdefault((run.run_id, *run.eval_ids), run)
        if other.row != run.row:
            names = ", ".join(dict.fromkeys([*other.planned_row.overrides, *run.planned_row.overrides]))
            raise UserError(
                f'{study.origin}: the rows "{other.row}" and "{run.row}" are the same run (seed {run.seed}): '
                f"their changes ({names}) affect neither training nor a score here. Leave one of them out."
            )


# --- Notes on the plan, for the reader of its table


def of_refused(rows: list[PlannedRow]) -> list[str]:
    """One sentence per row whose code cannot be made now."""
    return [
        f"{row.variation.key} cannot be trained now; results that it has are of its change as it was applied then. "
        f"{row.variation.refused}"
        for row in rows
        if row.variation.refused
    ]


def of_settings(rows: list[PlannedRow]) -> list[str]:
    """One sentence per replaced setting, with the rows concerned; one per repeated row."""
    concerned: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        for r in row.replaced:
            said = f"{row.variation.key} (declares {show(r.declared)})"
            concerned.setdefault((r.by, r.name, show(r.value)), []).append(said)
    return [
        *(
            f"{by} sets {name} = {value} in every row, also in {', '.join(k)}."
            for (by, name, value), k in concerned.items()
        ),
        *(f"{', '.join(r.repeated_by)} equals {r.variation.key} and is printed once." for r in rows if r.repeated_by),
    ]


def of_added(runs: Sequence[PlannedRun]) -> list[str]:
    """One note per setting that was added to a trainer after some runs: the rows, and the value that they count as."""
    concerned: dict[tuple[str, str], dict[str, None]] = {}
    for run in runs:
        if run.added and run.state in ("finished", "stale"):
            values = ", ".join(f"{name} = {show(value)}" for name, value in run.added.items())
            concerned.setdefault((", ".join(run.added), values), {})[run.row] = None
    return [
        f"{', '.join(rows)}: trained without {names}, and counted as {values}."
        for (names, values), rows in concerned.items()
    ]


def of_seeds(study: Study, rows: list[PlannedRow]) -> list[str]:
    """A note on a command without {seed}: it may ignore the seed."""
    if not study.command or {"seed", "settings", "settings.yaml"} & set(names(study.command)):
        return []
    several = any(len(row.seeds) > 1 for row in rows)
    return [
        "The command has no {seed}: unless the script reads the variable ABLATIONS_SEED, its seeds are repeats of one "
        "training, and n counts these repeats."
    ] * several
