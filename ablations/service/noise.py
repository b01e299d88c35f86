"""How much base varies with its seed, from the store, and what so many seeds of every row can show."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ablations.planning.planned import Plan, PlannedRun
from ablations.service.forecast import forecast
from ablations.service.selected import Selected, Selectors, choose
from ablations.study.messages import suggestion
from ablations.study.selectors import only_row
from ablations.study.variation import Variation
from experiments.errors import UserError
from experiments.jobs.devices.slots import Slot
from experiments.tasks.columns import Column
from reports.results.comparable import scale
from reports.results.dunnett import seeds_for, smallest_difference, spread
from reports.table.build import build_table

MOST = 50  # seeds of base that are looked for in the store


@dataclass(frozen=True)
class Noise:
    """A column's spread between the seeds of base; differences are on the scale on which the table compares."""

    column: Column
    values: tuple[float, ...]  # as printed, one per seed
    mean: float  # as printed
    sd: float
    low: float  # 95 % interval of the standard deviation
    high: float
    rows: int  # that a table compares with base

    def shown_by(self, seeds: int) -> float | None:
        """The smallest true difference from base that so many seeds a row show; None: one shows no spread."""
        return smallest_difference(self.sd, self.rows, seeds)

    def seeds_for(self, difference: float) -> tuple[int | None, int | None, int | None]:
        """Seeds a row that show a true difference: at this spread, and at both ends of its interval."""
        first, low, high = (seeds_for(difference, sd, self.rows) for sd in (self.sd, self.low, self.high))
        return first, low, high


@dataclass(frozen=True)
class Wanted:
    """A difference from base that a table should show."""

    difference: float
    column: str = ""  # a column's key; "": the first that is not compared by logarithms

    def of(self, found: Sequence[Noise]) -> Noise:
        """The noise of the column. Raises UserError for an unknown one."""
        by_key = {noise.column.key: noise for noise in found}
        if not self.column:
            plain = [noise for noise in found if not noise.column.logarithmic]
            if not plain:
                raise UserError(
                    f"--detect {self.difference:g}: only {found[0].column.header} varies, which is compared by "
                    f"logarithms. Name it: --detect {found[0].column.key}=0.05."
                )
            return plain[0]
        if self.column not in by_key:
            raise UserError(
                f"--detect {self.column}=…: no column of this name varies between the seeds of base. "
                f"{suggestion(self.column, by_key, 'columns')}"
            )
        return by_key[self.column]


def wanted_difference(text: str) -> Wanted:
    """Parse --detect: "0.5", or "bleu=0.5". Raises UserError."""
    column, _, size = text.rpartition("=")
    try:
        difference = float(size)
    except ValueError:
        difference = 0.0
    if not 0 < difference < float("inf"):
        raise UserError(f"--detect {text}: write the difference as a number above 0, or COLUMN=NUMBER: bleu=0.5.")
    return Wanted(difference, column.strip())


def base_of(chosen: Selected) -> Variation:
    """The study's base row. Raises UserError for an ensemble, which has no seeds."""
    base = chosen.study.base_row or chosen.study.variations[0]
    if base.ensemble is not None:
        raise UserError(
            f'The base row "{base.key}" of {chosen.study.name} is an ensemble, which has no seeds of its own.'
        )
    return base


def compared(plan: Plan, base: Variation) -> list[PlannedRun]:
    """One run of each row that the table compares with base."""
    rows = {run.row: run for run in plan.runs if not run.members and run.row != base.key}
    return [run for run in rows.values() if not plan.study.families or run.group == base.group]


def noise_of(study: str, selectors: Selectors, chosen: Selected, seeds: int = MOST) -> list[Noise]:
    """The spread of each column over the seeds of base that the store has, of seeds 1 to `seeds`.

    Columns without two values, or without any spread, are left out.
    """
    base = base_of(chosen)
    alone = choose(study, replace(selectors, rows=only_row(chosen.study, base.key), seeds=seeds))
    table = build_table(alone.plan, alone.store, alone.columns, "none")
    rows, found = max(1, len(compared(chosen.plan, base))), []
    for column in table.columns:
        values = table.rows[0].measures[column.key].values
        if len(values) < 2 or (column.logarithmic and min(values) <= 0):
            continue
        sd, low, high = spread(scale(values, column))
        if sd > 0:
            found.append(Noise(column, values, sum(values) / len(values), sd, low, high, rows))
    return found


def hours_of_rows(study: str, selectors: Selectors, slots: Sequence[Slot]) -> dict[str, float | None]:
    """Predicted hours of one seed of each row; None: unknown. An ensemble's are those of its evaluations."""
    chosen = choose(study, replace(selectors, seeds=1))
    plan = chosen.plan
    predicted = forecast(chosen, plan, plan.runs, slots)
    first = {run.row: run.run_id for run in reversed(plan.runs)}
    rows = list(dict.fromkeys(run.row for run in plan.runs))
    seconds = {row: predicted.seconds.get(first[row]) for row in rows}
    return {row: None if value is None else value / 3600 for row, value in seconds.items()}
