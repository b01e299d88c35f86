"""The search space of each row according to a study's [tune], and the study with the settings that were found.

This module trains nothing.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ablations.study.overrides import check_names, setting_names
from ablations.study.parts import Tune
from ablations.study.selectors import Selection
from ablations.study.study import Study
from ablations.study.variation import Variation
from experiments.config.run_config import RunConfig
from experiments.dotted import flatten
from experiments.errors import UserError
from experiments.messages import number, suggestion
from experiments.run_spec import TrainerSpec
from experiments.tasks.base import Task
from experiments.tasks.columns import Column
from experiments.tuning import FAILED, Range, Search, Space, check_sampler

SETS = "evaluation.sets"  # the setting that lists the sets to score, if the task has such a setting
# Settings that version 0.1.0 recorded for built-in tasks even if they were not set. Keys of searches contain them.
_RECORDED_UNSET: Mapping[str, list[str]] = MappingProxyType({"modules": [], "evaluation.modules": []})


def tune_of(study: Study, task: Task) -> Tune:
    """Return the study's [tune], checked against the task's settings.

    Raises UserError if the study has no [tune], or if it is not valid for this task.
    """
    tune = study.tune
    if tune is None:
        raise UserError(
            f"{study.origin}: the study has no [tune]. Give the trials of each row and the ranges: "
            "[tune] trials = 8, [tune.range] training.learning_rate_scale = {low = 0.3, high = 3, log = true}."
        )
    where = f"{study.origin}, [tune]"
    check_sampler(tune.sampler)
    check_names(
        tune.ranges, setting_names(task.config_type), f"{where} range", task.config_type.setting_roles.given_elsewhere
    )
    if not tune.ranges:
        raise UserError(f"{where}: it has no ranges, so nothing can be tuned. Add a range.")
    if tune.set.startswith("test"):
        raise UserError(
            f'{where}: set = "{tune.set}": settings chosen on a test set make its scores invalid. Tune '
            "on a development set; the table prints the tuned rows on the test sets."
        )
    return tune


def deciding_column(study: Study, task: Task) -> Column:
    """Return the column to optimise. Raises UserError if there is no such column or its direction is unknown."""
    tune = tune_of(study, task)
    there = [column for column in task.columns if column.set == tune.set]
    for column in there:
        if not tune.metric or column.metric == tune.metric:
            if not column.better:
                raise UserError(
                    f"{study.origin}, [tune]: it is unknown whether lower or higher {column.metric} is better. Add "
                    'better = "lower" or better = "higher" to its [[metric]].'
                )
            return column
    names = [f"{column.metric} on {column.set}" for column in task.columns if column.set != "*"]
    wanted = f"{tune.metric or 'a metric'} on {tune.set}"
    raise UserError(
        f"{study.origin}, [tune]: no column prints {wanted}, so its direction (lower or higher is better) is unknown. "
        f"{suggestion(wanted, names, 'columns')}"
    )


def space_of(study: Study, row: Variation, config: Any, chosen: Selection, task: Task) -> Space:
    """Return the search space of a row.

    The space leaves out settings that the row declares, that the command line sets, or that the row does not use.
    """
    tune, column = tune_of(study, task), deciding_column(study, task)
    taken = {*row.declared, *chosen.forced, *config.unread(tune.ranges)}
    ranges = {
        name: Range(given.low, given.high, given.log, given.step, given.choices)
        for name, given in tune.ranges.items()
        if name not in taken
    }
    return Space(ranges, column.metric, tune.set, column.better == "lower", tune.sampler, tune.seed)


def with_tuned(study: Study, found: Mapping[str, Mapping[str, Any]], notes: Sequence[str] = ()) -> Study:
    """Return the study with `found` (row key → settings) as the rows' tuned settings, and with `notes` added."""
    rows = tuple(row.model_copy(update={"tuned": dict(found.get(row.key, row.tuned))}) for row in study.variations)
    return study.model_copy(update={"variations": rows, "notes": (*study.notes, *notes)})


def notes_of(searches: Mapping[str, Search], trials: int, column: Column) -> list[str]:
    """Return notes for the table: the tuned settings, the set, the number of trials, and the results."""
    some = next(iter(searches.values())).space
    ranges = {name: given for search in searches.values() for name, given in search.space.ranges.items()}
    looked = "; ".join(f"{name} {given}" for name, given in ranges.items())
    better = "lowest" if some.minimize else "highest"
    notes = [
        f"Tuned: each row had {number(trials, 'trial')} ({some.sampler}, one seed each); the settings with the "
        f"{better} {column.metric} on {some.set} were kept; no other set was used. Searched: {looked}."
    ]
    return notes + [_found(row, search, column) for row, search in searches.items()]


def _found(row: str, search: Search, column: Column) -> str:
    failed = search.counted(FAILED)
    others = f", {failed} failed" if failed else ""
    own = "" if len(search.space.ranges) else " (nothing to tune: it declares every searched setting)"
    best = search.best
    if best is None:
        return f"{row}: {number(len(search.trials), 'trial')}{others}{own}."
    settings = ", ".join(f"{name.rpartition('.')[2]} = {_short(value)}" for name, value in best.params.items())
    return (
        f"{row}: best of {number(len(search.trials), 'trial')}{others}: number {best.number + 1}, "
        f"{column.metric} {best.value:.{column.digits + 1}f} on {search.space.set} with {settings}."
    )


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def about(config: Any, trainer: TrainerSpec, inputs: Mapping[str, str], space: Space) -> dict[str, Any]:
    """Return the facts that identify a row's trials, apart from the search space.

    The facts are the command and code of the row's trainer, its data, and its settings. Settings in the search space
    and the list of scored sets are left out. A search that version 0.1.0 began keeps its key, so its trials still
    count.
    """
    unset = _RECORDED_UNSET if isinstance(config, RunConfig) else {}
    given = {**unset, **dict(flatten(config))}
    settings = {name: value for name, value in given.items() if name not in space.ranges and name != SETS}
    facts: dict[str, Any] = {"command": trainer.command} if trainer.command else {}
    if trainer.tree:
        facts |= {"code_tree": trainer.tree, "code_base": trainer.base, "code_lines": trainer.lines}
    found = {"settings": {**facts, **settings}, "inputs": dict(inputs)}
    hidden = {name: fact for name, fact in facts.items() if name in settings}  # facts with the name of a setting
    return {**found, "trainer": hidden} if hidden else found
