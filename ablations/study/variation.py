"""The rows of a study (`Variation`), and its profiles (`Profile`), which set the size of the whole table."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, FiniteFloat, model_validator

from ablations.study.code_rows import Change
from ablations.study.parts import Branch, Ensemble, Match, SeedCount
from experiments.dotted import Overrides, dotted
from experiments.errors import UserError
from experiments.labels import Group, Key, Text
from experiments.messages import show
from experiments.run_spec import TrainerSpec
from model.extensions import added
from model.strict import StrictModel

# A table of settings in a study file. {model.num_heads = 4} and {"model.num_heads" = 4} give the same dotted name.
Settings = Annotated[Overrides, BeforeValidator(dotted)]


@dataclass(frozen=True)
class Setting:
    """A value and its source, such as 'row "A-h1"', for messages."""

    value: Any
    source: str


class Scale(StrictModel):
    """Ratios that multiply the sizes of base and rows. `SCALED` lists the settings that each ratio multiplies."""

    width: FiniteFloat = Field(1.0, gt=0, description="factor on d_model, d_ff, d_k, d_v; heads and rates stay")
    head_width: FiniteFloat | None = Field(None, gt=0, description="factor on d_k and d_v; width if unset")
    depth: FiniteFloat = Field(1.0, gt=0, description="factor on num_layers")
    steps: FiniteFloat = Field(1.0, gt=0, description="factor on train_steps and warmup_steps")

    def multiplied(self) -> Iterator[tuple[str, Fraction, tuple[str, ...]]]:
        """Yield each ratio that is not 1: its name, its exact decimal value, and the settings that it multiplies.

        The value is a Fraction, so that 10 × 0.1 is exactly 1.
        """
        for name, settings in SCALED.items():
            ratio = getattr(self, name)
            if ratio not in (None, 1.0):
                heads = SCALED["head_width"] if name == "width" and self.head_width is None else ()
                yield name, Fraction(str(ratio)), (*settings, *heads)


class Profile(Match):
    """A profile: a size of the whole table, such as a small one for a quick check."""

    description: Text = ""
    scale: Scale = Scale()
    set: Settings = Field({}, description="applied after scaling in every row; replaces a row's `set`")
    notes: tuple[Text, ...] = Field(
        (), strict=False, description="printed under the table of this profile, unless --corpus or --set is given"
    )


class Variation(Match):
    """A row: base with the settings in `set` and `fixed`.

    `set` has the paper's sizes, which profiles scale or replace. `fixed` is the same in every profile.
    """

    key: Key
    group: Group = ""
    label: Text = Field("", description="description in words, printed instead of the settings")
    set: Settings = Field({})
    fixed: Settings = Field({})
    tuned: Settings = Field({}, description="found by tuning; like `fixed`, but does not count as a change from base")
    by_profile: dict[Key, Settings] = Field({}, description="for one profile only, replaces the others there")
    paper: dict[str, FiniteFloat] = Field(
        {}, description="published numbers: perplexity, bleu, params (millions), flops and hours (of training)"
    )
    seeds: SeedCount | None = Field(None, description="number of seeds of this row; the study's if unset")
    seed_offset: int = Field(0, ge=0, description="seeds of the row are offset + 1 … offset + N")
    note: Text = Field("", description="footnote of the row")
    patch: Text = Field("", description="a diff that changes the code of this row; see docs/code-rows.md")
    commit: Text = Field("", description="commit or branch with the row's code, instead of base's")
    commits: Text = Field("", description="range of commits, main..feature, applied to the code before the range")
    parts: tuple[int, ...] | None = Field(
        None,
        strict=False,
        description="numbers of the patch's hunks, or of the range's commits, that are applied; all if unset",
    )
    diff: str = Field("", description="difference between the row's code and base's; set by the program")
    code_tree: str = Field("", description="git's digest of the row's code, if it is changed; set by the program")
    code_base: str = Field("", description="git's digest of base's code, if the row has a patch; set by the program")
    code_lines: int = Field(0, description="size of the change in lines; set by the program")
    code_change: str = Field("", description="digest of the row's change of code; set by the program")
    other_changes: tuple[str, ...] = Field(
        (), strict=False, description="earlier digests of this change; set by the program"
    )
    refused: str = Field("", description="reason why the row's code cannot be made now; set by the program")
    design: Text = Field("", description="key of the design that gave this row (ablations/study/study_file.py)")
    ensemble: Ensemble | None = Field(None, description="the row is an ensemble of another row's trainings")
    imported: bool = Field(
        False,
        description="the row was trained elsewhere: `ablations import` brings its numbers",
    )
    branch: Branch | None = Field(
        None, alias="from", description="the row continues another row's training after a step"
    )

    @model_validator(mode="before")
    @classmethod
    def _network_changes_are_settings(cls, data: Any) -> Any:
        """Move a network change that is a key of the row into `fixed`, so that no profile replaces it."""
        if not isinstance(data, dict):
            return data
        changes = {name: data[name] for name in added("changes") if name in data}
        if not changes:
            return data
        rest = {name: value for name, value in data.items() if name not in changes}
        return {**rest, "fixed": {**data.get("fixed", {}), **changes}}

    @property
    def declared(self) -> Overrides:
        """All settings in which this row may differ from base."""
        parts = (*self.by_profile.values(), self.set, self.fixed, self.tuned)
        return {name: value for part in parts for name, value in part.items()}

    def last_word(self, profile: str) -> Overrides:
        """Return the settings that the profile's `scale` and `set` cannot replace."""
        return {**self.fixed, **self.tuned, **self.by_profile.get(profile, {})}

    @property
    def is_base(self) -> bool:
        """True if the row changes nothing."""
        changes = self.set or self.fixed or self.by_profile or self.seed_offset or self.ensemble or self.branch
        # `code_tree` is tested too, because a row of an anonymous bundle has a tree without a commit.
        return not (changes or self.imported or self.change or self.code_tree)

    def trainer_of(self, study: TrainerSpec) -> TrainerSpec:
        """Return the facts about the study's trainer, with the row's code if the row changes code."""
        if not self.change:
            return study
        return replace(study, tree=self.code_tree, base=self.code_base, lines=self.code_lines)

    @property
    def change(self) -> Change | None:
        """The row's change of code; None if the row does not change code."""
        given = Change(self.patch, self.commit, self.commits, self.parts)
        return given if any(given[:3]) else None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        parts = {"set": self.set, "fixed": self.fixed, "tuned": self.tuned}
        for name in self.declared:
            places = [f"`{part}`" for part, settings in parts.items() if name in settings]
            if len(places) > 1:
                raise ValueError(f"{name} is in {' and '.join(places)}; keep one")
        if self.branch is not None and self.ensemble is not None:
            raise ValueError(
                "`ensemble` and `from` cannot be combined, because an ensemble is not trained: leave out one"
            )
        if self.branch is not None and self.seed_offset:
            raise ValueError("a branch has the seeds of its parent run: leave out `seed_offset`")
        if self.change and (sum(map(bool, self.change[:3])) > 1 or self.imported or self.ensemble or self.branch):
            raise ValueError("a row can have one of `patch`, `commit` and `commits`, and not together with "
                "`imported`, `ensemble` or `from`")  # fmt: skip
        if self.imported and (self.ensemble or self.branch or self.tuned):
            raise ValueError("`imported` rows were trained elsewhere: leave out `ensemble`, `from` and `tuned`")
        return self

    @model_validator(mode="after")
    def _only_evaluated(self) -> Self:
        """Check that an ensemble sets only decoding settings and the number of checkpoints that decoding needs."""
        if self.ensemble is None:
            return self
        trained = [name for name in self.declared if not name.startswith(("evaluation.", "training.keep_checkpoints"))]
        if trained:
            raise ValueError(
                f"an ensemble trains nothing, so it cannot set {', '.join(trained)}: its members have the settings of "
                f"the row {self.ensemble.of}. It may set evaluation.beam_size, evaluation.checkpoint and the like"
            )
        if self.seeds is not None or self.seed_offset:
            raise ValueError("an ensemble is one entry of the table: its seeds are those in `ensemble`, so leave out "
                             "`seeds` and `seed_offset`")  # fmt: skip
        return self


