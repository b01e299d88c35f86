"""What the selectors of a command line mean: one study, its task and plan in one store."""

import atexit
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import typer

from ablations.plan.plan import Plan, plan_study
from ablations.service.collect_detached import collect_detached
from ablations.service.run_states import run_states
from ablations.study.overrides import nested
from ablations.study.selectors import selection
from ablations.study.study import Study, load_study
from experiments.errors import UserError
from experiments.store.layout import Store
from experiments.tasks.base import Column, Task
from experiments.tasks.load import load_task
from reports.trust.bundles.archive import SUFFIX
from reports.trust.bundles.read import read_bundle

opened_bundles: list[str] = []  # by this process: what fails then may be their fault


@dataclass(frozen=True, kw_only=True)
class SelectedTable:
    """A table that a command line selects, of a store or of a bundle."""

    study: Study
    store: Store
    replan: Callable[[], Plan]  # with the states as they are now
    columns: tuple[Column, ...]
    asked: tuple[str, ...] = ()  # the study and its selectors as words of a command line, without paths

    @property
    def plan(self) -> Plan:
        return self.replan()


@dataclass(frozen=True, kw_only=True)
class Selected(SelectedTable):
    """The same with its task: what can be trained. A bundle gives none, whatever module its study names."""

    task: Task
    devices_per_run: int = 1  # 0: as many as shorten the whole
    priority: int = 0


def task_of(study: Study) -> Task:
    """The study's task, with the columns and, for a command, the settings that the study declares."""
    task = load_task(study.task, str(study.folder or ""))
    declared = nested(study.base) | ({"command": study.command} if study.command else {})
    try:
        task = task.with_settings(declared)
    except UserError as error:
        raise UserError(f"{study.origin}: {error}") from None
    return task.with_columns([metric.column for metric in study.metrics]) if study.metrics else task


def choose(
    study_name: str,
    profile: str | None,
    corpus: str | None,
    rows: str | None,
    seeds: int | None,
    sets: list[str] | None,
    store_dir: Path,
    state_dir: Path | None,
    many: bool = True,
) -> Selected:
    """Resolve the selectors; reads the store if there is one, and makes none. Raises UserError.

    Verbs that begin work leave `many` to the user's --yes: over 10,000 rows are refused without it.
    """
    chosen = selection(profile, corpus, rows, seeds, sets or ())
    study = load_study(study_name, many)
    task = task_of(study)
    store = Store.open(store_dir, state_dir, create=False)
    collect_detached(store)

    def replan() -> Plan:
        return plan_study(study, chosen, task, store.root, run_states(store, task))

    asked = _asked(study_name, profile, corpus, rows, seeds, sets)
    columns = tuple(task.columns)
    return Selected(study=study, task=task, store=store, replan=replan, columns=columns, asked=asked)


def where(store: Path, state_dir: Path | None) -> str:
    """The options that name the same store in another command."""
    return f"--store {store}" + (f" --state-dir {state_dir}" if state_dir else "")


def device_count(text: str) -> int:
    """Of --devices-per-run; 0 for auto. Raises UserError for anything else."""
    if text == "auto":
        return 0
    if not text.isdecimal() or not int(text):
        raise UserError(f"--devices-per-run {text}: write a number from 1, or auto.")
    return int(text)


def choose_table(
    study_name: str,
    profile: str | None,
    corpus: str | None,
    rows: str | None,
    seeds: int | None,
    sets: list[str] | None,
    store_dir: Path,
    state_dir: Path | None,
) -> SelectedTable:
    """As `choose`, for verbs that only read: STUDY may also be a bundle (`ablations bundle`), which is one table."""
    if not study_name.endswith(SUFFIX):
        return choose(study_name, profile, corpus, rows, seeds, sets, store_dir, state_dir)
    if (profile, corpus, rows, seeds) != (None,) * 4 or sets:
        raise UserError(f"{study_name} is a bundle: one table, as it was asked for. Leave the selectors out.")
    folder = Path(tempfile.mkdtemp(prefix="ablations-bundle-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    bundle = read_bundle(Path(study_name), folder)
    opened_bundles.append(study_name)
    typer.echo(f"{study_name}: {bundle.checked}", err=True)
    return SelectedTable(
        study=bundle.plan.study,
        store=bundle.store,
        replan=lambda: bundle.plan,
        columns=bundle.columns,
        asked=bundle.asked,
    )


def _asked(
    study: str, profile: str | None, corpus: str | None, rows: str | None, seeds: int | None, sets: list[str] | None
) -> tuple[str, ...]:
    """The words that ask for the same table; of a study's or a corpus's path only the last part."""
    options = {"--profile": profile, "--corpus": corpus and Path(corpus).name, "--rows": rows}
    options["--seeds"] = str(seeds) if seeds else None
    words = [word for name, value in options.items() if value for word in (name, value)]
    return (Path(study).name, *words, *(word for item in sets or () for word in ("--set", item)))
