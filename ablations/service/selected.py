"""Resolve the selectors of a command line to a study with its task, plan and store, or to a file with a table."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

from ablations.planning.plan import Plan, plan_study
from ablations.service.detached import collect_detached
from ablations.service.run_states import DONE, Members, lacks_checkpoints, run_states
from ablations.study.overrides import setting_names
from ablations.study.selectors import CORPUS, Selection, selection
from ablations.study.study import Study, load_study
from experiments.dotted import nested
from experiments.errors import UserError
from experiments.messages import suggestion
from experiments.run_spec import TrainerSpec
from experiments.store.layout import MARKER, Store
from experiments.store.run_names import RunNames
from experiments.tasks.base import Task
from experiments.tasks.columns import Column
from experiments.tasks.load import load_task
from experiments.tuning import trials_of
from model.extensions import added, load

Say = Callable[[str], None]  # prints a line for the user; the modules of this package print only through `Say`


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """The store named on a command line."""

    store: Path = Path("runs")
    state_dir: Path | None = None

    def open(self, *, create: bool = False, missing: bool = False) -> Store:
        """Open the store. missing: treat a store that does not exist as empty. Raises UserError (see `Store.open`)."""
        if not (create or missing) and not (self.store / MARKER).is_file():
            what = "is not a store (it has no store.json)" if self.store.exists() else "does not exist"
            raise UserError(f"The store {self.store.absolute()} {what}. Name the store with --store.")
        return Store.open(self.store, self.state_dir, create=create)

    @property
    def where(self) -> str:
        """The options that select the same store on another command line."""
        return shlex.join(self.store_words)

    @property
    def store_words(self) -> tuple[str, ...]:
        state = ("--state-dir", str(self.state_dir)) if self.state_dir else ()
        return ("--store", str(self.store), *state)


@dataclass(frozen=True, kw_only=True)
class Selectors(StoreOptions):
    """The options that select a table of a study, as typed; None means the study's own choice."""

    profile: str | None = None
    corpus: str | None = None
    rows: str | None = None
    seeds: int | None = None
    sets: list[str] | None = None

    def selection(self) -> Selection:
        """Return the parsed options. Raises UserError for invalid options."""
        return selection(self.profile, self.corpus, self.rows, self.seeds, self.sets or ())

    def words(self, *, whole: bool = False) -> tuple[str, ...]:
        """Return the command-line arguments that select the same table. The corpus is given without its folder.

        whole: include the folder of the corpus, and the store unless it is the default, so that the arguments can be
        pasted in this working directory.
        """
        corpus = self.corpus if whole else self.corpus and Path(self.corpus).name
        options = {"--profile": self.profile, "--corpus": corpus, "--rows": self.rows}
        options["--seeds"] = str(self.seeds) if self.seeds else None
        words = [word for name, value in options.items() if value for word in (name, value)]
        words += [word for item in self.sets or () for word in ("--set", item)]
        return (*words, *(self.store_words if whole and self.where != StoreOptions().where else ()))


@dataclass(frozen=True, kw_only=True)
class SelectedTable:
    """A table selected on a command line, from a store or a bundle."""

    study: Study
    store: Store
    replan: Callable[[], Plan]  # computes the plan with current states
    columns: tuple[Column, ...]
    asked: tuple[str, ...] = ()  # command-line arguments that select this table, without folders
    bundle: str = ""  # for a bundle: which of its numbers were recomputed
    to_paste: str = ""  # the arguments in `asked` with folders and the store, quoted for a shell

    @property
    def store_options(self) -> StoreOptions:
        """The options that open the same store again."""
        return StoreOptions(store=self.store.root, state_dir=self.store.state_dir)

    @property
    def plan(self) -> Plan:
        """The plan with current states. It is computed at each access."""
        return self.replan()


@dataclass(frozen=True, kw_only=True)
class Selected(SelectedTable):
    """A selected table with its task, which can be trained.

    A bundle is never opened as this class, so code that a bundle names never runs.
    """

    task: Task
    own_plan: Callable[[], Plan] | None = None  # plans with the study's decoding settings; None if `plan` has them
    devices_per_run: int = 1
    priority: int = 0


def task_of_study(study: Study) -> Task:
    """Return the task of a study, with the study's columns and trainer. For a command, add the study's settings.

    Raises UserError for invalid settings, and for a metric that the task does not have.
    """
    task = load_task(study.task, str(study.folder or ""), study.python)
    trainer = TrainerSpec(
        command=study.command,
        patterns=tuple(tuple(metric.reading) for metric in study.metrics if metric.pattern),
        progress=study.progress,
        links=tuple(study.links),
        globs=tuple(study.code),
        tree=study.code_tree,
    )
    try:
        task = task.with_settings(nested(study.base), trainer)
    except UserError as error:
        raise UserError(f"{study.origin}: {error}") from None
    for name in [metric.name for metric in study.metrics] if task.metrics else ():
        if not any(fnmatch(name, known) for known in task.metrics):
            what = f'{study.origin}, [[metric]] name = "{name}": the task {study.task} has no such metric.'
            raise UserError(f"{what} {suggestion(name, task.metrics, 'metrics')}")
    return task.with_columns([metric.column for metric in study.metrics]) if study.metrics else task


