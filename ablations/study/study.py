"""A study: the description of one table. `load_study` reads a built-in study by name, or a user's file by path."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, FiniteFloat, model_validator

from ablations.study.code_rows import Code, RefusedCode
from ablations.study.parts import Match, Metric, SeedCount, Tune
from ablations.study.sections import check_sections, read_sections
from ablations.study.study_file import read_study
from ablations.study.variation import Profile, Settings, Variation
from experiments.dotted import dotted
from experiments.errors import UserError
from experiments.identity import digest
from experiments.labels import Group, Key, Text
from experiments.messages import show, suggestion
from experiments.store.code_change import told_apart
from experiments.tasks.own.patterns import check_pattern
from experiments.tasks.own.run_code import NO_TREE
from model.strict import StrictModel
from reports.spec.choices import TableChoices
from reports.spec.sentences import Cited, Claim, compared, parse


class Protected(StrictModel):
    """The table [protected]: files that no row may change, such as the code that measures the rows."""

    paths: tuple[Text, ...] = Field((), strict=False, description="files and folders, relative to the study's folder")


class Study(Match):
    """A study. The attributes `profiles`, `variations`, `metrics` and `claims` have singular names in the file."""

    name: Key
    title: Text
    task: Annotated[str, Field(min_length=1)] = "translation"
    command: str = Field("", description="the trainer as a shell command; sets task to `command`")
    progress: str = Field(
        "", description="for a command: regular expression with two groups, step and total, in the output"
    )
    links: tuple[Text, ...] = Field(
        (),
        strict=False,
        description="for a command: entries of the study's folder that are linked into each run's folder; without "
        "`links` all runs work in the study's folder",
    )
    code: tuple[Text, ...] = Field(
        (),
        strict=False,
        description="for your own trainer: patterns of files, relative to the study's folder, that belong to its code",
    )
    base_commit: Text = Field(
        "",
        description="for your own trainer in a git repository: commit whose code all rows use instead of the working "
        "copy; patches are applied to it",
    )
    python: str = Field(
        "",
        description="Python interpreter of your own function, relative to the study's folder; this program's if unset",
    )
    default_profile: str = Field("", description="the first profile if unset")
    seeds: SeedCount = 1
    base: Settings = Field({})
    profiles: dict[Key, Profile] = Field({}, alias="profile")
    variations: tuple[Variation, ...] = Field((), alias="variation", strict=False)
    metrics: tuple[Metric, ...] = Field(
        (), alias="metric", strict=False, description="columns of the table; the task's metrics if none"
    )
    columns: Annotated[dict[str, Text], BeforeValidator(dotted)] = Field(
        {},
        description="settings printed as columns, with their heads: these alone; all that rows set if unset; start.…: "
        "what runs measure before their first update",
    )
    table: TableChoices = Field(
        TableChoices(), description="how the table is printed; `ablations report` has the same options"
    )
    tune: Tune | None = Field(None, description="how `ablations tune` searches the best settings of each row")
    published: dict[Key, Text] = Field(
        {}, description="columns for published numbers that no run measures: key in `paper` = column head"
    )
    cited: tuple[Cited, ...] = Field((), strict=False, description="published results of other systems")
    claims: tuple[Claim, ...] = Field(
        (), alias="claim", strict=False, description="statements of the paper, checked in the notes under the table"
    )
    pivot: dict[Group, Text] = Field(
        {},
        description="group → head: rows with the same label print as one line, these groups as columns, each with "
        "changes from its own first row",
    )
    within_groups: bool = Field(
        False, description="compare (changes, tests, bold) within each group, from its first row; always so in a pivot"
    )
    bold: Literal["best", "undistinguished"] = Field(
        "best",
        description="bold in each column: the best; undistinguished: also rows that do not differ significantly from "
        "it",
    )
    sustained_flops: dict[str, FiniteFloat] = Field(
        {}, description="operations per second that a device sustains, by part of its name; for costs by time"
    )
    notes: tuple[Text, ...] = Field((), strict=False, description="printed under the table")
    protected: Protected = Field(Protected(), description="files that no row's code may change")
    sections: Annotated[dict[str, Any], BeforeValidator(read_sections)] = Field(
        {}, description="tables that extras read, by name"
    )
    code_tree: str = Field("", description="git's digest of base's code, if rows change code")
    code_note: str = Field("", description="what base's code is when the study is read, for `plan`")
    trees_note: str = Field("", description="what the rows share if they change code, for the reader of the table")
    origin: str = Field("", description="where the study was read from, for messages")
    folder: Path | None = Field(None, description="folder of the study file; None for a built-in study")

    @model_validator(mode="before")
    @classmethod
    def _profile_and_task(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        profiles = data.get("profile") or {"exact": {"description": "Sizes and steps as the study writes them."}}
        if not isinstance(profiles, dict):
            return data
        task = {"task": "command"} if data.get("command") and "task" not in data else {}
        return {
            **data, **task, "profile": profiles,
            "default_profile": data.get("default_profile") or next(iter(profiles)),
        }  # fmt: skip

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.variations:
            raise ValueError('the study has no rows: add at least one [[variation]] with key = "…"')
        twice = _repeated(row.key for row in self.variations)
        if twice:
            raise ValueError(f"the row {twice} appears twice; every row needs its own key")
        if self.python and self.task == "command":
            raise ValueError("a command names its interpreter itself: leave out `python`")
        self._check_command()
        if self.command and self.task != "command":
            raise ValueError(f'command and task = "{self.task}" cannot be combined; keep one of them')
        twice = _repeated(metric.column.key for metric in self.metrics)
        if twice:
            raise ValueError(f"two [[metric]] have the key {twice}; give one of them another key")
        if self.default_profile not in self.profiles:
            raise ValueError(
                f'default_profile = "{self.default_profile}" is not declared. '
                f"{suggestion(self.default_profile, self.profiles, 'profiles')}"
            )
        for row in self.variations:
            _check_members(row, self.variations)
            _check_parent_run(row, self.variations, self.profiles)
            for name in row.by_profile:
                if name not in self.profiles:
                    near = suggestion(name, self.profiles, "profiles").rstrip(".")
                    raise ValueError(f'row "{row.key}", by_profile.{name}: there is no such profile. {near}')
        if self.pivot:
            _check_places(self.pivot, "row", [(row.key, row.label, row.group) for row in self.variations])
            _check_places(self.pivot, "cited result", [(one.label, one.label, one.group) for one in self.cited])
        lone = next((row.key for row in self.variations if not row.group), None)
        if self.within_groups and lone is not None:
            raise ValueError(f'within_groups: the row "{lone}" has no group; give it one, or leave out within_groups')
        twice = _repeated(entry.key for entry in self.cited if entry.key)
        if twice:
            raise ValueError(f"two [[cited]] have the key {twice}; give one of them another key")
        for claim in self.claims:
            try:
                compared(parse(claim.check), self.variations, self.cited)
            except ValueError as error:
                raise ValueError(f'claim "{claim.check}": {error}') from None
        check_sections(self.sections, self)
        return self

    def _check_command(self) -> None:
        """Raise ValueError for keys that need a command if the study has none, and for invalid values of these keys."""
        patterns = any(metric.pattern for metric in self.metrics)
        links = self.links and not (self.base_commit or any(row.change for row in self.variations))
        for name, given in {"progress": self.progress, "links": links, "[[metric]] pattern": patterns}.items():
            if given and not self.command:
                raise ValueError(f"{name} needs a study with a command")
        if self.progress:
            check_pattern(self.progress, 2)
        for name in self.links:
            if not name or name.startswith(("/", "~")) or {"..", "."} & set(name.split("/")):
                raise ValueError(f'links: "{name}" is not in the study\'s folder: name a file or folder inside it')

    @property
    def base_row(self) -> Variation | None:
        """The row without changes, or None. Differences are computed against this row."""
        return next((row for row in self.variations if row.is_base), None)

    @property
    def families(self) -> tuple[str, ...]:
        """The groups whose rows are compared only with each other; () if all rows of the table are compared."""
        groups = dict.fromkeys(row.group for row in self.variations) if self.within_groups else ()
        return tuple(self.pivot or groups)

    @property
    def factors(self) -> dict[str, str]:
        """Settings that the table prints as columns, with their column heads."""
        names = dict.fromkeys(name for row in self.variations for name in row.declared)
        return self.columns or {name: name.rpartition(".")[2] for name in names}

    def profile_named(self, name: str | None) -> tuple[str, Profile]:
        """Return the name and the profile; the default profile for None. Raises UserError for an unknown name."""
        chosen = self.default_profile if name is None else name
        if chosen not in self.profiles:
            raise UserError(
                f"{self.origin}: the study {self.name} has no profile {chosen!r}. "
                f"{suggestion(chosen, self.profiles, 'profiles')}"
            )
        return chosen, self.profiles[chosen]


def _check_members(row: Variation, rows: Iterable[Variation]) -> None:
    """Raise ValueError for an ensemble of a row that does not exist, is an ensemble, or is a branch."""
    if row.ensemble is None:
        return
    others = {other.key: other for other in rows if other.key != row.key and other.ensemble is None}
    branches = next((other for other in rows if other.key == row.ensemble.of and other.branch), None)
    if branches is not None:
        raise ValueError(
            f'row "{row.key}", ensemble: the row of = "{row.ensemble.of}" is a branch. Members are trained from the '
            "start: name such a row"
        )
    if row.ensemble.of not in others:
        near = suggestion(row.ensemble.of, others, "rows").rstrip(".")
        known = any(other.key == row.ensemble.of for other in rows)
        why = "is an ensemble itself, which is not trained" if known else "does not exist"
        raise ValueError(f'row "{row.key}", ensemble: the row of = "{row.ensemble.of}" {why}. {near}')


def _check_parent_run(row: Variation, rows: Iterable[Variation], profiles: Iterable[str]) -> None:
    """Raise ValueError for a branch of a row that does not exist, trains nothing, or is a branch."""
    if row.branch is None:
        return
    where, of = f'row "{row.key}", from', next((other for other in rows if other.key == row.branch.row), None)
    others = [other.key for other in rows if other.key != row.key and not (other.ensemble or other.branch)]
    near = suggestion(row.branch.row, others, "rows").rstrip(".")
    if of is None:
        raise ValueError(f'{where}: the row = "{row.branch.row}" does not exist. {near}')
    if of.ensemble or of.branch:
        why = "is an ensemble, which is not trained" if of.ensemble else "is a branch itself, or this row"
        raise ValueError(f'{where}: the row = "{of.key}" {why}. A parent run is trained from the start. {near}')
    for name in row.branch.by_profile:
        if name not in profiles:
            near = suggestion(name, profiles, "profiles").rstrip(".")
            raise ValueError(f"{where}, by_profile.{name}: there is no such profile. {near}")


def _repeated(keys: Iterable[str]) -> str | None:
    return next((key for key, count in Counter(keys).items() if count > 1), None)


def load_study(name_or_path: str, many: bool = False) -> Study:
    """Read a built-in study by name, or a user's study by path (`*.toml`). Raises UserError for a study with mistakes.

    many: accept studies with more than 10,000 rows, because the user confirmed them, or because nothing is trained.
    """
    study = read_study(name_or_path, Study, many)
    return _with_trees(study) if study.base_commit or any(row.change for row in study.variations) else study


def _with_trees(study: Study) -> Study:
    """Return the study with the git trees of base's code and of the rows' code.

    A row whose code cannot be made now is marked as refused. Raises UserError for other mistakes in the study or in its
    repository.
    """
    where, rows, changes = study.origin, list[Variation](), dict[int, tuple[str, str, int]]()
    try:
        if not study.command and ":" not in study.task:
            what = "base_commit is" if study.base_commit else "Rows that change code are"
            raise UserError(f"{what} only for your own command or function, not for {study.task}.")
        code = Code(study.folder)
        patches = [row.patch for row in study.variations if row.patch]
        code.begin([Path(study.origin).name, *patches], study.links, study.protected.paths, study.base_commit)
        for row in study.variations:
            where = f'{study.origin}, row "{row.key}"'
            if row.change:
                try:
                    made_of = code.of(row.change)
                except UserError as error:
                    not_made = code.refused(row.change, str(error))
                    row = _refused(row, not_made)
                    changes[len(rows)] = row.code_change, f"refused, line {not_made.line}", not_made.line
                    rows.append(row)
                    continue
                settings = (f"{name} = {show(value)}" for name, value in row.declared.items())
                made = {
                    "label": row.label or ", ".join([made_of.words, *settings]),
                    "design": row.design or "code",  # rows with equal trees are merged
                    "diff": made_of.diff,
                    "code_tree": made_of.tree,
                    "code_base": made_of.base,
                    "code_lines": made_of.lines,
                }
                row = row.model_copy(update=made)
                changes[len(rows)] = made_of.change, made_of.tree, made_of.line
            rows.append(row)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    for place, change in zip(changes, told_apart(list(changes.values())), strict=True):
        row = rows[place]
        tree = f"{NO_TREE}{change}" if row.refused else row.code_tree  # a refused row has no tree
        rows[place] = row.model_copy(update={"code_change": change, "code_tree": tree})
    begun = {
        "code_tree": code.base,
        "code_note": code.note(),
        "trees_note": code.conditions(),
        "links": tuple(code.links),
    }
    return study.model_copy(update={"variations": tuple(rows), **begun})


def _refused(row: Variation, code: RefusedCode) -> Variation:
    """Mark a row whose code cannot be made now as refused. The digest of its change identifies its finished runs."""
    first, *others = code.changes or (digest({"refused": [row.key, *map(str, row.change or ())]}),)
    made: dict[str, Any] = {"label": row.label or code.words, "design": row.design or "code", "refused": code.why}
    made |= {"code_change": first, "other_changes": tuple(others)}
    return row.model_copy(update=made)


def _check_places(pivot: Mapping[str, str], kind: str, places: Sequence[tuple[str, str, str]]) -> None:
    """Raise ValueError for a row or cited result that has no separate cell in the pivoted table.

    The label of the row or cited result selects the line of the cell, and the group selects the column.
    """
    taken = dict[tuple[str, str], str]()
    for name, label, group in places:
        if not label:
            raise ValueError(f'pivot: the {kind} "{name}" needs a label, the name of its line')
        if group not in pivot:
            near = suggestion(group, pivot, "groups of pivot").rstrip(".")
            raise ValueError(f'pivot: the {kind} "{name}" has the group "{group}", which is no column. {near}')
        if (label, group) in taken:
            raise ValueError(
                f'pivot: the {kind}s "{taken[label, group]}" and "{name}" have the same label and the same group, so '
                "they would print in the same place; change one of them"
            )
        taken[label, group] = name
