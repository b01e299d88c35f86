"""Select runs of the queue by run_id, row, study, or all."""

from collections.abc import Collection, Iterable, Sequence

from experiments.errors import UserError
from experiments.identity import seed_in_words
from experiments.jobs.queue.job import JobStatus
from experiments.jobs.queue.queue import Queue
from experiments.jobs.queue.states import State
from experiments.store.layout import Store

HOW = "Write a row (A-h16), a row with its seed (A-h16:2), a study (table3), the beginning of a run_id, or `all`."
SHORTEST = 4  # fewest digits of a run_id that select a run


def chosen(store: Store, names: Sequence[str], states: Collection[State] = tuple(State)) -> list[JobStatus]:
    """The queued runs that `names` select, among those in `states`. Raises UserError for a name that selects none."""
    rows = all_rows(store)
    if not rows:
        held = "It has results (`ablations tables`), and no queue. " if store.run_ids() else ""
        raise UserError(f"Nothing is queued in {store.root}. {held}Name another store with --store.")
    found: dict[str, JobStatus] = {}
    for name in names:
        meant = [row for row in rows if _means(name, row)]
        if not meant:
            known = ", ".join(sorted({member.row for row in rows for member in row.members})[:30])
            raise UserError(f"{name!r} selects no run in {store.root}. {HOW} Rows there: {known}.")
        found |= {row.run_id: row for row in meant if row.state in states}
    return list(found.values())


def all_rows(store: Store) -> list[JobStatus]:
    """All runs of the queue; an empty list if there is no queue."""
    with Queue(store.queue_db, create=False) as queue:
        return queue.status()


def label(row: JobStatus) -> str:
    """ "table3 A-h16 seed 2 (1f2e…)", with every table that the run belongs to; "averaging ensemble3 ensemble (…)"."""
    names = ", ".join(sorted({f"{member.study} {member.row}" for member in row.members})) or "run"
    return f"{names} {seed_in_words(row.seed)} ({row.run_id})"


def labels(rows: Iterable[JobStatus]) -> str:
    """One line per run: state and label."""
    return "".join(f"  {row.state.value:<9} {label(row)}\n" for row in rows)


def _means(name: str, row: JobStatus) -> bool:
    if name == "all" or (len(name) >= SHORTEST and row.run_id.startswith(name)):
        return True
    key, colon, seed = name.rpartition(":")
    if colon and seed.isdigit():
        return row.seed == int(seed) and any(key == member.row for member in row.members)
    return any(name in (member.row, member.study) for member in row.members)
