"""List the tables of a store. A table is a study with a profile and a corpus, and one set of settings.

Each run records the tables that it belongs to. The program plans the present study to find out whether the study still
contains the run. The program finds built-in studies, and studies in the folders from which this user queued runs. Runs
that a changed study no longer contains are listed with the changed settings.
"""

import re
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from ablations.planning.plan import Plan, PlannedRun
from ablations.service.run_states import DONE, UNFINISHED, Members
from ablations.service.selected import Selected, Selectors, StoreOptions, choose
from ablations.study.selectors import CORPUS
from ablations.study.study_file import builtin_studies
from experiments.dotted import as_set, defaults, flatten
from experiments.errors import Damaged, UserError
from experiments.identity import code_change_in, identity_settings
from experiments.jobs.queue.queue import Queue
from experiments.messages import number, show
from experiments.store.durable import read_regular
from experiments.store.layout import Store, config_of
from experiments.store.results import RESULT_FILE
from experiments.store.run_names import (
    KnownRun,
    RunNames,
    differing,
    kind_of,
    planned_settings,
    settings_of_known,
    usual_settings,
    with_unknown_change,
)

RUNNING, COMPLETE = "running", "complete"


class Name(NamedTuple):
    """The name of a table, as recorded by its runs."""

    study: str
    profile: str
    corpus: str


@dataclass(frozen=True)
class HeldRun:
    """A run of a table in the store or the queue."""

    run_id: str
    row: str
    state: str  # see `_state`

    @property
    def done(self) -> bool:
        return self.state in DONE


@dataclass(frozen=True)
class StoreTable:
    """A table with runs in a store."""

    name: Name
    runs: tuple[HeldRun, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)  # settings of the runs that differ from the present study
    gone: bool = False  # whether the study no longer has the rows, or trains them on other data
    known: bool = True  # whether the study was found and planned; if not, `settings` and `gone` mean nothing
    changed: float | None = None  # time of the last change, in Unix seconds
    study: str = ""  # name or path of the study; "" if it was not found
    unread: str = ""  # why the study's files could not be used
    selectors: Selectors | None = None  # selectors of this table; None if no study contains it

    @property
    def words(self) -> tuple[str, ...]:
        """The command-line arguments that select the table; empty if no study contains it."""
        return (self.study, *self.selectors.words(whole=True)) if self.selectors else ()

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(run.row for run in self.runs))

    @property
    def finished(self) -> int:
        return sum(run.done for run in self.runs)

    @property
    def state(self) -> str:
        """The state in words: "complete", "running", "3 of 6" or "3 of 6, 1 failed"."""
        counts = Counter(run.state for run in self.runs)
        if counts[RUNNING]:
            return RUNNING
        if self.finished == len(self.runs):
            return COMPLETE
        words = ("waiting", "interrupted", "failed", "cancelled", "damaged")
        others = [f"{counts[word]} {word}" for word in words if counts[word]]
        return ", ".join([f"{self.finished} of {len(self.runs)}", *others])


def store_tables(store_options: StoreOptions, study: str | None = None) -> list[StoreTable]:
    """Return the tables of a store, or only those of `study`. The table that changed last comes first."""
    store = store_options.open()
    members = Members(store)
    named: dict[Name, dict[str, str]] = {}
    for run_id in dict.fromkeys([*members.queued, *store.run_ids()]):
        for member in members.of(run_id):
            if study in (None, member.study):
                named.setdefault(Name(*member[:3]), {})[run_id] = member.row
    paths = _study_paths(store, members)
    found = [
        table for name, runs in named.items() for table in _tables(store_options, store, members, name, runs, paths)
    ]
    return sorted(found, key=lambda table: (-(table.changed or 0.0), table.name, len(table.settings)))


