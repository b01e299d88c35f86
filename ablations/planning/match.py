"""Make the number of parameters (`match = "params"`) or the training cost (`match = "flops"`) of rows equal to base's.

The plan solves for the setting `by` before training. A solved value is an ordinary setting of the row in this profile,
so the row's run_ids are the same as if the study set this value. Counts are computed from the configuration alone
(`Task.num_params`, `Task.cost`).
"""

import math
from collections.abc import Callable, Mapping
from functools import cache

from ablations.planning.resolve import Context, check_words, row_config
from ablations.study.overrides import check_names, setting_names
from ablations.study.selectors import Selection, select_rows
from ablations.study.study import Study
from ablations.study.variation import SCALED, Variation
from experiments.config.task_config import TaskConfig
from experiments.dotted import flatten
from experiments.errors import UserError
from experiments.messages import show
from experiments.tasks.base import Task

WITHIN = 0.01  # largest relative difference between two counts that are regarded as equal
WORDS = {"params": "parameters", "flops": "operations of training"}
_FARTHEST = 1024  # upper limit of the search, as a multiple of the row's value
_MOST_NAMED = 6  # maximum number of rows that a note names
_WIDEST_GAP = 64  # largest gap between two values that the network accepts, such as even widths
# The names that `by` may have instead of one setting, and the settings that each name stands for.
_SETTINGS = {**SCALED, "width": (*SCALED["width"], *SCALED["head_width"])}


def matched(study: Study, selection: Selection, task: Task) -> tuple[Study, list[str]]:
    """Return the study with the solved values in its rows, and notes for the table.

    The notes say what was matched and by which setting, and list the remaining differences. Values are solved for the
    selected rows, and for the rows that selected ensembles and branches use. No values are solved for base, ensembles,
    branches and imported rows. Raises UserError if a row cannot be matched.
    """
    name, profile = study.profile_named(selection.profile)
    if not any(each.match or each.by for each in (study, profile, *study.variations)):
        return study, []
    context = Context(study, name, profile, selection, task)
    named = {
        row.ensemble.of if row.ensemble else row.branch.row if row.branch else row.key
        for row in select_rows(study, selection.rows)
    }
    check_words(context)
    rows, near, unmatched = [], dict[tuple[str, str], dict[str, float]](), dict[str, list[str]]()
    for row in study.variations:
        what = row.match or profile.match or study.match or "none"
        by = row.by or profile.by or study.by
        asked = [each.match for each in (row, study, *study.profiles.values()) if each.match]
        if (what != "none" and not by) or (row.by and not asked):
            raise UserError(
                f"{context.where(row)}: `match` and `by` belong together: what is made equal to base's, and the "
                'setting that is solved for. Write, for instance, match = "params" and by = "model.d_ff".'
            )
        apart = row.is_base or row.imported or row.ensemble or row.branch
        if what == "none" or apart or row.key not in named:
            rows.append(row)
        elif given := [setting for setting in _SETTINGS.get(by, (by,)) if setting in selection.forced]:
            unmatched.setdefault(given[0], []).append(row.key)
            rows.append(row)
        else:
            solved, off = _solved(context, row, what, by)
            near.setdefault((what, by), {})[row.key] = off
            of_profile = row.by_profile.get(name, {}) | solved
            rows.append(row.model_copy(update={"by_profile": {**row.by_profile, name: of_profile}}))
    notes = [_note(what, by, found) for (what, by), found in near.items()]
    notes += [f"Not matched, because --set gives {given}: {', '.join(keys)}." for given, keys in unmatched.items()]
    return study.model_copy(update={"variations": tuple(rows)}), notes


