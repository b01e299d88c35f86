"""Put runs aside (`ablations forget`). Runs that another table or another run needs stay in the store."""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ablations.service.run_states import Members
from ablations.service.selected import Selected
from ablations.service.store_tables import store_tables
from experiments.errors import Damaged, UserError
from experiments.identity import members_in, parent_run_in
from experiments.jobs.queue.job import Member, State
from experiments.jobs.queue.queue import Queue
from experiments.messages import number
from experiments.store import ledger
from experiments.store.layout import Store, description_of
from experiments.store.retention import put_aside
from experiments.store.trees import remove_unused


@dataclass(frozen=True)
class Candidates:
    """The runs to put aside, with their tables, and the runs that stay, with the reason."""

    runs: Mapping[str, tuple[Member, ...]]
    stay: Mapping[str, str]


def of_table(chosen: Selected, *, gone: bool) -> list[str]:
    """Return the run_ids of a table's runs that are in the store or in its queue.

    gone: if true, return instead the runs of the same study and profile that the present study does not contain, or
    contains with other settings.
    """
    store, plan = chosen.store, chosen.plan
    known = {*store.run_ids(), *Members(store).queued}
    if not gone:
        return [run_id for run_id in dict.fromkeys(run.run_id for run in plan.runs) if run_id in known]
    tables = [one for one in store_tables(chosen.store_options, plan.study.name) if one.name.profile == plan.profile]
    return [run.run_id for one in tables if one.gone or one.settings for run in one.runs]


def of_names(store: Store, names: Iterable[str]) -> list[str]:
    """Return the runs whose run_ids begin with `names`. Raises UserError if a name selects no run or several runs."""
    known = sorted({*store.run_ids(), *Members(store).queued})
    found = []
    for name in names:
        fitting = [run_id for run_id in known if run_id.startswith(name)]
        if len(fitting) != 1:
            raise UserError(
                f"--run {name}: {number(len(fitting), 'run') if fitting else 'no run'} in {store.root} "
                f"{'begin' if len(fitting) > 1 else 'begins'} with it."
            )
        found += fitting
    return found


def candidates(store: Store, run_ids: Iterable[str], study: str | None) -> Candidates:
    """Divide runs into runs to put aside and runs that stay.

    A run stays if a branch or an ensemble was made from it, or if it also belongs to another study than `study`. If
    `study` is None, it does not matter to which studies a run belongs.
    """
    members, readers = Members(store), _readers(store)
    wanted = list(dict.fromkeys(run_ids))
    runs, stay = {}, {}
    for run_id in wanted:
        of = members.of(run_id)
        others = sorted({f"{m.study} ({m.profile})" for m in of if study is not None and m.study != study})
        read_by = [reader for reader in readers.get(run_id, ()) if reader not in wanted]
        if others:
            stay[run_id] = f"it also belongs to {', '.join(others)}"
        elif read_by:
            stay[run_id] = f"{', '.join(read_by)} was made from it (a branch or an ensemble)"
        else:
            runs[run_id] = of
    return Candidates(runs, stay)


def _readers(store: Store) -> dict[str, list[str]]:
    """Return for each run the ensembles and branches that were made from it."""
    found: dict[str, list[str]] = {}
    for run_id in store.run_ids():
        inputs = description_of(store, run_id, forgiving=True).get("inputs", {})
        parent_run = parent_run_in(inputs)
        for read in (*members_in(inputs), *([parent_run.run_id] if parent_run else ())):
            found.setdefault(read, []).append(run_id)
    return found


def forget(store: Store, runs: Mapping[str, tuple[Member, ...]]) -> None:
    """Put runs aside: move their folders, and remove them from the queue and from MLflow.

    Code trees that no run uses are removed too, even if `runs` is empty, because a killed call may have left such
    trees. The caller holds the coordinator lock, so a run can be training only on a cluster. Raises UserError if one of
    `runs` is training.
    """
    with Queue(store.queue_db, create=False) as queue:
        running = [row.run_id for row in queue.rows(State.RUNNING, 1_000_000) if row.run_id in runs]
    if running:
        raise UserError(
            f"Nothing was changed, because these runs are training: {', '.join(running)}. Cancel them, or wait."
        )
    ledger.append(store, "forget", run_ids=list(runs))
    # Change MLflow before the folders. If this call is killed in between, a later call still finds the folders.
    if store.mlflow_db.is_file():
        from experiments.tracking.mlflow import Tracker  # imported late, because this import takes seconds

        tracker = Tracker(store)
        for run_id in runs:
            tracker.hide(run_id)
        tracker.close()
    if store.queue_db.exists():
        with Queue(store.queue_db) as queue:
            queue.forget(runs)
    for run_id in runs:
        put_aside(store, run_id)
    with contextlib.suppress(Damaged):  # the tree of a run with a damaged description is unknown, so all trees stay
        remove_unused(store)
