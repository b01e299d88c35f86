"""The table of a selection, from a store or a bundle."""

import shlex
from dataclasses import replace

from ablations.service.run_states import DONE
from ablations.service.selected import SelectedTable
from ablations.service.table_options import TableOptions
from experiments.store.known_runs import keep_counted
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
    plan, store = chosen.plan, results or chosen.store
    table = build_table(plan, store, chosen.columns, significance, provisional=provisional)
    for run in plan.runs if not chosen.bundle else ():
        if run.added and run.state in DONE:
            keep_counted(chosen.store, run.run_id, run.added)
    words = [*chosen.asked, *(("--significance", significance) if significance != "auto" else ())]
    asked = shlex.join([*words, *printing.words()])
    return replace(table, asked=asked, chosen=printing.choices(), bundle=chosen.bundle)
