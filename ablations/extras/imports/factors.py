"""Guess which columns of a source are metrics, which are settings that distinguish rows, and which are neither.

The program prints every guess with the option that changes it.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ablations.extras.imports.external import External, ExternalRun, is_gap, why_not
from ablations.extras.imports.external import number as as_number
from experiments.errors import UserError
from experiments.tasks.direction import is_metric

MOST_NAMED = 12  # maximum number of names in a message
# Names of columns with measurements of a run, such as its duration.
_MEASURED = re.compile(
    r"(?:^|[\W_])(?:time|wall|walltime|duration|runtime|elapsed|date|datetime|timestamp|created|started|finished|updated"
    r"|hostname|host|pid|memory|vram|s|sec|secs|seconds|ms|minutes|hours|gb|mb)(?:$|[\W_])",
    re.IGNORECASE,
)
# Names of columns that only number the runs.
_NUMBERED = re.compile(r"(?:^|[\W_])(?:run|id|uuid|index|idx|trial|version|job)(?:$|[\W_])", re.IGNORECASE)
_IDENTITY = re.compile(r"\d+|[0-9a-f]{8,}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_STEPS = {"step", "epoch", "global_step", "iteration", "iter", "trainer/global_step"}
_NUMBER_LIKE = re.compile(r"[-+−]?\d[\d.,'\s]*(e[-+]?\d+)?\s*[^\W\d_]{0,3}\s*[%±]?.*", re.IGNORECASE)


@dataclass(frozen=True)
class FactorChoice:
    """The choice of settings.

    rows: the settings that distinguish rows. settings: all settings to keep, which are equal in all runs of a row.
    """

    rows: tuple[str, ...]
    settings: tuple[str, ...]
    notes: tuple[str, ...] = ()  # one sentence for each omission


def guessed_metrics(foreign: External) -> list[str]:
    """Return the metrics that a source declares.

    If the source declares none, return the numeric columns whose names are names of metrics or contain "/". A column of
    texts is not a metric. Raises UserError if a column with such a name has both numbers and texts, or if all its texts
    look like numbers in another notation.
    """
    if foreign.metrics:
        return foreign.metrics
    found = []
    for name in foreign.settings:
        if not (is_metric(name) or "/" in name):
            continue
        cells = [(run, run.settings[name]) for run in foreign.runs if name in run.settings]
        wrong = [(run, cell) for run, cell in cells if as_number(cell) is None and not is_gap(cell)]
        numbers = sum(as_number(cell) is not None for _, cell in cells)
        if wrong and (numbers or all(_NUMBER_LIKE.fullmatch(str(cell)) for _, cell in wrong)):
            run, cell = wrong[0]
            raise UserError(f"{run.at(name)}: {name} = {cell!r} is not a number{why_not(cell)}. {CORRECT}")
        if numbers and not wrong:
            found.append(name)
    return found


CORRECT = "Correct the cell, or name the metrics without this column: --metric A,B."


def choose(foreign: External, metrics: Collection[str], requested: Sequence[str]) -> FactorChoice:
    """Choose the settings that distinguish rows. requested: the settings of --row, which are used without a guess.

    Raises UserError for the log of a training, which has one line per step instead of one line per run.
    """
    runs, names = foreign.runs, [name for name in foreign.settings if name not in metrics]
    if requested:
        return FactorChoice(tuple(requested), tuple(requested))
    varying = [name for name in names if len({repr(run.settings.get(name)) for run in runs}) > 1]
    constant = [name for name in names if name not in varying]
    if all(run.row for run in runs):
        dropped = [name for name in varying if _varies_within(name, _by_row(runs)) and _no_setting(name, runs, metrics)]
        kept = [name for name in names if name not in dropped]
        return FactorChoice(tuple(kept), tuple(kept), tuple(_left_out(dropped)))
    _refuse_steps(foreign, varying, metrics)
    steps = [name for name in varying if name.lower() in _STEPS]
    rest = [name for name in varying if name not in steps]
    dropped = []  # steps at which runs ended, such as the epoch of the best checkpoint
    if steps and all(run.seed for run in runs) and _tells_apart(runs, rest):
        dropped = [name for name in steps if _varies_within(name, _by_settings(runs, rest))]
    varying = [name for name in varying if name not in dropped]
    dropped += _of_single_runs(runs, varying, metrics)
    rows = tuple(name for name in varying if name not in dropped)
    settings = tuple(name for name in names if name in rows or name in constant)
    return FactorChoice(rows, settings, tuple(_left_out(dropped)))


def _of_single_runs(runs: Sequence[ExternalRun], varying: Sequence[str], metrics: Collection[str]) -> Iterable[str]:
    """Return the columns that describe single runs: measurements, and columns that number the runs.

    Such a column varies within a row, and its number of different values is more than half of the number of runs. If
    runs have seeds, the other settings and the seed are enough to distinguish the runs. If all remaining columns also
    look like measurements or number the runs, they are returned too, unless runs with seeds could then not be
    distinguished. All runs then form one row.
    """
    values = {name: {repr(run.settings.get(name)) for run in runs} for name in varying}
    own = [name for name in varying if 2 * len(values[name]) > len(runs)]
    others = [name for name in varying if name not in own]
    seeded = all(run.seed for run in runs)
    dropped: list[str] = []
    if seeded and _tells_apart(runs, others) and _shares_seeds(runs, others):
        groups = _by_settings(runs, others)
        return [name for name in own if _varies_within(name, groups)]
    for name in own:
        rest = [other for other in varying if other not in (*dropped, name)]
        groups = _by_settings(runs, rest)
        if (
            rest
            and _no_setting(name, runs, metrics)
            and _varies_within(name, groups)
            and (not seeded or _tells_apart(runs, rest))
        ):
            dropped.append(name)
    rest = [name for name in varying if name not in dropped]
    if all(_no_setting(name, runs, metrics) for name in rest) and (not seeded or _tells_apart(runs, [])):
        return [*dropped, *rest]  # a single row: only measurements differ
    return dropped


def _no_setting(name: str, runs: Sequence[ExternalRun], metrics: Collection[str]) -> bool:
    """Return whether a column is a measurement or numbers the runs, judged by its name and values."""
    cells = [str(run.settings.get(name, "")) for run in runs]
    if _MEASURED.search(name):
        return True
    if metrics and is_metric(name):
        return all(as_number(cell) is not None or is_gap(cell) for cell in cells)
    return bool(_NUMBERED.search(name)) and all(_IDENTITY.fullmatch(cell) for cell in cells)


def _by_settings(runs: Sequence[ExternalRun], names: Sequence[str]) -> list[list[ExternalRun]]:
    groups: dict[tuple[str, ...], list[ExternalRun]] = defaultdict(list)
    for run in runs:
        groups[tuple(repr(run.settings.get(name)) for name in names)].append(run)
    return list(groups.values())


def _by_row(runs: Sequence[ExternalRun]) -> list[list[ExternalRun]]:
    groups: dict[str, list[ExternalRun]] = defaultdict(list)
    for run in runs:
        groups[run.row].append(run)
    return list(groups.values())


def _varies_within(name: str, groups: Iterable[Sequence[ExternalRun]]) -> bool:
    return any(len({repr(run.settings.get(name)) for run in group}) > 1 for group in groups)


def _tells_apart(runs: Sequence[ExternalRun], names: Sequence[str]) -> bool:
    """Return whether these settings and the seed distinguish all runs."""
    return all(len({run.seed for run in group}) == len(group) for group in _by_settings(runs, names))


def _shares_seeds(runs: Sequence[ExternalRun], names: Sequence[str]) -> bool:
    """Return whether several rows have the same seeds, so that seeds number the runs within a row."""
    groups = [{run.seed for run in group} for group in _by_settings(runs, names)]
    return len(groups) > 1 and any(a & b for a, b in itertools.pairwise(groups) if len(a) > 1)


def _left_out(names: Sequence[str]) -> Iterable[str]:
    if names:
        listed = f"{', '.join(names[:MOST_NAMED])}{' …' if len(names) > MOST_NAMED else ''}"
        one = names[0]
        yield (
            f"{listed}: taken as facts of single runs, because the values differ within a row (tabulate: --row {one} "
            f"tells rows apart by it, --metric {one} prints it)"
        )


def _refuse_steps(foreign: External, varying: Sequence[str], metrics: Collection[str]) -> None:
    steps = next((name for name in varying if name.lower() in _STEPS), None)
    if steps is None:
        return
    runs = foreign.runs
    others = [name for name in varying if name.lower() not in _STEPS and not is_metric(name)]
    rest = [name for name in others if not _no_setting(name, runs, metrics)]
    groups = [group for group in _by_settings(runs, rest) if len(group) > 1]
    same = [group for group in groups if len({run.seed for run in group}) < len(group)]
    if not same:
        return
    first, second = same[0][:2]
    raise UserError(
        f"{foreign.source} is the log of a training: {first.where} and {second.where} differ in {steps} alone, so "
        f"they are steps of one run. Keep the last or the best line of each run; --row {steps} makes each step a row."
    )
