"""Resolve a study, a profile and a selection into one validated configuration per row.

`resolve` checks that a row differs from base only in the settings that it declares. A setting has these sources, and a
later source replaces an earlier one: the configuration's defaults; the study's base; the row's `set`; the profile's
ratios; the profile's `set`; the row's `fixed`, `tuned` and `by_profile`; --corpus and --set on the command line.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import ValidationError

from ablations.planning.derived_rows import as_run, check_branch, first_step
from ablations.study.overrides import check_names, setting_names
from ablations.study.selectors import Selection, row_seeds, select_rows
from ablations.study.study import Study
from ablations.study.variation import Profile, Setting, Variation, check_ratios, scaled
from experiments.config.network_change import all_settings
from experiments.config.task_config import TaskConfig
from experiments.dotted import defaults, nested
from experiments.errors import UserError
from experiments.identity import NO_SEED, digest
from experiments.messages import nearest, plain, show
from experiments.run_spec import NO_TRAINER, TrainerSpec
from experiments.tasks.base import Task
from experiments.tasks.columns import MEASURED
from reports.spec.sentences import parse
from reports.spec.table_spec import CODE_LINES

Config = TypeVar("Config", bound=TaskConfig)


@dataclass(frozen=True)
class Replaced:
    """A value that a row declares and that the profile or the command line replaces."""

    name: str
    declared: Any
    value: Any
    by: str


@dataclass(frozen=True)
class PlannedRow:
    """A row with its resolved settings.

    `config` is the configuration of the run with the first seed. The row's other runs differ only in the seed.
    """

    variation: Variation
    config: TaskConfig
    seeds: tuple[int, ...]
    overrides: Mapping[str, Any]  # changes from base, after scaling, by dotted name
    replaced: tuple[Replaced, ...]
    trainer: TrainerSpec = NO_TRAINER  # the user's trainer, with the row's code if the row changes code
    repeated_by: tuple[str, ...] = ()  # keys of the rows that were merged into this row (see `merge_repeats`)
    parent_run: "PlannedRow | None" = None  # for a branch: the row that it continues, with the branch's seeds
    shared_steps: int = 0  # for a branch: the number of steps that its parent run trains

    def config_of(self, seed: int) -> TaskConfig:
        """Return the configuration with another seed."""
        return self.config.model_copy(update={"seed": seed})


@dataclass(frozen=True)
class Context:
    """A study, its selected profile and rows, and its task."""

    study: Study
    profile_name: str
    profile: Profile
    selection: Selection
    task: Task

    def where(self, row: Variation | None) -> str:
        """Return the name of a row, with study and profile, for messages. None stands for base."""
        name = f'row "{row.key}"' if row else "[base]"
        return f'{self.study.origin}, {name}, profile "{self.profile_name}"'


def resolve(study: Study, selection: Selection, task: Task) -> list[PlannedRow]:
    """Return the selected rows in the order of the study.

    Raises UserError for every mistake that can be found without reading the corpus.
    """
    name, profile = study.profile_named(selection.profile)
    rows = select_rows(study, selection.rows)
    context = Context(study, name, profile, selection, task)
    check_words(context)
    for row in rows:
        if row.ensemble and not task.ensembles:
            raise UserError(
                f"{context.where(row)}: the task {study.task} has no ensembles: only tasks of this program "
                "average the probabilities of several trainings. Remove the row."
            )
    configured = [(row, *row_config(context, row)) for row in (as_run(study, row) for row in rows)]
    _refuse_unread(context, configured)
    reference = all_settings(row_config(context, None)[0])
    planned = []
    for row, config, replaced in configured:
        changed = _changes(config, reference)
        if undeclared := [name for name in changed if name not in row.declared]:
            raise UserError(
                f"{context.where(row)}: it differs from base in {', '.join(undeclared)}, which it does not declare. "
                f"The configuration of the task {study.task} derives one setting from another. It must not, because "
                "then the table does not show everything that a row changes."
            )
        seeds = (NO_SEED,) if row.ensemble else tuple(row_seeds(study, row, selection))
        config = config.model_copy(update={"seed": seeds[0]})
        trainer = row.trainer_of(task.trainer)
        planned.append(_branched(context, PlannedRow(row, config, seeds, changed, replaced, trainer), reference))
    planned = merge_repeats(planned)
    refuse_equal(planned, study.origin, name)
    refuse_cancelled(planned, study, name)
    return planned


def _branched(context: Context, row: PlannedRow, reference: Mapping[str, Any]) -> PlannedRow:
    """Add the parent row, with the same seeds, to a branch. Return any other row unchanged.

    Raises UserError if the branch is not possible (see `check_branch`).
    """
    if row.variation.branch is None:
        return row
    where = context.where(row.variation)
    of = next(other for other in context.study.variations if other.key == row.variation.branch.row)
    step = first_step(row.variation, context.profile_name, context.profile, where)
    config, _ = row_config(context, of)
    check_branch(row.variation, config, row.config, step, context.task, where)
    parent_run = PlannedRow(of, config, row.seeds, _changes(config, reference), (), row.trainer)
    return replace(row, parent_run=parent_run, shared_steps=step)


def check_words(context: Context) -> None:
    """Raise UserError for a name in the study that does not exist: a setting, a column, or a published number.

    Also raise UserError for a name in [published] that a column of the task already prints, and for ratios of the
    profile that multiply nothing.
    """
    study, known = context.study, setting_names(context.task.config_type)
    given = context.task.config_type.setting_roles.given_elsewhere
    check_names(study.base, known, f"{study.origin}, [base]", given)
    columns, usual = context.task.columns, _measured(context.task)
    for name in study.published:
        if name in usual:
            raise UserError(
                f"{study.origin}, [published]: the table of the task {study.task} has a column for {name!r} already, "
                "which prints published numbers next to those of the runs. Leave the name out there, or take another."
            )
    numbers = dict.fromkeys(name for c in columns for name in (c.paper, c.key, c.metric) if name and "*" not in name)
    for claim in study.claims:
        _check(parse(claim.check).number, [*(numbers | dict.fromkeys(COSTS))], f'claim "{claim.check}"', study, "")
    measured = [f"{when}{name}" for when in MEASURED for name in context.task.init_stats]
    of_code = [CODE_LINES] if context.task.trainer.tree else []
    check_names(study.columns, [*known, *measured, *of_code], f"{study.origin}, [columns]", given)
    for name, profile in study.profiles.items():
        check_names(profile.set, known, f'{study.origin}, profile "{name}"', given)
    check_ratios(context.profile, known, f'{study.origin}, profile "{context.profile_name}"')
    for row in study.variations:
        check_names(row.declared, known, f'{study.origin}, row "{row.key}"', given)
        for key in row.paper:
            _check(key, paper_keys(study, context.task), f'row "{row.key}"', study, "published ")
    for name, (_, option) in context.selection.forced.items():
        check_names([name], known, option, given)


def row_config(context: Context, row: Variation | None) -> tuple[TaskConfig, tuple[Replaced, ...]]:
    """Return the configuration of a row (of base for None), and the declared values that were replaced.

    The module's docstring gives the order in which sources of settings apply.
    """
    study, profile, where = context.study, context.profile, context.where(row)
    by_profile = f'profile "{context.profile_name}"'
    by_row = f'row "{row.key}"' if row else ""
    forced = {name: Setting(value, option) for name, (value, option) in context.selection.forced.items()}
    own = row.last_word(context.profile_name) if row else {}
    above = _from(profile.set, by_profile) | _from(own, by_row) | forced
    unset = _from(defaults(context.task.config_type), "the defaults")
    written = _from(study.base, "[base]") | _from(row.set if row else {}, by_row)
    known = {name: s for name, s in (unset | written).items() if name not in above}
    sized = scaled(known, profile, context.profile_name, where)
    config = build(context.task.config_type, study.task, written | sized | above, where)
    if row is None:
        return config, ()
    meant = {name: (sized.get(name) or Setting(value, by_row)).value for name, value in row.set.items()}
    meant |= own
    declared = {**row.set, **own}
    replaced = [
        Replaced(name, declared[name], above[name].value, above[name].source)
        for name, value in meant.items()
        if name in above and above[name].value != value
    ]
    return config, tuple(replaced)


def build(config_type: type[Config], task: str, settings: Mapping[str, Setting], where: str) -> Config:
    """Return the validated configuration. All names must be known settings.

    Raises UserError with each wrong value and its source.
    """
    values = nested({name: setting.value for name, setting in settings.items()}) | {"task": task}
    try:
        return config_type.from_mapping(values)
    except ValidationError as error:
        found = "; ".join(_explain(e, settings).rstrip(".") for e in _of_unions(error.errors(), settings))
        raise UserError(f"{where}: {found}. Correct it in the study file, or with --set.") from None


def _of_unions(errors: Sequence[Any], settings: Mapping[str, Setting]) -> list[Any]:
    """Return the errors, with only one error per value that is not a number.

    For a setting that may be an integer or a float, pydantic reports two errors. The one about the
    integer is dropped.
    """
    no_numbers = {_setting_of(error["loc"], settings) for error in errors if error["type"] == "float_type"}
    return [
        error
        for error in errors
        if error["type"] != "int_type" or _setting_of(error["loc"], settings) not in no_numbers - {None}
    ]


def _explain(error: Any, settings: Mapping[str, Setting]) -> str:
    name = _setting_of(error["loc"], settings)
    if name is not None:
        return f"{name} = {show(settings[name].value)} (set by {settings[name].source}): {plain(error)}"
    finding = plain(error)  # an error about a whole section: add the sources of the values that it names
    involved = [n for n in settings if n in finding]
    if not involved:  # the error names the settings without their section
        words, section = set(re.findall(r"\w+", finding)), ".".join(str(part) for part in error["loc"])
        involved = [n for n in settings if n.startswith(section) and n.rpartition(".")[2] in words]
    return "; ".join([finding, *(f"{n} was set by {settings[n].source}" for n in involved)])


def _setting_of(location: tuple[int | str, ...], settings: Mapping[str, Setting]) -> str | None:
    """Return the setting that an error is about; None for an error about a whole section.

    Pydantic's location may go deeper than the setting, for instance to a list item.
    """
    for length in range(len(location), 0, -1):
        name = ".".join(str(part) for part in location[:length])
        if name in settings:
            return name
    return None


def _from(values: Mapping[str, Any], source: str) -> dict[str, Setting]:
    return {name: Setting(value, source) for name, value in values.items()}


def _refuse_unread(context: Context, rows: Sequence[tuple[Variation, TaskConfig, object]]) -> None:
    """Raise UserError for a setting that a row sets but does not use.

    Also raise UserError for a setting on the command line that no row uses.
    """
    for row, config, _ in rows:
        names = [*row.set, *row.fixed, *row.by_profile.get(context.profile_name, {})]
        for name in config.unread(names):
            why = config.why_unread(name)
            raise UserError(f"{context.where(row)}: it sets {name}, but {why}. Remove {name} from the row.")
    configs = [config for _, config, _ in rows]
    for name, (_, option) in context.selection.forced.items() if rows else ():
        if all(config.unread([name]) for config in configs):
            why = configs[0].why_unread(name)
            raise UserError(f"{option}: no row of this table reads {name}: {why}. Leave out the option.")


def _changes(config: TaskConfig, reference: Mapping[str, Any]) -> dict[str, Any]:
    settings = all_settings(config)
    changed = {name for name, value in settings.items() if name not in reference or reference[name] != value}
    return {name: value for name, value in settings.items() if name in changed and name != "seed"}


def merge_repeats(rows: list[PlannedRow]) -> list[PlannedRow]:
    """Merge each row of a design into the earlier row that has the same settings, so that both print as one row.

    Rows with a `seed_offset` are not merged.
    """
    kept: list[PlannedRow] = []
    first: dict[str, int] = {}  # digest of the settings → index in `kept`
    for row in rows:
        place = first.setdefault(_settings_digest(row), len(kept))
        if place < len(kept) and row.variation.design and not row.variation.seed_offset:
            kept[place] = replace(kept[place], repeated_by=(*kept[place].repeated_by, row.variation.key))
        else:
            kept.append(row)
    return kept


def _settings_digest(row: PlannedRow) -> str:
    """Return a digest that is equal for two rows with the same settings and code.

    Ensembles must also have the same members, and branches the same parent row and the same number of shared steps.
    """
    ensemble, branch = row.variation.ensemble, row.variation.branch
    return digest(
        [
            row.config.model_dump(mode="json", exclude={"seed"}),
            row.trainer.tree,
            ensemble and list(ensemble.seeds),
            branch and [branch.row, row.shared_steps],
            row.variation.imported and row.variation.key,
        ]
    )


def refuse_equal(rows: list[PlannedRow], origin: str, profile: str) -> None:
    """Raise UserError if two rows have equal settings and a common seed.

    Otherwise, the table would show the same runs twice.
    """
    seen: dict[tuple[str, int], PlannedRow] = {}
    for row in rows:
        settings = _settings_digest(row)
        for seed in row.seeds:
            other = seen.setdefault((settings, seed), row)
            if other is not row:
                raise UserError(
                    f'{origin}: the rows "{other.variation.key}" and "{row.variation.key}" have equal settings '
                    f'under profile "{profile}" and share {f"seed {seed}" if seed != NO_SEED else "their members"}: '
                    "the table would show the same runs twice."
                    f"{_lost(other)}{_lost(row)} Change one of them, leave one out with --rows, or, to repeat base, "
                    "give one a larger seed_offset."
                )


def refuse_cancelled(rows: list[PlannedRow], study: Study, profile: str) -> None:
    """Raise UserError if the profile or the command line replaces all changes of a row.

    Such a row would print base's numbers under another name.
    """
    for row in rows:
        changed = row.overrides or row.trainer.tree != study.code_tree
        if row.replaced and not changed and not row.variation.ensemble and not row.parent_run:
            raise UserError(
                f'{study.origin}: the row "{row.variation.key}" equals base under profile '
                f'"{profile}".{_lost(row)} Leave out the row with --rows, or do not replace that setting.'
            )


def _lost(row: PlannedRow) -> str:
    of = f'of row "{row.variation.key}"'
    return "".join(f" {r.by} replaces {r.name} = {show(r.declared)} {of} by {show(r.value)}." for r in row.replaced)


USUAL_COSTS = ("params", "flops")  # published costs of rows of any task: parameters (in millions), training FLOPs
COSTS = (*USUAL_COSTS, "hours")  # reports/table/cost.py has a column for each


def paper_keys(study: Study, task: Task) -> list[str]:
    """Return the allowed names of published numbers: those of the task's columns, of costs, and of the study."""
    return list(dict.fromkeys([*_measured(task), *study.published]))


def _measured(task: Task) -> list[str]:
    return [*(column.paper for column in task.columns if column.paper), *COSTS]


def published_names(study: Study, task: Task) -> list[str]:
    """Return the names of published numbers to print: `paper_keys` without hours, unless a row has published hours."""
    given = {*USUAL_COSTS, *(name for row in study.variations for name in row.paper)}
    return [name for name in paper_keys(study, task) if name in given or name not in COSTS]


def _check(name: str, names: list[str], where: str, study: Study, what: str) -> None:
    if name not in names:
        raise UserError(
            f"{study.origin}, {where}: no column of the task {study.task} prints a {what}{name!r}. "
            f"Nearest: {', '.join(nearest(name, names) or names)}."
        )