def choose(study_name: str, selectors: Selectors, many: bool = True, *, there: bool = False) -> Selected:
    """Return the table that a study and selectors select. Never creates a store.

    many: accept more than 10,000 rows. Commands that start work pass the user's --yes. there: raise UserError if the
    store does not exist. Raises UserError also for mistakes in the study or in the selectors.
    """
    chosen = selectors.selection()
    study = load_study(study_name, many)
    task = task_of_study(study)
    if selectors.corpus is not None and CORPUS not in setting_names(task.config_type):
        raise UserError(
            f"--corpus: the study {study.name} has no corpus, because its trainer reads the data itself. Leave out "
            "--corpus."
        )
    store = selectors.open(missing=not there)
    collect_detached(store)

    asked = (Path(study_name).name, *selectors.words())
    paste = shlex.join([study_name, *selectors.words(whole=True)])
    selected = Selected(
        study=study,
        task=task,
        store=store,
        replan=lambda: plan_with_states(study, chosen, task, store),
        columns=task.columns,
        asked=asked,
        to_paste=paste,
    )
    kept = {name: value for name, value in chosen.overrides.items() if not _decoding(name)}
    if kept == chosen.overrides:
        return selected
    return replace(selected, own_plan=lambda: plan_with_states(study, replace(chosen, overrides=kept), task, store))


def _decoding(name: str) -> bool:
    """Return whether a setting controls how sets are decoded and scored. The choice of sets does not count."""
    return name.startswith("evaluation.") and name != "evaluation.sets"


def plan_with_states(study: Study, selection: Selection, task: Task, store: Store) -> Plan:
    """Return the plan of a study with current states. Raises UserError as `plan_study` does.

    A finished member of an ensemble gets the state missing if it kept too few checkpoints for the ensemble's
    evaluations. A finished parent run gets this state if it lacks the checkpoint with which a branch begins.
    """
    states, find = run_states(store, task), RunNames(store, _of_study(study, store)).find
    plan = plan_study(study, selection, task, store.root, states, find)
    asked = {run_id for run in plan.runs if run.state not in DONE for run_id in run.spec.reads}
    members = [
        replace(member, store_state=member.store_state._replace(state="missing"))
        if member.run_id in asked and member.state in DONE and lacks_checkpoints(member, store, task)
        else member
        for member in plan.members
    ]
    return replace(plan, members=tuple(members))


def _of_study(study: Study, store: Store) -> Callable[[str], bool]:
    """Return a function that tests whether a run belongs to the study or to its tuning.

    The function reads the queue at its first call.
    """
    members = cache(lambda: Members(store))
    names = (study.name, trials_of(study.name))
    return lambda run_id: any(member.study in names for member in members().of(run_id))


@dataclass(frozen=True, kw_only=True)
class Queueing:
    """The options that control how the runs of a table are queued, as typed."""

    devices_per_run: int = 1
    priority: int = 0
    stale: str = "keep"
    yes: bool = False

    def choose(self, study: str, selectors: Selectors) -> Selected:
        """Return the selected table with these options. Raises UserError (see the function `choose`)."""
        chosen = choose(study, selectors, many=self.yes)
        return replace(chosen, devices_per_run=self.devices_per_run, priority=self.priority)


def choose_table(study_name: str, selectors: Selectors, say: Say) -> SelectedTable:
    """Return the selected table, for commands that start no runs. STUDY may be a file with a table (`open_table`)."""
    if not holds_table(study_name):
        return choose(study_name, selectors, there=True)
    selected = selectors.profile, selectors.corpus, selectors.rows, selectors.seeds
    if selected != (None,) * 4 or selectors.sets:
        raise UserError(f"{study_name} contains a single table. Leave out the selectors.")
    return open_table(Path(study_name), say)


# Paths of the opened files. If an unexpected error occurs, the message names them, because they may be its cause.
opened_archives: list[str] = []


def holds_table(name: str) -> bool:
    """Return whether an extra can open the named file as a table, judged by the ending of the name."""
    return name.endswith(tuple(added("archives")))


def open_table(path: Path, say: Say) -> SelectedTable:
    """Open a file with a table. Raises UserError if it cannot be opened."""
    opener = next(place for ending, place in added("archives").items() if path.name.endswith(ending))
    table: SelectedTable = load(opener)(path, say)
    opened_archives.append(str(path))
    return table
