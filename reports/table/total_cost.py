"""Total cost of a table: sums over all attempts at its runs, by row.

Each attempt is counted once. A run that several rows show is counted in the first of these rows. Trials are counted
as tuning of the tuned row, except a trial that is also a run of the table.
"""

from collections.abc import Iterator, Sequence

from experiments.events.accounting import HOUR, KWH, Amounts, total
from experiments.messages import number
from experiments.tuning import trials_of
from reports.results.accounting import RowSpent, Spending, TableSpent, amounts
from reports.results.table import Row, Table
from reports.spec.table_spec import Note

_OPENING, _WALL = "Cost: ", "wall time"


def spent_on(table: Table, found: Spending) -> TableSpent:
    """Return the costs of a table and of its rows."""
    runs_of = {row.key: _runs(row) for row in table.rows}
    shown = {run_id for run_ids in runs_of.values() for run_id in run_ids}
    trials_for = {key: _trials(run_ids, found, shown) for key, run_ids in runs_of.items()}
    owner: dict[str, str] = {}
    for key in runs_of:
        for run_id in (*runs_of[key], *trials_for[key]):
            owner.setdefault(run_id, key)
    rows = {
        key: RowSpent(
            total(amounts(run_id, found) for run_id in runs_of[key] if owner[run_id] == key),
            total(amounts(run_id, found) for run_id in trials_for[key] if owner[run_id] == key),
            tuple(dict.fromkeys(owner[run_id] for run_id in runs_of[key] if owner[run_id] != key)),
        )
        for key in runs_of
    }
    mine = {f"{name} {table.spec.profile}" for name in (table.spec.name, trials_of(table.spec.name))}
    shared = sum(any(set(one.tables) - mine for one in found.runs.get(run_id, ())) for run_id in shown)
    return TableSpent(rows, shared)


def _runs(row: Row) -> list[str]:
    """Return the run_ids of a row's runs, of their members and of their parent runs, each once."""
    return list(dict.fromkeys(i for o in row.outcomes for i in (o.run.run_id, *o.run.spec.reads)))


def _trials(run_ids: Sequence[str], found: Spending, shown: set[str]) -> list[str]:
    """Return the run_ids of the trials of a row's searches, each once, without runs of the table."""
    mine = (search for search in found.searches if not set(search).isdisjoint(run_ids))
    return list(dict.fromkeys(run_id for search in mine for run_id in search if run_id not in shown))


def duration(hours: float) -> str:
    """Return a duration in a suitable unit: "1.5 hours", "3.0 minutes", "2.4 seconds"."""
    if hours >= 1:
        return f"{hours:.1f} hours"
    return f"{hours * 60:.1f} minutes" if hours * 60 >= 1 else f"{hours * HOUR:.1f} seconds"


def in_words(spent: Amounts) -> str:
    """Return the amounts in one line: wall time, device time, CPU time, energy."""
    known = spent.without_cpu < spent.attempts
    cpu = f"CPU time {duration(spent.cpu_s / HOUR) if known else 'not recorded'}{_but(spent.without_cpu, spent, known)}"
    return ", ".join([f"{_WALL} {duration(spent.wall_s / HOUR)}", _devices(spent), cpu, _energy(spent)])


def _devices(spent: Amounts) -> str:
    found = [duration(spent.thread_s / HOUR).replace(" ", " CPU-thread ")] if spent.thread_s else []
    found += [duration(spent.gpu_s / HOUR).replace(" ", " GPU ")] if spent.gpu_s else []
    return f"device time {' and '.join(found) or 'not recorded'}{_but(spent.without_lease, spent, bool(found))}"


def _energy(spent: Amounts) -> str:
    found = []
    if spent.without_cpu_joules < spent.attempts:
        found.append(f"{_kwh(spent.cpu_joules)} of processors{_but(spent.without_cpu_joules, spent, True)}")
    if spent.without_gpu_joules < spent.on_gpus:
        found.append(f"{_kwh(spent.gpu_joules)} of GPUs{_but(spent.without_gpu_joules, spent, True)}")
    if not found:
        return "energy not measured"
    gpus_left = spent.on_gpus and spent.without_gpu_joules == spent.on_gpus
    processors_left = spent.without_cpu_joules == spent.attempts
    left = "; that of GPUs not measured" if gpus_left else "; that of processors not measured" * processors_left
    return f"energy {' and '.join(found)}{left}"


def _kwh(joules: float) -> str:
    return f"{joules / KWH:.3g} kWh" if joules >= 3600 else f"{joules / 3600:.3g} Wh"


def _but(without: int, spent: Amounts, known: bool) -> str:
    return f" (without {number(without, 'attempt')} of {spent.attempts})" if without and known else ""


def count(spent: Amounts) -> str:
    """Return the numbers of runs and attempts, such as "12 runs in 14 attempts (2 failed or stopped)"."""
    said = [f"{spent.early} failed or stopped"] if spent.early else []
    whose = "its" if spent.unseen == 1 else "their"
    said += [f"{spent.unseen} counted between {whose} known events"] if spent.unseen else []
    of = f" ({', '.join(said)})" if said else ""
    return f"{number(spent.runs, 'run')} in {number(spent.attempts, 'attempt')}{of}"


def cost_note(table: Table) -> Iterator[Note]:
    """Yield the note on the table's cost if an attempt at one of its runs has started."""
    spent = table.spent
    if not spent.total.attempts:
        return
    parts = [f"{_OPENING}{count(spent.total)}: {in_words(spent.total)}."]
    if spent.tuning.attempts:
        parts.append(f"Of this, tuning: {count(spent.tuning)}, wall time {duration(spent.tuning.wall_s / HOUR)}.")
    if spent.shared:
        parts.append(f"Also for other tables: {number(spent.shared, 'run')}.")
    yield Note(" ".join([*parts, "By row: ablations report … --format setup."]), "cost")


def is_note(line: str) -> bool:
    """Return whether a line of a printed table is the note on the table's cost."""
    return _OPENING in line and _WALL in line
