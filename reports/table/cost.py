"""The columns that no evaluation measures: parameters, operations and hours of training, beside the published ones.

Operations are given both ways: arithmetic counted from the tokens, and the paper's estimate from the time.

"We estimate the number of floating point operations used to train a model by multiplying the training time, the number
of GPUs used, and an estimate of the sustained single-precision floating-point capacity of each GPU" (section 6.1).
That counts what a device could have done meanwhile; for base it is 3.5 times the arithmetic that was done.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from reports.results.facts import look_up, object_in, real_in, text_in, whole_in
from reports.results.results import Outcome
from reports.results.table import Row, Table

# The paper's own estimates (footnote 5), in operations a second.
SUSTAINED = {"K80": 2.8e12, "K40": 3.7e12, "M40": 6.0e12, "P100": 9.5e12}


def counted(row: Row) -> float | None:
    """Operations of the matrix products of one training, forward and backward, the mean over seeds.

    None while a seed is not trained, and where the task does not count them.
    """
    return _mean(row, _counted)


def _counted(outcome: Outcome) -> float | None:
    recorded = real_in(outcome.record, "flops")
    if recorded is None:  # older stores
        per_token, tokens = (real_in(outcome.record, name) for name in ("flops_per_token", "target_tokens"))
        recorded = None if per_token is None or tokens is None else per_token * tokens
    if recorded is None and outcome.record is not None:  # a task of the user's: `cost` of its settings, if it says
        recorded = outcome.run.cost or None
    return recorded


def by_time(row: Row, rates: Mapping[str, float]) -> float | None:
    """Time × devices × their share × sustained rate, the mean over seeds.

    None while a seed is not trained, and where a device's rate or the whole time is unknown.
    """
    return _mean(row, lambda outcome: _by_time(outcome, rates))


def _by_time(outcome: Outcome, rates: Mapping[str, float]) -> float | None:
    seconds, rate = training_seconds(outcome), sustained(text_in(outcome.record, "device"), rates)
    if seconds is None or rate is None or _time_unknown(outcome):
        return None
    return seconds * rate * devices(outcome) * device_share(outcome)


def devices(outcome: Outcome) -> int:
    """How many trained the run together."""
    return whole_in(outcome.record, "devices") or 1


def device_share(outcome: Outcome) -> float:
    """Of each device: less than 1 where runs shared it."""
    return min(real_in(outcome.record, "device_share") or 1.0, 1.0)


def training_seconds(outcome: Outcome) -> float | None:
    """Of all attempts together, with what failed and what was repeated; None where that was not recorded."""
    seconds = real_in(outcome.record, "train_s")
    alone = look_up(outcome.record, "attempt") == 1 and look_up(outcome.record, "resumed_from") is None
    if seconds is None and alone:  # older stores: a later attempt recorded its own time only
        seconds = real_in(outcome.record, "wall_s")
    return seconds


def sustained(device: str, rates: Mapping[str, float]) -> float | None:
    """The rate of a device: the study's before the paper's."""
    return next((rate for part, rate in [*rates.items(), *SUSTAINED.items()] if part in device), None)


def _mean(row: Row, of: Callable[[Outcome], float | None]) -> float | None:
    values = [of(outcome) for outcome in row.outcomes]
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def hours(row: Row) -> float | None:
    """Hours of one training on its devices, the mean over seeds; None where a seed's whole time is not known."""
    return _mean(row, lambda o: None if _time_unknown(o) else (training_seconds(o) or 0.0) / 3600)


def _time_unknown(outcome: Outcome) -> bool:
    return training_seconds(outcome) is None or bool(object_in(outcome.record, "continues"))


@dataclass(frozen=True)
class Cost:
    """A column of one number per row that no evaluation measures."""

    key: str  # of its published number (ablations/plan/resolve.py): "params"
    header: str  # of this and of the published number
    sub: str  # what tells it from others under the same header
    name: str  # in JSON and CSV
    value: Callable[[Row, Table], float | None]  # None: not known
    unit: float = 1.0  # that `value` is divided by where it is printed
    power: bool = False  # printed as 9.4e17
    always: bool = False  # printed without a published number to set it against
    about: str = ""  # a note under the table


COSTS = (
    Cost("params", "params ×10⁶", "ours", "num_params", lambda row, _: row.num_params, unit=1e6, always=True),
    Cost("flops", "training FLOPs", "counted", "flops_counted", lambda row, _: counted(row), power=True, about=(
        "Training FLOPs: counted, from the matrix products of forward and backward pass over the tokens trained on; "
        "by time, as the paper does: training time × devices (a shared one by its share) × sustained rate."
    )),
    Cost("flops", "training FLOPs", "by time", "flops_by_time",
         lambda row, table: by_time(row, table.sustained_flops), power=True),
    Cost("hours", "training hours", "ours", "train_hours", lambda row, _: hours(row),
         about="Training hours: of all attempts together, on the devices named below."),
)  # fmt: skip


def shown(table: Table) -> list[Cost]:
    """The costs that the table prints: all that its rows have published numbers of, and those that always are."""
    published = {name for row in table.rows for name, value in row.paper.items() if value is not None}
    return [cost for cost in COSTS if cost.always or cost.key in published]


def cost_notes(table: Table) -> Iterator[str]:
    """How the printed costs were found, and of which devices and rows they are not known."""
    printed = shown(table)
    yield from (cost.about for cost in printed if cost.about)
    if not any(cost.name == "flops_by_time" for cost in printed):
        return
    trained = [o for row in table.rows for o in row.outcomes if o.record is not None]
    unknown = sorted({text_in(o.record, "device") for o in trained if _rate(o, table) is None} - {""})
    if unknown:
        yield (
            f"By time is blank for {', '.join(unknown)}: no sustained rate is known. Name one in the study, for "
            "instance sustained_flops = {P100 = 9.5e12}."
        )
    partial = [o for o in trained if _time_unknown(o)]
    if partial:
        rows = ", ".join(dict.fromkeys(o.run.row for o in partial))
        yield f"By time is blank for {rows}: the time of all of the training is not recorded with the run."


def _rate(outcome: Outcome, table: Table) -> float | None:
    return sustained(text_in(outcome.record, "device"), table.sustained_flops)