# The settings that each ratio multiplies.
SCALED = {
    "width": ("model.d_model", "model.d_ff"),
    "head_width": ("model.d_k", "model.d_v"),
    "depth": ("model.num_layers",),
    "steps": ("training.train_steps", "training.warmup_steps"),
}


def check_ratios(profile: Profile, known: Collection[str], where: str) -> None:
    """Raise UserError for a ratio that multiplies no setting, because a user's task may have other names for sizes."""
    for kind, _, names in profile.scale.multiplied():
        if not any(name in known for name in names):
            raise UserError(
                f"{where}: scale.{kind} multiplies nothing, because the task has none of the settings "
                f"{', '.join(names)}. Give the sizes in the profile's `set` instead."
            )


def scaled_step(step: int, profile: Profile, name: str, where: str) -> int:
    """Return the step of the training, scaled by a profile.

    Raises UserError if the result is not an integer of at least 1.
    """
    new = step * Fraction(str(profile.scale.steps))
    if new.denominator != 1 or new < 1:
        raise UserError(
            f"{where}: from.step = {step} times steps = {profile.scale.steps:g} is {float(new):g}, expected an integer "
            f"of at least 1. Change scale.steps of the profile, or give the step as from.by_profile.{name}."
        )
    return int(new)


def scaled(settings: Mapping[str, Setting], profile: Profile, name: str, where: str) -> dict[str, Setting]:
    """Return the settings that profile `name` scales, with their new values. Values that are not integers are left out.

    Raises UserError for a result that is not an integer of at least 1 (a declared 0 stays 0).
    """
    result: dict[str, Setting] = {}
    for kind, ratio, names in profile.scale.multiplied():
        for key in names:
            old = settings.get(key)
            if old is None or isinstance(old.value, bool) or not isinstance(old.value, int):
                continue
            new = old.value * ratio
            if new.denominator != 1 or (new < 1 <= old.value):
                raise UserError(
                    f"{where}: {key} = {show(old.value)} (set by {old.source}) times {kind} = {float(ratio):g} is "
                    f"{float(new):g}, expected an integer of at least 1. Change scale.{kind} of the profile, "
                    f"or set {key} in its `set`."
                )
            result[key] = Setting(int(new), f'{old.source}, scaled by profile "{name}"')
    return result
