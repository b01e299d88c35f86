"""The columns that no evaluation measures: parameters, operations and hours of training, beside the published ones;
and what runs measure before their first update, where a study's [columns] ask for it.

Operations are given both ways: arithmetic counted from the tokens, and the paper's estimate from the time.

"We estimate the number of floating point operations used to train a model by multiplying the training time, the number
of GPUs used, and an estimate of the sustained single-precision floating-point capacity of each GPU" (section 6.1).
That counts what a device could have done meanwhile; for base it is 3.5 times the arithmetic that was done.
"""

import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from experiments.config import flatten
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
    facts = outcome.record
    if facts is None or facts.flops is not None:
        return facts.flops if facts else None
    return outcome.run.cost or None  # a user's task: `cost` of its settings, if it is declared


def by_time(row: Row, rates: Mapping[str, float]) -> float | None:
    """Time × devices × their share × sustained rate, the mean over seeds.

    None while a seed is not trained, and where a device's rate or the whole time is unknown.
    """
    return _mean(row, lambda outcome: _by_time(outcome, rates))


def _by_time(outcome: Outcome, rates: Mapping[str, float]) -> float | None:
    seconds, rate = training_seconds(outcome), sustained(device(outcome), rates)
    if seconds is None or rate is None or _time_unknown(outcome):
        return None
    return seconds * rate * devices(outcome) * device_share(outcome)


def device(outcome: Outcome) -> str:
    """The name of what trained the run; "" where that is not known."""
    return (outcome.record.device if outcome.record else None) or ""


def devices(outcome: Outcome) -> int:
    """How many trained the run together."""
    return (outcome.record.devices if outcome.record else None) or 1


def device_share(outcome: Outcome) -> float:
    """Of each device: less than 1 where runs shared it."""
    return (outcome.record.device_share if outcome.record else None) or 1.0


def training_seconds(outcome: Outcome) -> float | None:
    """Of all attempts together, with what failed and what was repeated; None where that was not recorded."""
    return outcome.record.train_s if outcome.record else None


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
    return training_seconds(outcome) is None or bool(outcome.record and outcome.record.continues)


@dataclass(frozen=True)
class Cost:
    """A column of one number per row that no evaluation measures."""

    key: str  # of its published number (ablations/plan/published.py): "params"
    header: str  # of this and of the published number
    sub: str  # the difference from others under the same header
    name: str  # in JSON and CSV
    value: Callable[[Row, Table], float | None]  # None: not known
    unit: float = 1.0  # that `value` is divided by where it is printed
    power: bool = False  # printed as 9.4e17
    scale: float = 1.0  # of another unit (reports/render/units.py), on top
    digits: int | None = None  # after the point; None: as many as its smallest value needs
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


def _at_start(metric: str, head: str, about: str) -> Cost:
    def value(row: Row, _: Table) -> float | None:
        return _mean(row, lambda outcome: outcome.record.start.get(metric) if outcome.record else None)

    return Cost(f"start_{metric}", head, "", f"start_{metric}", value, always=True, about=about)


_ABOUT = {
    "entropy": (
        "Entropy: of the softmax of attention before the first update, in nats; the mean over layers, heads and pieces "
        "of the first sentences trained on."
    ),
    "gradient": "Gradient norm: of all parameters at the first step, before clipping.",
}


def _starts(table: Table) -> Iterator[Cost]:
    abouts = dict(_ABOUT)  # each once
    for metric, head in table.start.items():
        yield _at_start(metric, head, abouts.pop(metric.partition("_")[0], ""))


def shown(table: Table, named: Collection[str] = ()) -> list[Cost]:
    """The costs that the table prints: those that always are, all that its rows have published numbers of, and the
    named ones. A name that a setting or a metric has is theirs.
    """
    published = {name for row in table.rows for name, value in row.paper.items() if value is not None}
    settings = [*table.settings, *(name for row in table.rows[:1] for name, _ in flatten(row.outcomes[0].run.config))]
    taken = {*table.settings.values(), *settings, *(name.rpartition(".")[2] for name in settings)}
    taken |= {word for column in table.columns for word in (column.key, column.metric, column.header)}
    words = {word for n in named if n not in taken for word in (n.lower(), n.lower().partition(".")[0])}
    asked = {cost.key for cost in COSTS if {cost.key, cost.name, cost.header.lower()} & words}

    def printed(cost: Cost) -> bool:
        known = cost.sub != "by time" or any(cost.value(row, table) is not None for row in table.rows)
        return cost.always or cost.key in published or (cost.key in asked and known)

    return [*_starts(table), *(cost for cost in COSTS if printed(cost))]


def cost_notes(table: Table, printed: Sequence[Cost]) -> Iterator[str]:
    """How printed costs were found, and of which devices and rows they are not known."""
    yield from (cost.about for cost in printed if cost.about)
    if not any(cost.name == "flops_by_time" for cost in printed):
        return
    trained = [o for row in table.rows for o in row.outcomes if o.record is not None]
    unknown = sorted({device(o) for o in trained if _rate(o, table) is None} - {""})
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
    return sustained(device(outcome), table.sustained_flops)
