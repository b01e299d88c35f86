"""The outputs of all rows for single examples, side by side, from the files of the rows' evaluations.

A field that is the same in every row (the question, the right answer) is printed once. Other fields are printed once
per row. A field with the name of a metric is the value of the metric for the example. Such a field is not printed,
because only paired tests use it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.errors import UserError
from experiments.store.layout import Store
from experiments.tasks.columns import EXAMPLE_FILE
from reports.results.valid_records import valid_evaluation
from reports.spec.table_spec import TableRun, TableSpec

Example = Mapping[str, Any]


@dataclass(frozen=True)
class Examples:
    """A table of examples. `lines` are in the order of the examples in the data set.

    The first cell of a line is the example's number, from 1.
    """

    heads: tuple[str, ...]
    lines: tuple[tuple[Any, ...], ...]


def collect_examples(spec: TableSpec, store: Store, set_: str, seed: int, *, differing: bool = False) -> Examples:
    """Return the examples of one set for all rows of the table, from each row's run with this seed.

    Rows without stored examples are left out. differing: return only examples for which the rows' outputs differ.
    Raises UserError if no row stored examples, if rows stored different numbers of examples, or if an evaluation's
    record cannot be used (see `valid_evaluation`).
    """
    runs = [run for run in spec.runs if run.seed == seed]
    found = {run.row: read for run in runs if (read := _examples(run, store, set_)) is not None}
    if not found:
        raise UserError(
            f"No row has outputs for single examples of the set {set_!r} with seed {seed}. A trainer keeps them with "
            "context.examples(set, rows); the runs must have finished. Choose another data set or "
            "seed with --set or --seed."
        )
    lengths = {row: len(examples) for row, examples in found.items()}
    if len(set(lengths.values())) > 1:
        raise UserError(
            f"The rows kept different numbers of examples of {set_!r}: {lengths}. So they cannot be compared."
        )
    shared, own = _fields(found, _metrics(spec))
    heads = ("#", *shared, *(f"{row}: {name}" if len(own) > 1 else row for row in found for name in own))
    # Numbers such as probabilities almost always differ. So an example counts as differing if another field differs.
    # Numbers are compared only if there are no other fields.
    judged = [name for name in own if not _is_number_field(found, name)] or own
    lines = []
    for number, examples in enumerate(zip(*found.values(), strict=True), start=1):
        if not differing or any(len({repr(e.get(name)) for e in examples}) > 1 for name in judged):
            common = [examples[0].get(name) for name in shared]
            lines.append((number, *common, *(example.get(name) for example in examples for name in own)))
    return Examples(heads, tuple(lines))


def _examples(run: TableRun, store: Store, set_: str) -> list[Example] | None:
    for evaluation in run.evaluations:
        path = store.evaluation_folder(run.run_id, evaluation.eval_id) / EXAMPLE_FILE
        if evaluation.set == set_ and path.is_file():
            _, why = valid_evaluation(store, run, evaluation)
            if why:
                raise UserError(why)
            return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    return None


def _is_number_field(found: Mapping[str, Sequence[Example]], name: str) -> bool:
    return any(isinstance(example.get(name), float) for examples in found.values() for example in examples)


def _metrics(spec: TableSpec) -> set[str]:
    return {name.rpartition(".")[2] for run in spec.runs for e in run.evaluations for name in e.promised}


def _fields(found: Mapping[str, Sequence[Example]], metrics: set[str]) -> tuple[list[str], list[str]]:
    """Return two lists of fields: those that are equal in every row, and those that differ in some example."""
    names = dict.fromkeys(name for examples in found.values() for example in examples for name in example)
    first, *others = found.values()
    own = [n for n in names if any(a.get(n) != b.get(n) for rows in others for a, b in zip(first, rows, strict=True))]
    return [n for n in names if n not in own and n not in metrics], [n for n in own if n not in metrics]
