"""Types for parts of a study file: counts, metrics, ensembles, branches, ranges and [tune]."""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    FiniteFloat,
    field_validator,
    model_validator,
)

from experiments.client.ablations_task.trainer import LONGEST_NAME
from experiments.labels import Key, Text, printable
from experiments.tasks.columns import Column
from experiments.tasks.direction import direction
from experiments.tasks.own.function import column
from experiments.tasks.own.patterns import Take, check_number, check_pattern
from model.strict import StrictModel

Count = Annotated[int, Field(ge=1)]
MOST_SEEDS = 10_000  # more seeds are probably a typing error, and the plan would need too much memory
SeedCount = Annotated[int, Field(ge=1, le=MOST_SEEDS)]


class Match(StrictModel):
    """Fields of a study, a profile or a row: a count to make equal to base's count, and the setting to solve for."""

    match: Literal["params", "flops", "none"] | None = Field(
        None, description="the count that the plan makes equal to base's: params, or flops of training"
    )
    by: Text = Field("", description="the setting that it solves for: model.d_ff …; or width, depth, steps")


class Metric(StrictModel):
    """A column of the table that the study declares. The columns of the study replace the task's columns."""

    name: Annotated[str, Field(min_length=1, max_length=LONGEST_NAME), AfterValidator(printable)] = Field(
        description="name of the metric, as the trainer returns it"
    )
    set: Key = Field("test", description="data set on which it is measured")
    head: Text = Field("", description="head of the column; name and set if unset")
    better: Literal["higher", "lower", ""] = Field(
        "",
        description="if unset, the direction that the name implies; if it is unknown, nothing is bold and no claim is "
        "checked",
    )
    digits: int = Field(2, ge=0, le=12, description="digits after the decimal point")
    logarithmic: bool = Field(False, description="changes are differences of natural logarithms, as for perplexity")
    key: Annotated[str, Field(pattern=r"^(\w[\w.-]*)?$", max_length=LONGEST_NAME)] = Field(
        "", description="key in JSON, CSV and `paper`; name_set if unset"
    )
    pattern: str = Field("", description="for a command: regular expression whose group finds the number in the output")
    take: Literal["last", "best"] = Field(
        "last", description="which number to use if the pattern matches several times"
    )
    number: str = Field("", description="an example of how numbers are printed (1.234,5); like 1234.5 if unset")

    @model_validator(mode="after")
    def _pattern_is_one(self) -> Self:
        if self.pattern:
            check_pattern(self.pattern)
            check_number(self.number)
        elif self.take != "last":
            raise ValueError(f'take = "{self.take}" is for a pattern: add one, or leave it out')
        elif self.number:
            raise ValueError(f'number = "{self.number}" is for a pattern: add one, or leave it out')
        if self.take == "best" and not self.direction:
            raise ValueError(
                f'take = "best": the name {self.name} does not say whether lower or higher is better; add better = '
                '"lower" or better = "higher"'
            )
        return self

    @property
    def direction(self) -> str:
        """The better direction, "lower" or "higher": as declared, else as the name implies; "" if unknown."""
        return self.better or direction(self.name)

    @property
    def reading(self) -> tuple[str, ...]:
        """How to read a command's output: set, name, pattern, which match to use, and an example number if given."""
        best: Take = "lowest" if self.direction == "lower" else "highest"
        number = check_number(self.number)
        return self.set, self.name, self.pattern, best if self.take == "best" else "last", *filter(None, [number])

    @property
    def column(self) -> Column:
        """The column of the table. Raises UserError like `experiments.tasks.own.function.column`."""
        return column(
            self.name,
            self.head,
            set=self.set,
            better=self.direction,
            digits=self.digits,
            key=self.key,
            logarithmic=self.logarithmic,
        )


class Ensemble(StrictModel):
    """An ensemble of another row's trainings, such as {of = "base", seeds = [1, 2, 3]}; see docs/ensembles.md."""

    of: Key = Field(description="row whose trainings are the members")
    seeds: tuple[Count, ...] = Field(strict=False, description="seeds of the members")

    @field_validator("of", mode="before")
    @classmethod
    def _one_row(cls, value: Any) -> Any:
        if isinstance(value, list):
            raise ValueError(
                "name one row: the members are trainings of one row with several seeds, so that their vocabularies and "
                "settings are the same. Rows with different vocabularies cannot be averaged"
            )
        return value

    @field_validator("seeds")
    @classmethod
    def _each_once(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if not seeds:
            raise ValueError("it is empty: name the members' seeds, such as [1, 2, 3]")
        if len(set(seeds)) < len(seeds):
            raise ValueError("a seed is listed twice; each member must be a different training")
        return tuple(sorted(seeds))


class Branch(StrictModel):
    """A branch's parent row and last shared step, such as {row = "base", step = 80_000}; see docs/branches.md."""

    row: Key = Field(description="row of the parent run, whose first steps are shared")
    step: Count = Field(description="the last shared step; a profile's scale.steps multiplies it")
    by_profile: dict[Key, Count] = Field({}, description="step for one profile, instead of `step`; not scaled")


class Interval(StrictModel):
    """The range of a tuned setting, such as {low = 0.1, high = 10, log = true}, or a list of values."""

    low: int | FiniteFloat = 0
    high: int | FiniteFloat = 0
    log: bool = Field(False, description="sampled evenly over the logarithm")
    step: FiniteFloat | None = Field(None, gt=0)
    choices: tuple[bool | int | FiniteFloat | str, ...] = Field((), strict=False)

    @model_validator(mode="before")
    @classmethod
    def _list_of_choices(cls, data: Any) -> Any:
        return {"choices": data} if isinstance(data, list) else data

    @model_validator(mode="after")
    def _something_between(self) -> Self:
        if not self.choices and not self.low < self.high:
            raise ValueError("expected low and high with low below high, or a list of values")
        if self.log and (self.low <= 0 or self.step is not None):
            raise ValueError("log = true requires low above 0 and no step")
        return self


def _ranges(table: Any) -> Any:
    """Flatten nested tables of ranges to dotted names: {model: {dropout: […]}} becomes {"model.dropout": […]}.

    A list is a range, and so is a table with `low`, `high` or `choices`.
    """
    found: dict[str, Any] = {}
    for name, value in table.items() if isinstance(table, dict) else ():
        if isinstance(value, dict) and not {"low", "high", "choices"} & set(value):
            found |= {f"{name}.{inner}": given for inner, given in _ranges(value).items()}
        else:
            found[name] = value
    return found if isinstance(table, dict) else table


class Tune(StrictModel):
    """The search space and the objective of `ablations tune`, which are equal for all rows."""

    trials: Count = Field(description="number of trials of each row")
    ranges: Annotated[dict[str, Interval], BeforeValidator(_ranges)] = Field(alias="range")
    metric: str = Field("", description="the metric to optimise; the first column of the set if unset")
    set: Key = Field("dev", description="the data set to optimise on; never a test set")
    test: tuple[Key, ...] = Field(("test",), strict=False, description="sets added to the table of the tuned rows")
    sampler: str = "tpe"
    seed: int = Field(0, ge=0)
