"""Columns of costs: parameters, training FLOPs, training hours, and others.

Each column is printed next to its published numbers. Numbers that runs measure before their first and before their last
update are also columns if the study's [columns] name these numbers.

Training FLOPs are printed in two ways: counted from the tokens, and estimated from the time as in the paper. The paper
says: "We estimate the number of floating point operations used to train a model by multiplying the training time, the
number of GPUs used, and an estimate of the sustained single-precision floating-point capacity of each GPU" (section
6.1). The estimate is the number of operations that the devices could have computed in this time. For the paper's base,
the estimate is 3.5 times the counted FLOPs.
"""

import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from experiments.dotted import flatten
from experiments.events.accounting import HOUR
from experiments.store.results import EvaluationResult
from reports.results.run_outcomes import Outcome
from reports.results.table import Row, Table
from reports.spec.table_spec import Note

# The paper's estimates of the sustained rate of GPUs (footnote 5), in operations per second.
SUSTAINED = {"K80": 2.8e12, "K40": 3.7e12, "M40": 6.0e12, "P100": 9.5e12}


def counted(row: Row, table: Table) -> float | None:
    """Return the FLOPs of the matrix products of one training, forward and backward, as the mean over seeds.

    Return None if a seed is not trained, or if the task does not count FLOPs.
    """
    return _mean(row, lambda outcome: _with_parent(outcome, table, _counted))


def _with_parent(outcome: Outcome, table: Table, of: Callable[[Outcome], float | None]) -> float | None:
    """Return a cost of a training. The cost of a branch includes the parent run's cost of the shared steps.

    Return None if either cost is unknown.
    """
    own, start = of(outcome), outcome.run.spec.parent_run
    if own is None or start is None:
        return own
    parent = table.trainings.get(start.run_id)
    steps = parent.record.step if parent and parent.record else None
    theirs = of(parent) if parent else None
    return None if theirs is None or not steps else own + theirs * start.step / steps


def _counted(outcome: Outcome) -> float | None:
    facts = outcome.record
    if facts is None or facts.flops is not None:
        return facts.flops if facts else None
    return outcome.run.spec.cost or None  # for a user's task: the declared `cost`, if any


def by_time(row: Row, table: Table) -> float | None:
    """Return training time × devices × share of a device × sustained rate, as the mean over seeds.

    Return None if a seed is not trained, or if a device's rate or the time of the whole training is unknown.
    """
    rates = table.spec.sustained_flops
    return _mean(row, lambda outcome: _with_parent(outcome, table, lambda one: _by_time(one, rates)))


def _by_time(outcome: Outcome, rates: Mapping[str, float]) -> float | None:
    seconds, rate = training_seconds(outcome), sustained(device(outcome), rates)
    if seconds is None or rate is None or _time_unknown(outcome):
        return None
    return seconds * rate * devices(outcome) * device_share(outcome)


def device(outcome: Outcome) -> str:
    """Return the name of the device that trained the run; "" if unknown."""
    return (outcome.record.device if outcome.record else None) or ""


def devices(outcome: Outcome) -> int:
    """Return the number of devices that trained the run together."""
    return (outcome.record.devices if outcome.record else None) or 1


def device_share(outcome: Outcome) -> float:
    """Return the run's share of each device. The share is less than 1 if several runs shared a device."""
    return (outcome.record.device_share if outcome.record else None) or 1.0


def training_seconds(outcome: Outcome) -> float | None:
    """Return the training time of all attempts, with failed and repeated steps; None if it was not recorded."""
    return outcome.record.train_s if outcome.record else None


def sustained(device: str, rates: Mapping[str, float]) -> float | None:
    """Return the sustained rate of a device, from the study or else from the paper; None if unknown."""
    return next((rate for part, rate in [*rates.items(), *SUSTAINED.items()] if part in device), None)


