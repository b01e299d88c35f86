"""Write a study file for runs that were trained elsewhere."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ablations.extras.imports.arrive import ImportedRun, SetAndMetric, set_and_metric
from ablations.extras.imports.names import as_key, printable, row_keys, setting_names
from experiments.dotted import toml
from experiments.tasks.direction import direction
from reports.results.number_text import decimals

MOST_DIGITS = 12  # the largest value of `digits` in a study


def study_text(
    name: str,
    source: str,
    arrived: Sequence[ImportedRun],
    metrics: Mapping[str, SetAndMetric],
    better: Mapping[str, str],
) -> str:
    """Return the text of the study file. The first row is the base row.

    Keys and names of settings are made from the names in the source. If they differ, the original name becomes the
    label or the heading. better: "lower" or "higher" for each metric whose direction the source declares.
    """
    first: dict[str, ImportedRun] = {}  # first run of each row, in the order of the rows
    for one in arrived:
        first.setdefault(one.row, one)
    names = list(dict.fromkeys(name for one in first.values() for name in one.settings))
    varying = [n for n in names if len({repr(one.settings.get(n)) for one in first.values()}) > 1]
    ours = setting_names(names)
    base = next(iter(first))
    seeds = {row: sum(one.row == row for one in arrived) for row in first}
    head = [f"name = {_text(as_key(name, 'runs'))}", f"title = {_text(f'Runs of {source}')}", 'task = "imported"', ""]
    settings = [f"{ours[n]} = {_value(first[base].settings.get(n))}" for n in names]
    parts = [*head, *(["[base]", *settings, ""] if settings else [])]
    labelled = any(one.label for one in first.values())
    if varying and (labelled or any(ours[n] != n for n in varying)):
        heads = {n: n.rpartition(".")[2] if ours[n] == n else n for n in varying}
        parts += ["[columns]", *(f"{toml(ours[n])} = {_text(heads[n])}" for n in varying), ""]
    for theirs, (set_, metric) in {score: (name, score) for name, score in metrics.items()}.values():
        parts += ["[[metric]]", f"name = {_text(metric)}", f"set = {_text(set_)}"]
        parts += [f"head = {_text(metric)}"] if theirs == metric else []  # the source names no set
        values = [[one.scores.get((set_, metric), math.nan) for one in arrived if one.row == row] for row in first]
        way = direction_of(theirs, better)
        parts += [f'better = "{way}"' if way else '# better = "lower"   # or "higher": its name does not decide']
        parts += [f"digits = {digits(values)}", ""]
    groups = row_keys(one.run.group for one in first.values() if one.run.group)
    for row, one in first.items():
        parts += ["[[variation]]", f"key = {_text(row)}", "imported = true"]
        parts += [f"label = {_text(one.label)}"] if one.label else []
        parts += [f"group = {_text(groups[one.run.group])}"] if one.run.group else []
        parts += [f"seeds = {seeds[row]}"] if seeds[row] > 1 else []
        changed = {n: one.settings.get(n) for n in varying}
        changed = {n: v for n, v in changed.items() if repr(v) != repr(first[base].settings.get(n))}
        inner = ", ".join(f"{ours[n]} = {_value(v)}" for n, v in changed.items())
        parts += [f"set = {{{inner}}}", ""] if inner else [""]
    return "\n".join(parts).rstrip() + "\n"


def direction_of(name: str, better: Mapping[str, str]) -> str:
    """Return "lower" or "higher": as declared, or guessed from the name of the metric; "" if it is unknown."""
    return better.get(name, "") or direction(set_and_metric(name)[1]) or direction(name)


def digits(rows: Sequence[Sequence[float]]) -> int:
    """Return the number of digits to print after the decimal point.

    The result is chosen so that two digits of the median spread within rows are printed, up to 6 digits. Without a
    spread, it is the largest number of digits that a value has, up to 4. There are more digits, up to MOST_DIGITS, if
    all values of the table are small, or if all values of a row would be printed as zero.
    """
    spreads = [statistics.stdev(values) for values in rows if len(values) > 1 and all(map(math.isfinite, values))]
    largest = [max((abs(value) for value in values if math.isfinite(value)), default=0.0) for values in rows]
    places = [_three_digits(value) for value in largest if value]
    if spreads and (spread := statistics.median(spreads)) > 0:
        found = min(max(1 - math.floor(math.log10(spread)), 0), max(6, min(places, default=0) + 1))
    else:
        finite = [value for values in rows for value in values if math.isfinite(value)]
        found = min(max(decimals([float(f"{value:.10g}") for value in finite]), 0 if finite else 2), 4)
    needed = (_three_digits(value) for value in largest if value and round(value, found) == 0)
    return min(max([found, *needed]), MOST_DIGITS)


def _three_digits(value: float) -> int:
    """Return the number of digits after the decimal point that shows three significant digits of a value."""
    return 2 - math.floor(math.log10(value))


def _value(given: Any) -> str:
    """Return the value of a setting in TOML; an empty text if the run does not have the setting."""
    return toml("" if given is None else given)


def _text(words: str) -> str:
    return toml(printable(words))
