"""What a table cost: sums over all attempts at its runs, by row, and by comparison of a row with its base.

Each attempt is counted once: a run that several rows show is counted in the first of them. Trials of a tuning are
counted in the row that was tuned; the one that became a run of the table is a run of its row.
"""

from collections.abc import Iterator, Mapping, Sequence

from ablations.plan.planned import Plan
from ablations.study.messages import number
from ablations.study.tuning import trials_of
from reports.results.amounts import HOUR, KWH, Amounts, DecisionSpent, RowSpent, TableSpent, amounts, total
from reports.results.spending import Spending
from reports.results.table import Row, Table
from reports.statistics.sequential import Decision

_OPENING, _WALL = "Cost: ", "wall time"


def spent_on(table: Table, plan: Plan, found: Spending, decisions: Mapping[str, Decision]) -> TableSpent:
    """What a table's rows and their comparisons cost. `decisions`: of a rule for seeds, by row."""
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
    mine = {f"{name} {plan.profile}" for name in (plan.study.name, trials_of(plan.study.name))}
    shared = sum(any(set(one.tables) - mine for one in found.runs.get(run_id, ())) for run_id in shown)
    return TableSpent(rows, dict(_decided(table, found, decisions, shown)), shared)


def _runs(row: Row, seeds: int | None = None) -> list[str]:
    """The runs of a row, or of its first seeds, with its members and trunks; each once."""
    outcomes = row.outcomes[:seeds]
    return list(dict.fromkeys(i for o in outcomes for i in (o.run.run_id, *o.run.reads)))


def _trials(run_ids: Sequence[str], found: Spending, shown: set[str]) -> list[str]:
    """The trials of the searches that found a row's settings, each once, without runs of the table."""
    mine = (search for search in found.searches if not set(search).isdisjoint(run_ids))
    return list(dict.fromkeys(run_id for search in mine for run_id in search if run_id not in shown))


def _decided(
    table: Table, found: Spending, decisions: Mapping[str, Decision], shown: set[str]
) -> Iterator[tuple[str, DecisionSpent]]:
    """The comparisons that were tested, or that a rule for seeds decides."""
    by_key = {row.key: row for row in table.rows}
    for row in table.rows:
        base, decision = table.base_of(row), decisions.get(row.key)
        tested = any(measure.test is not None for measure in row.measures.values())
        if base is None or base not in by_key or base == row.key or not (tested or decision):
            continue
        seeds = decision.seeds if decision else None
        sides, of_base = [], _runs(by_key[base], seeds)
        own = _runs(row, seeds)
        if row.branch:  # its trunk may be base, whose cost is counted below
            own = [run_id for run_id in own if run_id not in of_base]
        for runs in (own, of_base):
            sides.append(total(amounts(run_id, found) for run_id in (*runs, *_trials(runs, found, shown))))
        yield row.key, DecisionSpent(base, seeds, *sides)


def duration(hours: float) -> str:
    """Hours in the unit that suits their size: "1.5 hours", "3.0 minutes", "2.4 seconds"."""
    if hours >= 1:
        return f"{hours:.1f} hours"
    return f"{hours * 60:.1f} minutes" if hours * 60 >= 1 else f"{hours * HOUR:.1f} seconds"


def in_words(spent: Amounts) -> str:
    """The amounts in a line: wall time, device time, CPU time, energy."""
    parts = [f"{_WALL} {duration(spent.wall_s / HOUR)}", _devices(spent), _cpu(spent), _energy(spent)]
    return ", ".join(parts)


def _devices(spent: Amounts) -> str:
    found = [f"{duration(spent.thread_s / HOUR)} of processor threads"] if spent.thread_s else []
    found += [f"{duration(spent.gpu_s / HOUR)} of GPUs"] if spent.gpu_s else []
    return f"device time {' and '.join(found) or 'not recorded'}{_but(spent.without_lease, spent, bool(found))}"


def _cpu(spent: Amounts) -> str:
    known = spent.without_cpu < spent.attempts
    words = duration(spent.cpu_s / HOUR) if known else "not recorded"
    return f"CPU time {words}{_but(spent.without_cpu, spent, known)}"


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
    """ "12 runs in 14 attempts (2 ended early)"."""
    said = [f"{spent.early} ended early"] if spent.early else []
    said += (
        [f"{spent.unseen} counted between {'its' if spent.unseen == 1 else 'their'} known events"]
        if spent.unseen
        else []
    )
    of = f" ({', '.join(said)})" if said else ""
    return f"{number(spent.runs, 'run')} in {number(spent.attempts, 'attempt')}{of}"


def note(table: Table) -> Iterator[str]:
    """One note for the table, if an attempt at one of its runs has begun."""
    spent = table.spent
    if spent is None or not spent.total.attempts:
        return
    parts = [f"{_OPENING}{count(spent.total)}: {in_words(spent.total)}."]
    if spent.tuning.attempts:
        parts.append(f"Of this, tuning: {count(spent.tuning)}, wall time {duration(spent.tuning.wall_s / HOUR)}.")
    if spent.shared:
        parts.append(f"Also for other tables: {number(spent.shared, 'run')}.")
    yield " ".join([*parts, "By row: ablations report … --format setup."])


def is_note(line: str) -> bool:
    """Whether a line of a printed table is the note on its costs."""
    return _OPENING in line and _WALL in line