def _mean(row: Row, of: Callable[[Outcome], float | None]) -> float | None:
    values = [of(outcome) for outcome in row.outcomes]
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def hours(row: Row, table: Table) -> float | None:
    """Return the hours of one training, as the mean over seeds; None if the time of a whole training is unknown."""
    return _mean(row, lambda outcome: _with_parent(outcome, table, _hours))


def _hours(outcome: Outcome) -> float | None:
    return None if _time_unknown(outcome) else (training_seconds(outcome) or 0.0) / HOUR


def _done(outcome: Outcome) -> float | None:
    """Return the number of steps of a finished training; None if the training is not finished."""
    return outcome.record.step if outcome.record else None


def _time_unknown(outcome: Outcome) -> bool:
    return training_seconds(outcome) is None or bool(outcome.record and outcome.record.continues)


def tokens_per_second(outcome: Outcome) -> float | None:
    """Return target tokens per second of training.

    Seconds are CPU time of all threads on a CPU, and wall time on a GPU. Return None if the numbers were not recorded,
    or if the training was resumed, because then the seconds cover only the last attempt.
    """
    record = outcome.record
    if record is None or record.target_tokens is None or record.resumed_from is not None:
        return None
    seconds = record.steps_cpu_s if record.device_kind == "cpu" else record.steps_s
    return record.target_tokens / seconds if seconds else None


def decoding_seconds(outcome: Outcome) -> float | None:
    """Return the seconds to decode a sentence: CPU time of all threads on a CPU, wall time on a GPU.

    Return None if the time was not recorded.
    """
    spent, sentences = 0.0, 0
    for record in _scored(outcome):
        part = record.parts.get("decode")
        seconds = part and (part.cpu_s if record.device_kind == "cpu" else part.wall_s)
        if not isinstance(seconds, float):
            return None
        spent, sentences = spent + seconds, sentences + (record.sentences or 0)
    return spent / sentences if sentences else None


def decoding_memory(outcome: Outcome) -> float | None:
    """Return the peak memory in bytes while a set was decoded; None if it was not recorded."""
    parts = [record.parts.get("decode") for record in _scored(outcome)]
    peaks = [part.facts.get("peak_memory_bytes") if part else None for part in parts]
    return max((float(peak) for peak in peaks if isinstance(peak, int)), default=None)


def _scored(outcome: Outcome) -> list[EvaluationResult]:
    return [scored.record for scored in outcome.scored.values() if scored.record is not None]


@dataclass(frozen=True)
class Cost:
    """A column with one number per row. The numbers do not come from evaluations."""

    key: str  # key of the published number (ablations/planning/resolve.py), such as "params"
    header: str  # column head, shared with the published number
    sub: str  # second line of the head, which distinguishes columns with the same header
    name: str  # name in JSON and CSV
    value: Callable[[Row, Table], float | None]  # function that computes the number; None if unknown
    unit: float = 1.0  # the printed number is the value divided by `unit`
    power: bool = False  # whether to print numbers like 9.4e17
    digits: int | None = None  # digits after the decimal point; None for as many as the smallest value needs
    always: bool = False  # whether to print the column also if there is no published number
    about: str = ""  # note under the table


COSTS = (
    Cost("params", "params ×10⁶", "ours", "num_params", lambda row, _: row.num_params, unit=1e6, always=True),
    Cost("flops", "training FLOPs", "counted", "flops_counted", counted, power=True, about=(
        "Training FLOPs: counted, from the matrix products of forward and backward pass over the tokens trained on; "
        "by time, as the paper does: training time × devices (a shared one by its share) × sustained rate."
    )),
    Cost("flops", "training FLOPs", "by time", "flops_by_time",
         by_time, power=True),
    Cost("hours", "training hours", "ours", "train_hours", hours,
         about="Training hours: of all attempts together, on the devices named below."),
    Cost("tokens_s", "training tokens/s", "ours", "tokens_s", lambda row, _: _mean(row, tokens_per_second), digits=0,
         about=(
         "Training tokens/s: target tokens per second of processor time (all threads) on a processor, of the clock on "
         "a GPU."
    )),
    Cost("decode_s", "decoding s/sentence", "ours", "decode_s", lambda row, _: _mean(row, decoding_seconds), about=(
        "Decoding seconds: of processor time (all threads) on a processor, of the clock on a GPU."
    )),
    Cost("decode_memory", "decoding MB", "ours", "decode_memory", lambda row, _: _mean(row, decoding_memory),
         unit=1e6, about=(
         "Decoding MB: peak memory of the GPU's tensors, or on a CPU of the whole process since its start. A batch has "
         "the same number of hypotheses with every beam size."
    )),
)  # fmt: skip


