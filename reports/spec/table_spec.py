"""The specification of a table: its rows with their runs, and how they are labelled, compared and printed.

`ablations/planning/declare_table.py` makes the specification from a plan. The package `reports` reads no other data of
studies and plans.
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

CODE_LINES = "code_lines"  # name of a column that a study may print: the size of a row's code change in lines


class Note(NamedTuple):
    """A note under a table."""

    text: str
    kind: Literal["sign", "gap", "test", "setup", "cost", "study"] = "setup"  # gap: about missing or doubtful numbers
    part: str = ""  # if "change" or "paper": print the note only if columns of changes or published numbers are printed


KINDS = {"none": ("gap",), "short": ("sign", "gap")}  # choice of notes → kinds that it prints; "full" prints all


@dataclass(frozen=True)
class TableRun:
    """A run whose numbers a table shows, or a run whose checkpoints another run of the table reads."""

    row: str  # key of the run's row
    spec: RunSpec
    config: TaskConfig  # the settings of `spec`, validated
    store_state: RunState  # the state when the table was planned
    evaluations: tuple[EvaluationSpec, ...] = ()
    added: Mapping[str, Any] = field(default_factory=dict)  # settings added to the user's task after this training

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
    facts: Mapping[str, Any] = field(default_factory=dict)  # values that are printed as columns and are not settings
    changes_code: bool = False
    diff: str = ""  # difference between the row's code and base's code
    runs: tuple[TableRun, ...] = ()  # one run for each seed, or one ensemble; () if the row is not selected


@dataclass(frozen=True)
class TableSpec:
    """The declaration of a table, without results."""

    name: str  # name of the study
    title: str
    task: str
    profile: str
    rows: tuple[RowSpec, ...]  # all rows of the study, in the order of the study
    members: tuple[TableRun, ...] = ()  # the runs whose checkpoints ensembles and branches read, each once
    metrics: tuple[Column, ...] = ()  # columns of measured numbers; the set "*" stands for every evaluated set
    heads: Mapping[str, str] = field(default_factory=dict)  # setting in the study's [columns] → column head
    factors: Mapping[str, str] = field(default_factory=dict)  # `heads`, or else all settings that rows declare → head
    tuned: tuple[str, ...] = ()  # settings that tuning found for the rows
    paper_keys: tuple[str, ...] = ()  # names of the published numbers that columns can print
    base: str | None = None  # key of the row without changes
    groups: tuple[str, ...] = ()  # groups whose rows are compared only with each other; () for all rows together
    pivot: Mapping[str, str] = field(default_factory=dict)  # group → column head, if groups are printed as columns
    published: Mapping[str, str] = field(default_factory=dict)  # published number that no run measures → column head
    sustained_flops: Mapping[str, float] = field(default_factory=dict)  # part of a device's name → FLOPs per second
    choices: TableChoices = field(default_factory=TableChoices)
    bold: str = "best"  # "undistinguished": rows that a test does not distinguish from the best are bold too
    cited: tuple[Cited, ...] = ()
    claims: tuple[Claim, ...] = ()
    notes: tuple[Note, ...] = ()  # notes of the study, its rows and the plan
    sections: Mapping[str, Any] = field(default_factory=dict)  # tables of the study file that extras read
    paper_sizes: bool = True  # whether the profile leaves all sizes as the study declares them

    @property
    def runs(self) -> list[TableRun]:
        """The runs of all rows, in the order of the rows."""
        return [run for row in self.rows for run in row.runs]

    @property
    def trainings(self) -> list[TableRun]:
        """All runs, and the members that are not in `runs`."""
        known = {run.run_id for run in self.runs}
        return [*self.runs, *(member for member in self.members if member.run_id not in known)]

    def members_of(self, run: TableRun) -> Sequence[TableRun]:
        """Return the members of an ensemble, in the order of their seeds; [] for a training."""
        return [member for member in self.members if member.run_id in run.spec.members]