def _tables(
    store_options: StoreOptions,
    store: Store,
    members: Members,
    name: Name,
    runs: Mapping[str, str],
    paths: Mapping[str, list[str]],
) -> Iterator[StoreTable]:
    """Yield the tables with a name: one table for each distinct set of settings that the runs have."""
    selectors, plan, path, unread = None, None, "", []
    if name.study in paths:
        corpora = (str(dict(flatten(config_of(store, run_id, forgiving=True))).get(CORPUS, "")) for run_id in runs)
        corpus = next((corpus for corpus in corpora if corpus), name.corpus)
        selectors = Selectors(profile=name.profile, corpus=None if corpus in ("", "builtin") else corpus)
    if selectors:
        seeds = Counter(runs.values()).most_common(1)[0][1]
        here = replace(selectors, store=store_options.store, state_dir=store_options.state_dir, seeds=seeds)
        for path in paths[name.study]:
            try:
                plan = choose(path, here).plan
                break
            except UserError:  # an unknown profile, a removed corpus, or a mistake in the file
                unread.append(f"{Path(path).name} cannot be used; see why with `ablations plan {path}`")
        if len(unread) > 1:
            unread.insert(0, f"{len(unread)} files are named {name.study}")
    planned = {run.run_id: run for run in plan.trainings} if plan else {}
    of_rows = {run.row: run for run in reversed(planned.values())}  # row → its first planned run
    groups: dict[tuple[bool, tuple[tuple[str, str], ...]], list[str]] = {}
    differences: dict[str, Mapping[str, Any]] = {}
    for run_id, row in runs.items():
        gone = False
        if plan is not None and run_id not in planned:
            differences[run_id] = of_row = _differences(store, run_id, of_rows.get(row))
            gone = not of_row
        key = tuple(sorted((name, repr(value)) for name, value in differences.get(run_id, {}).items()))
        groups.setdefault((gone, key), []).append(run_id)
    for (gone, _), run_ids in groups.items():
        settings = differences.get(run_ids[0], {})
        held = [HeldRun(run_id, runs[run_id], _state(store, members, planned, run_id)) for run_id in run_ids]
        changed = max((time for run_id in run_ids for time in _times(store, members, run_id)), default=None)
        sets = [as_set(name, value) for name, value in settings.items()]
        of_plan = replace(selectors, sets=sets or None) if selectors and plan and not gone else None
        why = "" if plan else "; ".join(unread)
        yield StoreTable(name, tuple(held), settings, gone, plan is not None, changed, path, why, of_plan)


def _differences(store: Store, run_id: str, present: PlannedRun | None) -> Mapping[str, Any]:
    """Return the settings of a run that differ from the settings of its row in the present plan.

    Returns {} if the row was removed, or if only the data differ.
    """
    config = config_of(store, run_id, forgiving=True)
    if present is None or not config:
        return {}
    planned, usual = identity_settings(present.config), defaults(type(present.config))
    known = {*planned, *getattr(present.config, "network_changes", ())}
    recorded = {name: value for name, value in flatten(config) if name in known}
    return {name: recorded.get(name) for name in differing(recorded, planned, usual)}


def _study_paths(store: Store, members: Members) -> dict[str, list[str]]:
    """Return, by the name of each study, the names or paths with which the study can be loaded.

    A built-in study is loaded by its name. Files of other studies are searched in the folders from which this user
    queued runs.
    """
    found = {name: [name] for name in builtin_studies()}
    folders: dict[str, None] = {}
    with Queue(store.queue_db, create=False) as queue:
        for run_id in members.queued:
            try:
                claimed = queue.job(run_id)
            except (Damaged, KeyError):
                continue
            if claimed.signed and claimed.job.spec.folder:
                folders[claimed.job.spec.folder] = None
    for folder in folders:
        for path in sorted(Path(folder).glob("*.toml")):
            try:
                name = tomllib.loads(read_regular(path).decode()).get("name")
            except (OSError, ValueError):
                continue
            if isinstance(name, str) and name not in builtin_studies():
                found.setdefault(name, []).append(str(path))
    return found


def _state(store: Store, members: Members, planned: Mapping[str, PlannedRun], run_id: str) -> str:
    """Return the state of a run in the plan. For a run that is not planned, return its state in the queue or store."""
    queued = members.queued[run_id].state.value if run_id in members.queued else "missing"
    if run_id in planned:
        state = planned[run_id].state
        return queued if state == "missing" and queued == "cancelled" else state
    if queued in UNFINISHED:
        return queued
    try:
        done = store.result(run_id) is not None
    except Damaged:
        return "damaged"
    return "finished" if done else "missing" if queued == "finished" else queued


def _times(store: Store, members: Members, run_id: str) -> Iterator[float]:
    home = store.run_folder(run_id)
    for path in (home / RESULT_FILE, home / "evaluations"):
        if path.exists():
            yield path.stat().st_mtime
    if run_id in members.queued:
        row = members.queued[run_id]
        yield from (time for time in (row.queued, row.started, row.ended) if time is not None)


@dataclass(frozen=True)
class Orphan:
    """A finished run whose settings differ from the present study's settings for the same row and seed."""

    run_id: str
    planned: PlannedRun  # the run of the present study
    was: Mapping[str, Any]  # recorded settings that the study has changed or removed
    now: Mapping[str, Any]  # the study's values of these settings, and settings that the study has added
    trained: float  # time of the result, in Unix seconds
    tree: str = ""  # code tree of the run if version 0.1.0 trained it and its row changes code


