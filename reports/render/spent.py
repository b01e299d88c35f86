"""What a table cost for `report --format setup`: in all, by row, by comparison with base; how it is counted."""

from collections.abc import Iterator

from ablations.study.messages import number
from reports.results.amounts import Amounts, RowSpent, TableSpent
from reports.results.table import Table
from reports.table.spent import count, in_words


def lines(table: Table) -> list[tuple[str, str]]:
    """(of what, its cost); [] while no attempt at a run has begun."""
    spent = table.spent
    if spent is None or not spent.total.attempts:
        return []
    return [
        ("In all", _said(spent.total)),
        *((key, _row(row)) for key, row in spent.rows.items()),
        *_decisions(spent),
        ("How it is counted", "; ".join(_how(spent))),
    ]


def _said(spent: Amounts) -> str:
    return f"{count(spent)}: {in_words(spent)}" if spent.attempts else "nothing yet"


def _row(row: RowSpent) -> str:
    of_rows = f"shares runs that are counted in {', '.join(row.counted_in)}" if row.counted_in else ""
    own = _said(row.runs) if row.runs.attempts or not of_rows else ""
    tuning = f"tuning: {_said(row.tuning)}" if row.tuning.attempts else ""
    return "; ".join(filter(None, (own, tuning, of_rows)))


def _decisions(spent: TableSpent) -> Iterator[tuple[str, str]]:
    """What each comparison spent. Its base's runs are one cost for all comparisons with it."""
    for key, one in spent.decisions.items():
        sharing = sum(other.base == one.base for other in spent.decisions.values())
        by = f", decided by {number(one.seeds, 'seed')}" if one.seeds is not None else ""
        among = f", for {sharing} comparisons together" if sharing > 1 else ""
        yield (
            f"{key} against {one.base}{by}",
            f"{in_words(one.row_spent)}; {one.base}{among}: {in_words(one.base_spent)}",
        )


def _how(spent: TableSpent) -> Iterator[str]:
    every = spent.total
    until = "its end"
    if every.unseen:
        until = f"its end, or between the known events of {number(every.unseen, 'attempt')}"
    yield (
        "all attempts at these runs, those that failed, were stopped, killed or repeated too; wall time is from the "
        f"start of an attempt's process to {until}; device time is wall time × threads of processors, or × GPUs and "
        "the share of each that the run leased"
    )
    if every.without_cpu_joules < every.attempts:
        yield (
            "energy of processors (RAPL, packages and memory) is divided among the processes of a machine by their CPU "
            "time"
        )
    if every.without_gpu_joules < every.on_gpus:
        yield "energy of GPUs (NVML) is times the leased share"
    if spent.shared:
        yield f"in full also where a run was made for other tables ({number(spent.shared, 'run')})"
