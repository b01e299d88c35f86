"""A finished table in one archive: the plan, its runs' configurations, events, results and translations.

A reader prints the same bytes, repeats the tests and explains every cell without corpus, study file or GPU. The same
table gives the same archive. Host names and absolute paths are left out unless requested
(experiments/exchange/redaction.py).
"""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ablations.plan.plan_file import plan_to_json
from ablations.plan.planned import Plan
from experiments.errors import UserError, explain_os_errors
from experiments.exchange.import_runs import files_of
from experiments.exchange.redaction import Redaction
from experiments.store.durable import whole_file
from experiments.store.layout import Store
from experiments.store.sealed import describe_file, seal
from experiments.tasks.columns import Column
from reports.results.spending import spending
from reports.trust.bundles.head import SPENT, VERSION, column_to_json
from reports.trust.bundles.in_crate import crate_files, metadata_of
from reports.trust.bundles.tarred import pack
from reports.trust.bundles.zipped import pack_crate
from reports.trust.statement import Statement


def write_bundle(
    path: Path,
    plan: Plan,
    store: Store,
    columns: Sequence[Column],
    asked: Sequence[str],
    redaction: Redaction,
    weights: bool = False,
    statement: Statement | None = None,
) -> int:
    """Write the archive, whole or not at all; returns the number of files.

    With a `statement` it is a crate.

    Raises UserError for an unfinished table, and for a store with links that lead out of it.
    """
    unfinished = [run.name for run in plan.trainings if run.state not in ("finished", "stale")]
    if unfinished:
        raise UserError(
            f"Not finished: {', '.join(unfinished[:6])}{' …' if unfinished[6:] else ''}. A bundle holds a whole table: "
            "run what is missing, or leave rows out with --rows."
        )
    names = {str(name) for run in plan.trainings for name in files_of(store, run.run_id, run.eval_ids, weights)}
    with tempfile.TemporaryDirectory(prefix="ablations-bundle-") as place:
        files: dict[str, Path] = {}
        for name in sorted(names | {"store.json"}):
            kept = redaction.file(store.root / name, Path(place) / str(len(files)))
            if kept is not None:
                files[name] = kept
        head = _head(plan, store, columns, asked, redaction)
        if statement is not None:
            files |= crate_files(head, files, redaction.value(statement.model_dump()), Path(place) / "crate")
        head |= {"files": {n: describe_file(p) for n, p in files.items()}}
        # the keys are not sorted: their order is that of the table's columns
        text = (json.dumps(seal(head), indent=1, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
        described = None if statement is None else metadata_of(head, text, Path(place) / "crate")
        with explain_os_errors(f"write {path}"), whole_file(path.absolute()) as file:
            if described is None:
                pack(file, text, files)
            else:
                pack_crate(file, described, text, files)
    return len(files)


def _head(
    plan: Plan, store: Store, columns: Sequence[Column], asked: Sequence[str], redaction: Redaction
) -> dict[str, Any]:
    shown = plan_to_json(plan)
    shared = redaction.value(shown)
    # run_ids that depend on a path or a name that is left out cannot be computed by a reader
    renamed = any(redaction.names_run(run.config) for run in plan.trainings)
    return {
        "bundle": VERSION,
        "left_out": redaction.what,
        "names_can_be_checked": not renamed,
        "asked": redaction.value(list(asked)),
        "columns": [column_to_json(column) for column in columns],
        "plan": shared,
        SPENT: redaction.value(found.model_dump(mode="json") if (found := spending(plan, store)) else {}),
    }
