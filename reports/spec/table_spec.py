"""The declaration of a table: its rows with their runs, and how they are labelled, compared and printed.

`ablations` makes it from a study and its plan (ablations/planning/declare_table.py); reports read nothing else of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from experiments.config.task_config import TaskConfig
from experiments.run_spec import EvaluationSpec, RunSpec
from experiments.run_state import RunState
from experiments.tasks.columns import Column
from reports.spec.choices import TableChoices
from reports.spec.sentences import Cited, Claim

CODE_LINES = "code_lines"  # a column that a study with rows that change code may name: the size of the change


class Note(NamedTuple):
    """A line under a table, with what it is about."""

    text: str
    kind: Literal["sign", "gap", "test", "setup", "cost", "study"] = "setup"  # gap: of missing or doubtful numbers
    part: str = ""  # of a column, without which it has nothing to explain: "change", "paper"


KINDS = {"none": ("gap",), "short": ("sign", "gap")}  # the kinds that a choice prints; "full": all


@dataclass(frozen=True)
class TableRun:
    """A run whose numbers a table shows, or which such a run reads."""

    row: str  # key of its row
    spec: RunSpec
    config: TaskConfig  # the settings of `spec`, validated
    store_state: RunState  # when the table was planned
    evaluations: tuple[EvaluationSpec, ...] = ()
    added: Mapping[str, Any] = field(default_factory=dict)  # settings of an own task that the run was trained without

    @property
    def run_id(self) -> str:
        """The run's identity."""
        return self.spec.run_id

    @property
    def seed(self) -> int:
        """The run's seed; NO_SEED for an ensemble."""
        return self.spec.seed

    @property
    def state(self) -> str:
        """The run's state in the store: missing, finished, …"""
        return self.store_state.state

    @property
    def name(self) -> str:
        """The row and the seed, for messages: "base (seed 1)"; the row alone for an ensemble."""
        return self.row if self.spec.members else f"{self.row} (seed {self.seed})"


@dataclass(frozen=True)
class RowSpec:
    """A row as the study declares it, with its runs."""

    key: str
    group: str = ""
    label: str = ""
    paper: Mapping[str, float] = field(default_factory=dict)  # published numbers
    declared: Mapping[str, Any] = field(default_factory=dict)  # settings of the row, before a profile scales them
    overrides: Mapping[str, Any] = field(default_factory=dict)  # changes from base, after scaling
    facts: Mapping[str, Any] = field(default_factory=dict)  # values beside the settings that it prints
    changes_code: bool = False
    diff: str = ""  # how its code differs from base's
    runs: tuple[TableRun, ...] = ()  # one for each seed, or one ensemble; none: the row is not selected


@dataclass(frozen=True)
class TableSpec:
    """A table before any result is read."""

    name: str  # of the study
    title: str
    task: str
    profile: str
    rows: tuple[RowSpec, ...]  # all rows of the study, in its order
    members: tuple[TableRun, ...] = ()  # trainings that ensembles and branches among the runs read, each once
    metrics: tuple[Column, ...] = ()  # columns of measured numbers; set "*" stands for every evaluated set
    heads: Mapping[str, str] = field(default_factory=dict)  # settings printed as columns → heads; none: all that vary
    factors: Mapping[str, str] = field(default_factory=dict)  # `heads`, or all settings that rows declare → heads
    tuned: tuple[str, ...] = ()  # settings that tuning found, row by row
    paper_keys: tuple[str, ...] = ()  # names of the published numbers that columns can print
    base: str | None = None  # key of the row without changes
    groups: tuple[str, ...] = ()  # compared within themselves; none: all rows together
    pivot: Mapping[str, str] = field(default_factory=dict)  # group → head, where groups are printed as columns
    published: Mapping[str, str] = field(default_factory=dict)  # numbers that only the paper has: name → head
    sustained_flops: Mapping[str, float] = field(default_factory=dict)  # per second, by a part of a device's name
    choices: TableChoices = field(default_factory=TableChoices)
    bold: str = "best"  # "undistinguished" adds the rows that a test cannot tell from the best
    cited: tuple[Cited, ...] = ()
    claims: tuple[Claim, ...] = ()
    notes: tuple[Note, ...] = ()  # of the study, its rows and the plan
    sections: Mapping[str, Any] = field(default_factory=dict)  # tables of the study that extras read
    paper_sizes: bool = True  # whether the profile leaves all sizes as the study declares them

    @property
    def runs(self) -> list[TableRun]:
        """The runs of all rows, by row."""
        return [run for row in self.rows for run in row.runs]

    @property
    def trainings(self) -> list[TableRun]:
        """All runs, and the members that are not among them."""
        known = {run.run_id for run in self.runs}
        return [*self.runs, *(member for member in self.members if member.run_id not in known)]

    def members_of(self, run: TableRun) -> Sequence[TableRun]:
        """The members of an ensemble, by seed; none for a training."""
        return [member for member in self.members if member.run_id in run.spec.members]
