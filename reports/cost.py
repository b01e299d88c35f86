"""What a training cost, both ways: arithmetic counted from the configuration, and the paper's estimate from time.

"We estimate the number of floating point operations used to train a model by multiplying the training time, the number
of GPUs used, and an estimate of the sustained single-precision floating-point capacity of each GPU" (section 6.1).
That counts what a device could have done meanwhile; for base it is 3.5 times the arithmetic that was done.
"""

import statistics
from collections.abc import Iterator, Mapping

from reports.results import fact, look_up
from reports.table import Row, Table

# The paper's own estimates (footnote 5), in operations a second.
SUSTAINED = {"K80": 2.8e12, "K40": 3.7e12, "M40": 6.0e12, "P100": 9.5e12}


def counted(row: Row) -> float | None:
    """Operations of the matrix products of one training, forward and backward; None: the task does not say."""
    return row.outcomes[0].run.cost or None


def by_time(row: Row, rates: Mapping[str, float]) -> float | None:
    """Time × devices × sustained rate, the mean over seeds. None where a device's rate or the whole time is unknown."""
    estimates = []
    for outcome in row.outcomes:
        seconds, resumed = fact(outcome.record, "wall_s"), look_up(outcome.record, "resumed_from")
        rate = sustained(str(fact(outcome.record, "device") or ""), rates)
        if rate is None or resumed is not None or not isinstance(seconds, int | float):
            return None
        estimates.append(seconds * rate)  # a run trains on one device
    return statistics.fmean(estimates) if estimates else None


def sustained(device: str, rates: Mapping[str, float]) -> float | None:
    """The rate of a device: the study's before the paper's."""
    return next((rate for part, rate in [*rates.items(), *SUSTAINED.items()] if part in device), None)


def cost_notes(table: Table) -> Iterator[str]:
    if not table.shows_cost:
        return
    yield (
        "Training FLOPs: counted, from the matrix products of forward and backward pass; by time, as the paper does: "
        "training time × devices × sustained rate."
    )
    devices = {str(fact(o.record, "device")) for row in table.rows for o in row.outcomes if o.record is not None}
    unknown = sorted(device for device in devices if sustained(device, table.sustained_flops) is None)
    if unknown:
        yield (
            f"By time is blank for {', '.join(unknown)}: no sustained rate is known. Name one in the study, for "
            "instance sustained_flops = {P100 = 9.5e12}."
        )