def _solved(context: Context, row: Variation, what: str, by: str) -> tuple[dict[str, int], float]:
    """Return the settings that bring the row's count nearest to base's count, and the relative difference that remains.

    The settings are {} if the row's present values are the nearest.
    """
    where, words = f'{context.where(row)}, match = "{what}", by = "{by}"', WORDS[what]
    count = context.task.num_params if what == "params" else context.task.cost
    leave_out = 'Leave out `match`, or exempt the row: match = "none".'
    config, _ = row_config(context, row)
    target, own = count(row_config(context, None)[0]), count(config)
    if not target or not own:
        raise UserError(
            f"{where}: the {words} are unknown before training, so `by` cannot be solved. A trainer of your own "
            f"declares them (num_params, cost) for rows that do not change the network. {leave_out}"
        )
    start = _values(context, row, config, by, where)
    unit = math.gcd(*start.values())

    def settings(times: int) -> dict[str, int]:
        return {name: value // unit * times for name, value in start.items()}

    @cache
    def counted(times: int) -> float | None:
        tried = {**row.by_profile, context.profile_name: row.by_profile.get(context.profile_name, {}) | settings(times)}
        try:
            return count(row_config(context, row.model_copy(update={"by_profile": tried}))[0])
        except UserError:  # the network does not accept this value
            return None

    try:
        found = nearest(counted, unit, target)
    except ValueError as error:
        given = ".4g" if what == "flops" else ",d"
        raise UserError(
            f"{where}: base has {target:{given}} {words}, this row {own:{given}}, and {error}. Take another `by`. "
            f"{leave_out}"
        ) from None
    off = (counted(found) or 0) / target - 1
    return settings(found) if found != unit else {}, off


def _values(context: Context, row: Variation, config: TaskConfig, by: str, where: str) -> dict[str, int]:
    """Return the settings that `by` stands for, with the row's values. Solving keeps the ratios of these values."""
    known = setting_names(context.task.config_type)
    if by not in _SETTINGS:
        check_names([by], [*known, *_SETTINGS], where)
        mine = {**row.set, **row.last_word(context.profile_name)}
        if by in mine and (by not in context.profile.set or by in row.last_word(context.profile_name)):
            raise UserError(
                f"{where}: the row sets {by} = {show(mine[by])} itself. Leave that out, or exempt the row: "
                'match = "none".'
            )
    names = [name for name in _SETTINGS.get(by, (by,)) if name in known]
    unread = config.unread(names)
    values = {name: value for name, value in flatten(config) if name in names and name not in unread}
    if not values:
        why = f"{names[0]} changes nothing: {config.why_unread(names[0])}" if unread else "the task has no such setting"
        raise UserError(f'{where}: {why}. Take another `by`, or exempt the row: match = "none".')
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UserError(f"{where}: {name} = {show(value)} is no whole number of at least 1. Take another `by`.")
    return values


def nearest(count: Callable[[int], float | None], start: int, target: float) -> int:
    """Return the number whose count is nearest to the target, found by bisection. `start` wins a tie.

    count: a function that does not decrease; it returns None for a number that is not valid. Raises ValueError, with
    the reason, if the count does not grow, or if no number brings the count near the target.
    """

    def valid(numbers: range) -> tuple[int, float] | None:
        return next(((number, found) for number in numbers if (found := count(number)) is not None), None)

    def above(number: int) -> tuple[int, float]:
        """Return the first valid number that is not below `number`, and its count."""
        found = valid(range(number, number + _WIDEST_GAP))
        if found is None:
            raise ValueError(f"no value near {number:,} is valid")
        return found

    if above(2 * start)[1] <= (count(start) or 0):
        raise ValueError("a larger value gives no more")
    low, high = 1, start
    while above(high)[1] < target:
        if high >= start * _FARTHEST:
            raise ValueError(f"with {high:,} it is still below base")
        high *= 2
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if above(middle)[1] >= target else (middle + 1, high)
    over, below = above(low), valid(range(low - 1, max(0, low - 1 - _WIDEST_GAP), -1))
    if below is None and over[1] > target * (1 + WITHIN):
        raise ValueError(f"even with {over[0]:,} it is above base")
    same = [(start, found)] if (found := count(start)) is not None else []
    return min([*same, over, *([below] if below else [])], key=lambda each: abs(each[1] - target))[0]


def _note(what: str, by: str, near: Mapping[str, float]) -> str:
    """Return a note such as "Parameters are matched to base's by model.d_ff: a, b within 0.3 %; c is +1.4 % off, …"."""
    inside = {key: abs(off) for key, off in near.items() if abs(off) <= WITHIN}
    names = ", ".join(inside) if len(inside) <= _MOST_NAMED else f"{len(inside)} rows"
    parts = [f"{names} within {math.ceil(max(inside.values()) * 1000) / 10:g} %"] if inside else []
    parts += [f"{key} is {100 * off:+.1f} % off, the nearest" for key, off in near.items() if key not in inside]
    return f"{WORDS[what].capitalize()} are matched to base's by {by}: {'; '.join(parts)}."
