"""`ablations compare`: compare a table with another study, store, code revision or printed table."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ablations.cli import options
from ablations.cli.terminal import print_json, say
from ablations.service.selected import SelectedTable, Selectors, choose_table
from ablations.service.tables import table_of
from ablations.study.messages import number
from experiments.errors import UserError
from reports.results.results import CountsOf, counts_in
from reports.results.revision import AtRevision
from reports.results.table import Table
from reports.trust.bundles.archive import is_bundle
from reports.trust.compare import as_records, as_text
from reports.trust.compare import compare as compare_tables
from reports.trust.sides import Look, side_of, side_of_file


def compare(
    study: options.LastStudyOrBundle = None,
    against: Annotated[
        str | None,
        typer.Argument(metavar="[OTHER]", help="A .json or .csv of `report`, another store, a bundle, another study."),
    ] = None,
    revision: Annotated[
        str | None, typer.Option(metavar="COMMIT", help="Compare with this commit (or code digest) in the same store.")
    ] = None,
    *,
    selectors: Selectors,
    as_json: options.Json = False,
) -> None:
    """List the cells that differ, with intervals. Selectors apply to both sides; so does STUDY for another store."""
    if against is None and revision is None:  # one argument is the other side
        study, against = None, study
    if (against is None) == (revision is None):
        raise UserError(
            "compare: name one other side: a .json or .csv table, a store, a bundle, a study, or --revision."
        )

    def choose(name: str, store: Path) -> SelectedTable:
        chosen = replace(Selectors() if is_bundle(name) else selectors, store=store)
        return choose_table(name, chosen, say, used=store == selectors.store)

    study, selectors = selectors.with_last(study, say)
    chosen = choose(study, selectors.store)
    table = table_of(chosen, "none")
    look, counts, name = _other(chosen, against, revision, choose, study, selectors.store)
    cells = list(compare_tables(table, look, counts_in(chosen.store), counts))
    if not any(cell.there is not None for cell in cells):
        raise UserError(f"{name} has no number for any cell of {table.name}, so there is nothing to compare.")
    if as_json:
        print_json(as_records(cells))
    else:
        typer.echo(as_text(cells, f"{table.title or table.name}: here and there", {"there": name}), nl=False)


def _other(
    chosen: SelectedTable,
    against: str | None,
    revision: str | None,
    choose: Callable[[str, Path], SelectedTable],
    study: str,
    store: Path,
) -> tuple[Look, CountsOf | None, str]:
    """The other side: a look-up of its cells, its counts per sentence, and its name."""
    if revision is not None:
        older = AtRevision(chosen.store, revision)
        return side_of(table_of(chosen, "none", older)), counts_in(older), f"revision {revision}"
    path = Path(str(against))
    if path.suffix in (".json", ".csv"):
        look, found = side_of_file(path)
        return look, None, f"{path.name}, {number(len(found), 'row')}; tokens and sentences unknown"
    is_store = path.is_dir()
    other = choose(study, path) if is_store else choose(str(against), store)
    table: Table = table_of(other, "none")
    return side_of(table), counts_in(other.store), path.name or str(path)
