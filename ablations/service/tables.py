"""Build the table of a selection from a store or a bundle, and parse the options for printing a table."""

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ablations.planning.declare_table import table_spec
from ablations.planning.plan import Plan
from ablations.service.enqueue import member
from ablations.service.run_states import DONE, UNFINISHED
from ablations.service.selected import SelectedTable, Selectors, StoreOptions, choose
from ablations.service.store_tables import StoreTable, store_tables
from experiments.errors import Damaged, UserError
from experiments.jobs.queue.job import Job
from experiments.jobs.queue.queue import Queue
from experiments.messages import number, plain, show
from experiments.store.run_names import keep_counted
from reports.results.table import Table
from reports.spec.choices import Choices
from reports.table.build import build_table


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Options of a printed table, as typed. None selects the study's choice, or the format's if the study has none."""

    columns: str | None = None
    hide: str | None = None
    plain: bool | None = None
    paper: bool | None = None
    digits: str | None = None
    caption: str | None = None
    notes: str | None = None
    label: str | None = None
    wide: bool | None = None

    def choices(self) -> Choices:
        """Return the parsed options. Raises UserError for invalid options."""
        given: dict[str, Any] = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}
        for name in ("columns", "hide"):
            if name in given:
                given[name] = tuple(part.strip() for part in given[name].split(",") if part.strip())
        if "digits" in given:
            given["digits"] = dict(_digits(given["digits"]))
        try:
            return Choices(**given)
        except ValidationError as error:
            first = error.errors()[0]
            raise UserError(f"--{first['loc'][0]} {getattr(self, str(first['loc'][0]))}: {plain(first)}.") from None

    def words(self) -> Sequence[str]:
        """Return the options as command-line arguments."""
        words: list[str] = []
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool):
                words.append(f"--{'' if value else 'no-'}{field.name}")
            elif value is not None:
                words += [f"--{field.name}", value]
        return words


def _digits(text: str) -> Iterator[tuple[str, int]]:
    """Yield the pairs in a text such as "bleu=2,ppl=3". A number alone has the key "" and applies to every metric.

    Raises UserError for other text.
    """
    for part in text.split(","):
        key, found, value = part.strip().partition("=")
        key, value = (key, value) if found else ("", key)
        if not value.isdecimal() or (found and not key):
            raise UserError(f"--digits {text}: write --digits 2 or --digits bleu=2,ppl=3.")
        yield key, int(value)


BY_STUDY = TableOptions()


def table_of(
    chosen: SelectedTable,
    significance: str = "auto",
    *,
    provisional: bool = False,
    printing: TableOptions = BY_STUDY,
) -> Table:
    """Return the selected table, with the command-line arguments that select and print it."""
    plan = chosen.plan
    table = build_table(table_spec(plan, chosen.columns), chosen.store, significance, provisional=provisional)
    for run in plan.runs if not chosen.bundle else ():
        if run.added and run.state in DONE:
            keep_counted(chosen.store, run.run_id, run.added)
    tests = ("--significance", significance) if significance != "auto" else ()
    asked = shlex.join([*chosen.asked, *tests, *printing.words()])
    return replace(table, asked=asked if chosen.asked else "", chosen=printing.choices(), bundle=chosen.bundle)


MOST = 500  # maximum number of jobs in the queue that are searched for folders


def study_queued(selectors: Selectors, name: str) -> str:
    """Return the path of a study file in the working directory, or in a folder from which this user queued runs.

    Returns the name if no such folder has the file.
    """
    if Path(name).is_file():
        return name
    folders = dict.fromkeys(Path(job.spec.folder) for job in _jobs(selectors) if job.spec.folder)
    return next((str(folder / name) for folder in folders if (folder / name).is_file()), name)


def with_corpus(selectors: Selectors) -> Selectors:
    """Replace the name of a corpus in the selectors by its path, if a job that this user queued records the path."""
    name = selectors.corpus
    if name in (None, "builtin") or Path(str(name)).expanduser().exists():
        return selectors
    found = dict.fromkeys(str((job.spec.config.get("data") or {}).get("corpus", "")) for job in _jobs(selectors))
    folder = next((path for path in found if Path(path).name == name and Path(path).is_dir()), None)
    return replace(selectors, corpus=folder) if folder else selectors


def _jobs(selectors: Selectors) -> Iterator[Job]:
    """Yield the jobs of the store that this user signed.

    The program may read the folders of these jobs and import their code.
    """
    with Queue(selectors.open().queue_db, create=False) as queue:
        for row in queue.status()[:MOST]:
            try:
                claimed = queue.job(row.run_id)
            except Damaged:
                continue
            if claimed.signed:
                yield claimed.job


def nearest_with_results(study: str, selectors: Selectors, plan: Plan) -> str:
    """Return a sentence that names the nearest selection with results and the command that prints it.

    Returns "" if the plan has results or queued runs, or if no table of the study has results.
    """
    if any(run.state in (*DONE, *UNFINISHED) for run in plan.runs):
        return ""
    found = [table for table in store_tables(selectors, plan.study.name) if table.selectors and table.finished]
    for table in sorted(found, key=lambda table: _distance(table, plan)):
        other = replace(table.selectors or selectors, store=selectors.store, state_dir=selectors.state_dir)
        mine, there = replace(other, rows=selectors.rows, seeds=selectors.seeds), ",".join(table.rows)
        for narrowed in (mine, other, replace(other, rows=there)):  # other rows may be invalid with these settings
            with contextlib.suppress(UserError):
                if count := sum(run.state in DONE for run in choose(study, narrowed).plan.runs):
                    return _sentence(study, selectors, narrowed, table, plan, count)
    return ""


def _distance(table: StoreTable, plan: Plan) -> tuple[bool, bool, bool, int, int]:
    other_corpus = table.name.corpus != member(plan, plan.runs[0]).corpus
    other_rows = {run.row for run in plan.runs}.isdisjoint(table.rows)
    return other_rows, table.name.profile != plan.profile, other_corpus, len(table.settings), -table.finished


def _sentence(study: str, selectors: Selectors, other: Selectors, table: StoreTable, plan: Plan, count: int) -> str:
    """Return a text such as "6 finished runs of table3 exist with training.train_steps = 150: add --set …"."""
    same_profile = table.name.profile == plan.profile
    differs = [] if same_profile else [f"the profile {table.name.profile}"]
    if table.name.corpus != member(plan, plan.runs[0]).corpus:
        differs.append(f"the corpus {table.name.corpus}")
    differs += [f"{name} = {show(value)}" for name, value in table.settings.items()]
    if same_profile and selectors.profile is None:
        other = replace(other, profile=None)
    line = shlex.join([study, *other.words(whole=True)])
    typed_others = selectors.sets or selectors.corpus or selectors.profile
    only_added = not typed_others and selectors.rows in (None, other.rows)
    typed = {name: None for name in ("rows", "seeds") if getattr(other, name) == getattr(selectors, name)}
    more = replace(other, store=StoreOptions().store, state_dir=None, **typed).words(whole=True)
    added = f"add {shlex.join(more)}, or write " if more and only_added else ""
    runs = f"{number(count, 'finished run')} of {plan.study.name} {'exists' if count == 1 else 'exist'}"
    with_ = " and ".join(differs) or "the study's own settings"
    return f"{selectors.store} has no run of this selection. {runs} with {with_}: {added}`ablations report {line}`."