def orphans(chosen: Selected, plan: Plan, runs: Iterable[PlannedRun]) -> list[Orphan]:
    """Return for each unfinished run the finished run of the same row with the fewest differences, if there is one."""
    if chosen.task.config_type.setting_roles.frozen_defaults:
        return []
    members, meant = Members(chosen.store), {run.run_id for run in plan.trainings}
    of_rows: dict[str, list[KnownRun]] = {}
    for other in RunNames(chosen.store).finished():
        run_id = other.name.run_id
        for row in {m.row for m in members.of(run_id) if m[:2] == (plan.study.name, plan.profile)}:
            of_rows.setdefault(row, []).append(other)
    found = []
    for run in runs:
        if run.state not in DONE:
            near = (orphan for orphan in _near(of_rows.get(run.row, ()), run, chosen.store))
            near = (orphan for orphan in near if orphan.run_id not in meant)
            found += sorted(near, key=lambda orphan: len({*orphan.was, *orphan.now}))[:1]
    return found


def _near(others: Iterable[KnownRun], run: PlannedRun, store: Store) -> Iterator[Orphan]:
    """Yield the runs among `others` that differ from a planned run only in settings that its row does not change.

    A run that differs in a setting of its row is a different experiment, not the same run with changed defaults.
    """
    trainer = run.spec.trainer
    planned, usual = planned_settings(run.config, trainer), usual_settings(run.config, trainer)
    kind = kind_of(run.config.task, run.config.seed, run.spec.inputs)
    for other in others:
        if other.of_unknown_change:
            same = kind_of(run.config.task, run.config.seed, with_unknown_change(run.spec.inputs, other.tree))
            if code_change_in(run.spec.inputs) and other.kind == same:
                trained = (store.run_folder(other.name.run_id) / RESULT_FILE).stat().st_mtime
                yield Orphan(other.name.run_id, run, {}, {}, trained, tree=other.tree)
            continue
        settings = settings_of_known(run.config, other, usual)
        names = differing(settings, planned, usual) if other.kind == kind else {}
        if names and not run.planned_row.overrides.keys() & names.keys():
            was = {n: settings[n] for n in names if n in settings and n not in other.counted}
            run_id = other.name.run_id
            trained = (store.run_folder(run_id) / RESULT_FILE).stat().st_mtime
            yield Orphan(run_id, run, was, {name: planned[name] for name in names if name in planned}, trained)


def say_orphans(found: Iterable[Orphan]) -> list[str]:
    """Return one message for each set of changes.

    A message names the runs that are not used, and the defaults or parts of the command that have changed since the
    runs were trained.
    """
    by_change: dict[tuple[str, ...], list[Orphan]] = {}
    for orphan in found:
        names = dict.fromkeys([*orphan.was, *orphan.now])
        changes = ("another snapshot",) if orphan.tree else tuple(_change(orphan, name) for name in names)
        by_change.setdefault(changes, []).append(orphan)
    lines = []
    for changes, those in by_change.items():
        if those[0].tree:
            places = ", ".join(f"{orphan.planned.name} (runs/{orphan.run_id})" for orphan in those)
            lines.append(
                f"{number(len(those), 'finished run')} of version 0.1.0 {'is' if len(those) == 1 else 'are'} not "
                f"used: {places}. That version recorded the whole code of a row that changes code, not the change. "
                "The results stay in the store; these rows are trained again."
            )
            continue
        rows = ", ".join(dict.fromkeys(orphan.planned.row for orphan in those))
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(max(orphan.trained for orphan in those)))
        lines.append(
            f"{number(len(those), 'finished run')} of {rows} {'is' if len(those) == 1 else 'are'} not used: "
            f"{'; '.join(changes)} since {since}, when {'it was' if len(those) == 1 else 'they were'} trained. The "
            "earlier results stay in the store and are used again if you undo the change."
        )
    return lines


def _change(orphan: Orphan, name: str) -> str:
    """Describe how a setting has changed since the run."""
    is_command = name == "command" and orphan.planned.spec.trainer.command
    what = "the command" if is_command else f"default {name}"
    if found := re.fullmatch(r"command \{(.+)\}", name):
        what = f"the command's option for {found[1]}"
    if name not in orphan.was:
        return f"{what} {show(orphan.now[name])} was added"
    if name not in orphan.now:
        return f"{what} {show(orphan.was[name])} was removed"
    return f"{what} changed from {show(orphan.was[name])} to {show(orphan.now[name])}"
