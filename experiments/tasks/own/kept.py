"""Read the metrics of a user's trainer from the files that a finished attempt has stored.

    final/metrics.json    metrics by set: the trainer returned them, printed them as JSON, or wrote them to {metrics}
    final/readings.json   the number that each pattern of the study found while the command ran
    log.txt               the output of the command; it is searched for patterns that were added to the study later

A study can therefore add, rename or correct a metric without another training.

This module does not import torch.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.store.checksummed import read_json, write_json
from experiments.store.durable import open_regular
from experiments.store.layout import LOG
from experiments.store.results import RESULT_FILE, EvaluationResult, Output, TrainingResult
from experiments.tasks.own.context import FINAL, of_set
from experiments.tasks.own.patterns import LAST_LINES, Readings, check_pattern
from experiments.tasks.own.trainer_output import CHUNK, Printed

READINGS = "readings.json"
Pattern = tuple[str, ...]  # (set, metric, regular expression, `take`), followed by `number` if the metric declares it


@dataclass
class SetMetrics:
    """The metrics of one set."""

    metrics: dict[str, float] = field(default_factory=dict)
    lacking: dict[str, str] = field(default_factory=dict)  # promised metric without a value → reason; "" if unknown
    readings: dict[str, list[str]] = field(default_factory=dict)  # metric → [pattern, take] or [pattern, take, number]


def keep_readings(folder: Path, readings: Readings) -> None:
    """Write the numbers that the patterns found while the command ran to readings.json."""
    found = [
        {"set": one.set, "metric": one.metric, "pattern": one.pattern, "take": one.take, "value": one.value}
        | ({"number": one.number} if one.number else {})
        for one in readings.each
    ]
    write_json(folder / READINGS, {"readings": found})


def patterns_of(patterns: Iterable[Sequence[str]], set_: str) -> list[Pattern]:
    """Return the patterns of a study that read a metric of this set."""
    return [tuple(each) for each in patterns if each[0] == set_]


def outdated(made: EvaluationResult, printed: Iterable[str], patterns: Iterable[Pattern]) -> bool:
    """Return whether an evaluation has read a metric by another pattern than the present pattern of the study.

    printed: the metrics of this set that the study prints.
    """
    now = {metric: read_by for _, metric, *read_by in patterns}
    return any(now.get(metric) != made.readings.get(metric) for metric in {*printed, *now})


def read_kept(
    weights: Path,
    set_: str,
    promised: Sequence[str],
    patterns: Sequence[Pattern],
    before: EvaluationResult | None = None,
    emit: Callable[..., None] | None = None,
) -> SetMetrics:
    """Read the metrics of a set from the stored files of an attempt. Raises Damaged if a file is damaged.

    weights: the folder of the attempt that trained.
    promised: the metrics that the study prints, as in EvaluationSpec.
    before: an earlier evaluation of the same weights. Its numbers are kept, except those whose pattern has changed.
    emit: function that reports new points of the training curve.
    """
    now = {metric: read_by for _, metric, *read_by in patterns}
    printed = {*now, *(name.removeprefix(f"{set_}.") for name in promised)}
    earlier: Mapping[str, list[str]] = before.readings if before else {}
    found = SetMetrics(readings={**{name: read for name, read in earlier.items() if name not in printed}, **now})
    if before is not None:  # also keep the metrics that the study no longer prints
        stay = {name for name in before.metrics if name not in printed or earlier.get(name) == now.get(name)}
        found.metrics |= {n: v for n, v in before.metrics.items() if n in stay and v is not None}
    found.metrics |= of_set(read_json(weights / FINAL / "metrics.json") or {}, set_, promised)
    while_training = (read_json(weights / FINAL / READINGS) or {}).get("readings", [])
    # A number belongs to its pattern. If only the name of a metric has changed, the number is still valid.
    read_by = [(one["pattern"], one["take"], *filter(None, [one.get("number")])) for one in while_training]
    numbers = {by: one["value"] for by, one in zip(read_by, while_training, strict=True)}
    drawn = [(one["set"], one["metric"], *by) for by, one in zip(read_by, while_training, strict=True)]
    found.metrics |= {each[1]: value for each in patterns if (value := numbers.get(each[2:])) is not None}
    unread = [each for each in patterns if numbers.get(each[2:]) is None]
    curves = [
        each
        for each in patterns
        if "step" in check_pattern(each[2]).groupindex and each not in drawn and earlier.get(each[1]) != list(each[2:])
    ]
    if unread or (emit and curves):
        _read_log(weights, unread, curves if emit else [], found, emit or _ignore)
    names = [name.removeprefix(f"{set_}.") for name in promised]
    found.lacking = {name: found.lacking.get(name, "") for name in names if name not in found.metrics}
    return found


def _read_log(
    weights: Path, unread: Sequence[Pattern], curves: Sequence[Pattern], found: SetMetrics, emit: Callable[..., None]
) -> None:
    """Search the stored output for the numbers of the patterns `unread` and for the training curves of `curves`."""
    path = weights / LOG
    if not path.is_file():
        found.lacking |= {metric: "the log of its training is not kept" for _, metric, *_ in unread}
        return
    record = TrainingResult.load(weights / RESULT_FILE) or TrainingResult()
    output = record.output or Output(ranges=[[0, path.stat().st_size]])
    readings, drawing = Readings(unread, "", _ignore), Readings(curves, "", emit)
    if curves:
        emit("redrawn", metrics=[one.point for one in drawing.each])

    def line(text: str) -> None:
        readings.line(text)
        drawing.line(text)

    with open_regular(path) as stream:
        for number, (begin, end) in enumerate(output.ranges):
            if number:  # between two ranges, output was left out; the last number of a metric must be after the gap
                readings.forget()
            printed = Printed(lambda point: None, line)
            stream.seek(begin, os.SEEK_SET)
            while begin < end and (data := stream.read(min(CHUNK, end - begin))):
                printed.take(data)
                begin += len(data)
            printed.take(b"", final=True)
    for one in readings.each:
        if output.left_out and (one.take != "last" or one.value is None):
            found.lacking[one.metric] = (
                f"{output.left_out:,} bytes of the middle of {LOG} were left out when it was written, and the pattern "
                f"{one.pattern!r} may have matched there"
            )
        elif one.value is None:
            found.lacking[one.metric] = readings.never(one)
        else:
            found.metrics[one.metric] = one.value


def first_sentences(why: str) -> str:
    """Return the reason for a missing metric without the lines of output that follow it, for a note under a table."""
    return why.partition("\n")[0].removesuffix(LAST_LINES).strip()


def _ignore(kind: str, **fields: Any) -> None:
    pass
