"""Read a CSV file of runs. A long file has one line per score, a wide file one line per run.

    row,seed,set,metric,value          row,seed,lr,dev/bleu,test/bleu
    base,1,dev,bleu,26.1               base,1,0.1,26.1,25.3

A long file needs the columns metric and value. All other columns are optional. If there is a column `row`, a column
`group` names the group of the row. Every other column is a setting or, in a wide file, a metric.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ablations.extras.imports.delimited import read_table, text_of
from ablations.extras.imports.external import ExternalRun, is_gap, number, why_not
from experiments.errors import UserError


def read_csv(place: str) -> Iterator[ExternalRun | str]:
    """Yield the runs of a CSV file, and a sentence on each omission.

    Raises UserError with the line for content that cannot be read.
    """
    table = read_table(text_of(Path(place)))
    yield from table.notes
    long = {"metric", "value"} <= set(table.head)
    found: dict[tuple[str, ...], tuple[int, dict[str, str], dict[str, float]]] = {}
    for line, cells in table.lines:
        if not long:
            found[(str(line),)] = line, cells, {}
            continue
        name, text = f"{cells.pop('set', '') or 'test'}/{cells.pop('metric')}", cells.pop("value")
        first, _, scores = found.setdefault(tuple(cells.values()), (line, cells, {}))
        if name in scores:
            raise UserError(
                f"line {line}: {name} stands there twice for the run of line {first}. Give runs their seeds."
            )
        if (score := number(text)) is None and not is_gap(text):
            where = f"line {line}, column {table.places['value']}"
            raise UserError(f"{where}: value = {text!r} is not a number{why_not(text)}.")
        scores |= {} if score is None else {name: score}
    for line, cells, scores in found.values():
        labels = {name: cells.pop(name, "") for name in ("row", "group") if "row" in table.head}
        settings = {name: text for name, text in cells.items() if text}
        run = ExternalRun(f"line {line}", text=True, labels=labels, settings=settings, metrics=scores)
        yield replace(run, row=labels.get("row", ""), group=labels.get("group", ""), places=table.places)
