"""The table of a selection, from a store or a bundle."""

import shlex
from dataclasses import replace

from ablations.service.selected import SelectedTable
from ablations.service.table_options import TableOptions
from reports.results.sound import Results
from reports.results.table import Table
from reports.table.build import build_table

BY_STUDY = TableOptions()


def table_of(
    chosen: SelectedTable,
    significance: str = "auto",
    results: Results | None = None,
    *,
    provisional: bool = False,
    printing: TableOptions = BY_STUDY,
) -> Table:
    """The selected table, with the words of the command line that select and print it."""
    store = results or chosen.store
    table = build_table(chosen.plan, store, chosen.columns, significance, provisional=provisional)
    words = [*chosen.asked, *(("--significance", significance) if significance != "auto" else ())]
    asked = shlex.join([*words, *printing.words()])
    return replace(table, asked=asked, chosen=printing.choices(), bundle=chosen.bundle)
