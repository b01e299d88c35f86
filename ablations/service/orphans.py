"""Finished runs of an own task that the study no longer means, because a default or the command has changed."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ablations.plan.planned import Plan, PlannedRun
from ablations.service.members import Members
from ablations.service.run_states import DONE
from ablations.service.selected import Selected
from ablations.study.messages import number, show
from experiments.config import defaults
from experiments.identity import identity_settings
from experiments.store.known_runs import Known, KnownRuns, differing, kind_of


@dataclass(frozen=True)
class Orphan:
    """A finished run of a row and a seed, whose settings are no longer those of the study."""

    run_id: str
    planned: PlannedRun
    was: Mapping[str, Any]  # the settings that it recorded, and the study has otherwise or no longer
    now: Mapping[str, Any]  # the study's values of these, and of those that it did not record


def orphans(chosen: Selected, plan: Plan, runs: Iterable[PlannedRun]) -> list[Orphan]:
    """For each of these runs that is not done, the finished one that is nearest to it."""
    if chosen.task.config_type.setting_roles.frozen_defaults:
        return []
    known, members, meant = KnownRuns(chosen.store), Members(chosen.store), {run.run_id for run in plan.trainings}
    of_rows: dict[str, list[Known]] = {}
    for other in known.finished():
        for row in {m.row for m in members.of(other.run_id) if m[:2] == (plan.study.name, plan.profile)}:
            of_rows.setdefault(row, []).append(other)
    found = []
    for run in runs:
        if run.state not in DONE:
            near = (orphan for orphan in _near(of_rows.get(run.row, ()), run) if orphan.run_id not in meant)
            found += sorted(near, key=lambda orphan: len({*orphan.was, *orphan.now}))[:1]
    return found


def _near(others: Iterable[Known], run: PlannedRun) -> Iterator[Orphan]:
    """Runs of other settings; not those that differ in what their row changes: these were meant otherwise."""
    planned, usual = identity_settings(run.config), defaults(type(run.config))
    kind = kind_of(run.config.task, run.config.seed, run.inputs)
    for other in others:
        names = differing(other.settings, planned, usual) if other.kind == kind else {}
        if names and not run.overrides.keys() & names.keys():
            was = {name: other.settings[name] for name in names if name in other.settings}
            yield Orphan(other.run_id, run, was, {name: planned[name] for name in names if name in planned})


def say_orphans(found: Iterable[Orphan], where: str) -> list[str]:
    """Messages, one for each change; `where`: the words that select the table."""
    by_change: dict[tuple[str, str], list[Orphan]] = {}
    for orphan in found:
        by_change.setdefault((_words(orphan.was), _words(orphan.now)), []).append(orphan)
    lines = []
    for (was, now), those in by_change.items():
        rows = ", ".join(dict.fromkeys(orphan.planned.row for orphan in those))
        lines.append(
            f"{number(len(those), 'finished run')} of {rows} will not be used, because the study has changed: trained "
            f"with {was or 'fewer settings'}, now {now or 'without it'}. If that changes no result, `ablations adopt "
            f"{where} --why …` takes them over; otherwise they are trained again."
        )
    return lines


def _words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {show(value)}" for name, value in settings.items())
