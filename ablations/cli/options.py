"""The options that verbs share, and what they select."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ablations.cli.settling import settle
from ablations.cli.state import run_states
from ablations.plan import Plan, plan_study
from ablations.selectors import selection
from ablations.study import Study, load_study
from experiments.store import Store
from experiments.tasks.base import Task
from experiments.tasks.load import load_task

StudyName = Annotated[
    str, typer.Argument(metavar="STUDY", help="A built-in study (`ablations studies`) or the path of a .toml file.")
]
Profile = Annotated[str | None, typer.Option(metavar="P", help="Size of the whole table; the study has a default.")]
Corpus = Annotated[
    str | None,
    typer.Option(metavar="builtin|DIR", help="The generated corpus, or a folder with train.<lang>, dev.<lang>."),
]
Rows = Annotated[str | None, typer.Option(metavar="KEY,KEY|GROUP", help="Only these rows or groups.")]
Seeds = Annotated[int | None, typer.Option(metavar="N", help="Seeds 1..N of every row.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting in every row; repeatable.")
]
StoreDir = Annotated[
    Path, typer.Option("--store", metavar="DIR", envvar="ABLATIONS_STORE", help="The folder that holds the runs.")
]
StateDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        envvar="ABLATIONS_STATE_DIR",
        help="A local folder for queue.db and mlflow.db, where the store is on a network disk.",
    ),
]
Devices = Annotated[str, typer.Option(metavar="SLOTS", help="auto, cpu:NxT, cuda:0,2 or cuda:*x3.")]
Stale = Annotated[
    str, typer.Option(metavar="keep|rerun", help="Finished runs of older code: keep them, marked, or train anew.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

DEFAULT_STORE = Path("runs")


@dataclass(frozen=True)
class Chosen:
    """What a command line selects."""

    study: Study
    task: Task
    store: Store
    replan: Callable[[], Plan]  # with the states as they are now

    @property
    def plan(self) -> Plan:
        return self.replan()


def choose(
    study_name: str,
    profile: str | None,
    corpus: str | None,
    rows: str | None,
    seeds: int | None,
    sets: list[str] | None,
    store_dir: Path,
    state_dir: Path | None,
) -> Chosen:
    """Resolve the selectors; reads the store if there is one, and makes none. Raises UserError."""
    chosen = selection(profile, corpus, rows, seeds, sets or ())
    study = load_study(study_name)
    task = load_task(study.task)
    store = Store.open(store_dir, state_dir, create=False)
    settle(store)

    def replan() -> Plan:
        return plan_study(study, chosen, task, store.root, run_states(store, task))

    return Chosen(study, task, store, replan)