def fitting(cost: Cost, known: Collection[float], published: Collection[float]) -> Cost:
    """Return the cost with a unit that fits its values.

    If no published numbers are printed, the numbers of parameters of small networks are printed in units of 1 or 10³.
    Other costs are returned unchanged.
    """
    largest = max(known, default=0.0)
    if cost.key != "params" or published or largest >= 1e6:
        return cost
    if largest < 1e4:
        return replace(cost, header="params", unit=1.0, digits=0)
    return replace(cost, header="params ×10³", unit=1e3)


def _measured(name: str, head: str, about: str) -> Cost:
    when, _, metric = name.partition(".")

    def value(row: Row, _: Table) -> float | None:
        return _mean(row, lambda outcome: getattr(outcome.record, when).get(metric) if outcome.record else None)

    key = f"{when}_{metric}"
    return Cost(key, head, "", key, value, always=True, about=about)


_ABOUT = {
    "entropy": (
        "Entropy: of the softmax of attention before the update, in nats; the mean over layers, heads and pieces "
        "of the first sentences trained on."
    ),
    "gradient": "Gradient norm: of all parameters at the step, before clipping.",
    "jacobian": (
        "Gradient by distance: the norm of the gradient of the encoder's last output with respect to the input at this "
        "distance (in pieces), divided by that with respect to the last input; before the first or the last update, "
        "without dropout."
    ),
}


def _measurements(table: Table) -> Iterator[Cost]:
    abouts = dict(_ABOUT)  # each note is printed once
    for name, head in table.measured.items():
        yield _measured(name, head, abouts.pop(name.partition(".")[2].partition("_")[0], ""))


def shown(table: Table, named: Collection[str] = ()) -> list[Cost]:
    """Return the costs that the table prints.

    These are costs with `always`, costs with published numbers in the rows, and costs in `named`. A name in
    `named` that is also the name of a setting or a metric does not refer to a cost.
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

    return [*_measurements(table), *(cost for cost in COSTS if printed(cost))]


def cost_notes(table: Table, printed: Sequence[Cost]) -> Iterator[Note]:
    """Yield notes on how the printed costs are computed, and on the devices and rows whose costs are unknown."""
    yield from (Note(cost.about) for cost in printed if cost.about)
    if any(cost.key in ("flops", "hours") for cost in printed):
        branches = [outcome for outcome in table.outcomes if outcome.record is not None and outcome.run.spec.parent_run]
        lacking = [outcome.run.row for outcome in branches if _with_parent(outcome, table, _done) is None]
        if rows := ", ".join(dict.fromkeys(lacking)):
            yield Note(f"Training costs are blank for {rows}: this store has no record of the parent run.", "gap")
    if not any(cost.name == "flops_by_time" for cost in printed):
        return
    trained = [o for row in table.rows for o in row.outcomes if o.record is not None]
    unknown = sorted({device(o) for o in trained if sustained(device(o), table.spec.sustained_flops) is None} - {""})
    if unknown:
        yield Note(
            f"By time is blank for {', '.join(unknown)}: no sustained rate is known. Name one in the study, for "
            "instance sustained_flops = {P100 = 9.5e12}.",
            "gap",
        )
    partial = [o for o in trained if _time_unknown(o)]
    if partial:
        rows = ", ".join(dict.fromkeys(o.run.row for o in partial))
        yield Note(f"By time is blank for {rows}: the time of the whole training was not recorded.", "gap")
