"""Read runs from an MLflow store: a server, a database, or an old folder of files (`mlruns`).

The store is never changed.
"""

import logging
import os
import sqlite3
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ablations.extras.imports.external import ExternalRun
from experiments.errors import UserError
from experiments.tracking.database import import_mlflow
from experiments.tracking.page import runs_of
from experiments.tracking.reachable import refuse_unreachable
from experiments.tracking.views import ROWS_OF, SHARED

COPY = "sqlite:///"
_OF_MLFLOW = "mlflow."  # prefix of the tags that MLflow adds itself
_PAGE = {"heading", ROWS_OF, SHARED}  # tags of runs that this program adds for the page of a table


def read_mlflow(place: str) -> Iterator[ExternalRun | str]:
    """Yield the runs of URI#EXPERIMENT, or of the only experiment with runs. Raises UserError, and MLflow's errors."""
    uri, _, experiment = place.partition("#")
    refuse_unreachable(uri)
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # allows folders of earlier versions
    logging.disable()  # MLflow's exceptions contain the same messages
    try:
        with tempfile.TemporaryDirectory(prefix="ablations-mlflow-") as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            client = _client(_readable(uri, Path(folder)))
            chosen = _experiment(client, experiment)
            found = runs_of(client, chosen.experiment_id, order_by=["start_time ASC"])
            pages = [run for run in found if _PAGE & run.data.tags.keys()]
            if pages:
                yield f"{len(pages)} runs that this program wrote for the table's page (not trainings)"
            yield from (_run(run) for run in found if run not in pages)
    finally:
        logging.disable(logging.NOTSET)


def _readable(uri: str, folder: Path) -> str:
    """Return the address to read. For SQLite, it is a copy in `folder`, because MLflow would change the file."""
    parts = urlsplit(uri)
    if parts.scheme in ("", "file"):
        place = Path(unquote(parts.path))
        if place.is_file():
            return _copied(place, folder)
        if not place.is_dir():
            raise UserError("the file or folder does not exist.")
        _refuse_links(place)
        return place.absolute().as_uri()
    if parts.scheme.startswith("sqlite"):
        return _copied(Path(unquote(parts.path.removeprefix("/"))), folder)
    return uri


def _refuse_links(folder: Path) -> None:
    """Raise UserError for links, because the content of any linked file would become a setting."""
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *files)):
            if path.is_symlink():
                link = str(path.relative_to(folder))
                raise UserError(f"{link!r} is a link; copy the folder without links.")
        folders[:] = [name for name in folders if name != "artifacts"]  # artifacts are not read


def _copied(file: Path, folder: Path) -> str:
    """Copy a database and return the address of the copy. Raises UserError if it is not an MLflow database."""
    if not file.is_file():
        raise UserError(f"there is no file {file}.")
    copy = folder / "mlflow.db"
    with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as theirs:
        tables = {name for (name,) in theirs.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        with closing(sqlite3.connect(copy)) as ours:
            theirs.backup(ours)
    if "alembic_version" not in tables:  # otherwise MLflow would create its tables in the copy
        raise UserError(f"{file} is not an MLflow database.")
    return f"{COPY}{copy}"


def _client(uri: str) -> Any:
    """Return a client for an address. A copied database of another MLflow version is upgraded."""
    make = import_mlflow().MlflowClient
    try:
        return make(tracking_uri=uri)
    except Exception:
        upgrade = [sys.executable, "-P", "-m", "mlflow", "db", "upgrade", uri]
        if not uri.startswith(COPY) or subprocess.run(upgrade, capture_output=True, check=False).returncode:
            raise
    return make(tracking_uri=uri)


def _experiment(client: Any, name: str) -> Any:
    every = client.search_experiments()
    found = [one for one in every if one.name == name] if name else [one for one in every if _any_run(client, one)]
    if len(found) != 1:
        offered = every if name else found
        names = ", ".join(repr(one.name) for one in offered[:20]) or "none with runs"
        if len(offered) > 20:
            names += f" and {len(offered) - 20} others"
        what = f"it has no experiment {name!r}" if name else "name one experiment, mlflow:URI#EXPERIMENT"
        raise UserError(f"{what}. Its experiments: {names}.")
    return found[0]


def _any_run(client: Any, experiment: Any) -> bool:
    return bool(client.search_runs([experiment.experiment_id], max_results=1))


def _run(run: Any) -> ExternalRun:
    tags = {name: text for name, text in run.data.tags.items() if not name.startswith(_OF_MLFLOW)}
    name, status = str(run.info.run_name or run.info.run_id), run.info.status
    unreadable = [name for name, text in {**tags, **run.data.params}.items() if not isinstance(text, str)]
    unreadable += [name for name, score in run.data.metrics.items() if not isinstance(score, int | float)]
    if unreadable:
        raise UserError(f"run {name[:80]}: {unreadable[0]!r} is neither text nor a number.")
    return ExternalRun(
        name, run.info.run_id, "" if status == "FINISHED" else status, tags.get("row", ""), tags.get("group", ""),
        text=True, labels=tags, settings=run.data.params, metrics=run.data.metrics,
    )  # fmt: skip
