"""The [guard] of a study in a store: its sealed sets leave the plan, and the ledger gets it with the first runs."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from ablations.planning.planned import Plan, PlannedRun, StateOf
from ablations.planning.runs import state_fields
from ablations.study.messages import number
from ablations.study.study import Study
from experiments.errors import UserError
from experiments.processes.wall import NO_WALL, Wall
from experiments.records import TRAINING
from experiments.store import ledger
from experiments.store.layout import Store
from experiments.store.seals import UNSEAL, Asked, Guard, Seals, relative
from experiments.tasks.load import is_built_in
from reports.results.results import Outcome


def without_sealed(plan: Plan, store: Store, states: StateOf) -> Plan:
    """The plan without evaluations of sealed sets. Raises UserError for a guard that was loosened."""
    study, seals = plan.study, Seals(store)
    if not (study.guard.sealed or seals.guards):
        return plan
    seals.check(_guard(study, store, ()))
    names = {*study.guard.sealed, *seals.names([study.name], study.task, study.folder)}

    def opened(run: PlannedRun) -> PlannedRun:
        shut = tuple(e for e in run.evaluations if seals.closed(names, Asked(e.spec.set, e.spec.inputs, e.eval_id)))
        if not shut:
            return run
        rest = replace(run, evaluations=tuple(e for e in run.evaluations if e not in shut), sealed=shut)
        return replace(rest, **state_fields(states(run.run_id, rest.eval_ids, run.config)))

    runs, members = (tuple(map(opened, of)) for of in (plan.runs, plan.members))
    notes, sets = list(plan.notes), dict.fromkeys(e.spec.set for run in runs for e in run.sealed)
    if sets:
        notes.append(f"sealed: {', '.join(sets)} is neither decoded nor scored before its owner's `ablations unseal`.")
    if lines := [line for line in seals.unsealed if line["study"] == study.name]:
        day = datetime.fromtimestamp(lines[-1]["time"], UTC).strftime("%Y-%m-%d")
        notes.append(f"{', '.join(lines[-1]['sets'])}: unsealed {number(len(lines), 'time')}, last on {day} (UTC).")
    return replace(plan, runs=runs, members=members, notes=tuple(notes))


def record_guard(study: Study, plan: Plan, store: Store) -> None:
    """Add a study's guard to the ledger. Raises UserError for a file that it names and that is not there."""
    if not study.guard.model_fields_set:
        return
    for name in study.guard.files:
        if not ((study.folder or Path()) / name).exists():
            raise UserError(f"{study.origin}, [guard] files: the study's folder has no {name}. Correct the name.")
    contents = {e.spec.inputs["set"] for run in plan.trainings for e in run.sealed if "set" in e.spec.inputs}
    Seals(store).record(_guard(study, store, contents))


def _guard(study: Study, store: Store, contents: Iterable[str]) -> Guard:
    def there(names: Iterable[str]) -> list[str]:
        return sorted(relative(store, (study.folder or Path()) / name) for name in names)

    guard, file = study.guard, [Path(study.origin).name] if study.folder else []
    return {
        "study": study.name, "task": study.task, "folder": relative(store, study.folder),
        "sealed": sorted(guard.sealed), "settings": sorted(guard.settings), "files": there(guard.files),
        "protected": there([*study.protected.paths, *file]), "contents": sorted(contents),
    }  # fmt: skip


def say_guard(study: Study) -> list[str]:
    """What the user should know of a guard's strength here."""
    own = study.guard.model_fields_set and not is_built_in(study.task)
    return [f"{NO_WALL}."] if own and not Wall().holds() else []


def unseal(plan: Plan, store: Store) -> tuple[Sequence[str], Sequence[str]]:
    """Open the sealed evaluations of the rows that are now in the table; returns sets and rows. Raises UserError."""
    shut = {e.eval_id: (run.row, e.spec.set) for run in plan.runs for e in run.sealed}
    if not shut:
        raise UserError(f"Nothing of {plan.study.name} is sealed here. [guard] sealed names the sets to seal.")
    rows, sets = (list(dict.fromkeys(of)) for of in zip(*shut.values(), strict=True))
    record_guard(plan.study, plan, store)
    facts = {"study": plan.study.name, "sets": sets, "of_rows": rows, "evaluations": list(shut)}
    ledger.append(store, UNSEAL, **facts)
    return sets, rows


def foreign_records(outcomes: Iterable[Outcome], store: Store) -> list[str]:
    """One line for each record behind a guarded table that the coordinator took from no attempt in this form."""
    seals, found = Seals(store), dict[str, None]()
    for outcome in outcomes:
        if not (outcome.run.members or outcome.run.imported):
            found |= dict.fromkeys(seals.unknown(outcome.run.run_id, [TRAINING, *outcome.run.eval_ids]))
    return [f"{name}: no attempt made this record as it is now (it was written or changed by hand)" for name in found]
