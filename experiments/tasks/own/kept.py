"""The metrics of a finished attempt at a user's trainer, read from the files that the attempt kept. Imports no torch.

    final/metrics.json    by set: what the trainer returned, printed as JSON, or wrote into the file {metrics}
    final/readings.json   the number that each pattern of the study found while the command ran
    log.txt               the command's output, in which patterns are searched that the study has got since

So a metric that is added to a study, renamed or corrected needs no training.
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
from experiments.tasks.own.shell import CHUNK, Printed

READINGS = "readings.json"
Pattern = tuple[str, ...]  # set, metric, regular expression, which of its numbers, and perhaps how they are written


@dataclass
class SetMetrics:
    """The metrics of one set. `lacking`: promised metrics without a value, with the reason where one is known."""

    metrics: dict[str, float] = field(default_factory=dict)
    lacking: dict[str, str] = field(default_factory=dict)
    readings: dict[str, list[str]] = field(default_factory=dict)  # metric → pattern, `take`, perhaps `number`


def keep_readings(folder: Path, readings: Readings) -> None:
    """Write what the patterns found while the command ran."""
    found = [
        {"set": one.set, "metric": one.metric, "pattern": one.pattern, "take": one.take, "value": one.value}
        | ({"number": one.number} if one.number else {})
        for one in readings.each
    ]
    write_json(folder / READINGS, {"readings": found})


def patterns_of(patterns: Iterable[Sequence[str]], set_: str) -> list[Pattern]:
    """The patterns of a study that read a metric of this set."""
    return [tuple(each) for each in patterns if each[0] == set_]


def outdated(made: EvaluationResult, printed: Iterable[str], patterns: Iterable[Pattern]) -> bool:
    """Return whether an evaluation has a printed metric by another pattern than the study's present one.

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
    """The metrics of a set from `weights`, the folder of the attempt that trained. Raises Damaged.

    promised: the metrics that the study prints, as in EvaluationSpec. before: an earlier evaluation of the same
    weights, whose numbers stay unless their pattern has changed. emit: takes new points of the training curve.
    """
    now = {metric: read_by for _, metric, *read_by in patterns}
    printed = {*now, *(name.removeprefix(f"{set_}.") for name in promised)}
    earlier: Mapping[str, list[str]] = before.readings if before else {}
    found = SetMetrics(readings={**{name: read for name, read in earlier.items() if name not in printed}, **now})
    if before is not None:  # what the study does not print any more stays too
        stay = {name for name in before.metrics if name not in printed or earlier.get(name) == now.get(name)}
        found.metrics |= {n: v for n, v in before.metrics.items() if n in stay and v is not None}
    found.metrics |= of_set(read_json(weights / FINAL / "metrics.json") or {}, set_, promised)
    while_training = (read_json(weights / FINAL / READINGS) or {}).get("readings", [])
    # a renamed metric has the number of its pattern
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
    """Search the kept output: for numbers by the patterns `unread`, for points of the curve by those of `curves`."""
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
            if number:  # the last number of an output is behind what was left out
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
    """The reason for a missing metric without the lines of the output that follow it: for a note under a table."""
    return why.partition("\n")[0].removesuffix(LAST_LINES).strip()


def _ignore(kind: str, **fields: Any) -> None:
    pass
