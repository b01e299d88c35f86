"""Runs of other people's MLflow: a server, a database, or an old folder of files (`mlruns`). It is only read."""

import logging
import os
import re
import sqlite3
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from experiments.errors import UserError
from experiments.exchange.external import External, ExternalRun, as_value, run_called, seed_of

_OF_MLFLOW = "mlflow."  # its own tags
_PASSWORD = re.compile(r"(?<=://)([^/@:]*):[^/@]*@")


def read_mlflow(uri: str, experiment: str = "", row_by: str = "", seed_by: str = "") -> External:
    """The finished runs of an experiment, by name; of the only one if no name is given. Raises UserError.

    row_by: a tag or parameter that names the row.
    """
    shown = _PASSWORD.sub(r"\1:…@", uri)
    where = f"--mlflow {shown}"
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # folders of earlier versions
    from mlflow import MlflowClient

    logging.disable()  # what MLflow cannot read is in its exception too
    try:
        with tempfile.TemporaryDirectory(prefix="ablations-mlflow-") as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            client = MlflowClient(tracking_uri=_readable(uri, where, Path(folder)))
            chosen = _experiment(client, experiment, where)
            runs = list(_runs(client, chosen))
    except UserError:
        raise
    except Exception as error:  # of MLflow, SQLAlchemy, requests: whatever keeps it from being read
        first = (str(error).strip().splitlines()[:1] or [type(error).__name__])[0].rstrip(".")
        raise UserError(f"{where} cannot be read: {first[:500]}. Nothing was imported.") from None
    finally:
        logging.disable(logging.NOTSET)
    left_out = tuple(
        f"{run_called(_name(run))}: its status is {run.info.status}" for run in runs if run.info.status != "FINISHED"
    )
    kept = tuple(_run(run, where, row_by, seed_by) for run in runs if run.info.status == "FINISHED")
    if not kept:
        raise UserError(f"{where}: the experiment {chosen.name!r} has no finished run. Nothing was imported.")
    return External("mlflow", f"{shown} ({chosen.name})", kept, None, left_out)


def _readable(uri: str, where: str, folder: Path) -> str:
    """The address; of SQLite that of a copy in `folder`, because MLflow would make or change tables in the file."""
    parts = urlsplit(uri)
    if parts.scheme in ("", "file"):
        place = Path(unquote(parts.path))
        if place.is_file():
            return _copied(place, where, folder)
        if not place.is_dir():
            raise UserError(f"{where}: there is no such file or folder. Nothing was imported.")
        _refuse_links(place, where)
        return place.absolute().as_uri()
    if parts.scheme.startswith("sqlite"):
        return _copied(Path(unquote(parts.path.removeprefix("/"))), where, folder)
    return uri


def _refuse_links(folder: Path, where: str) -> None:
    """A link could lead to any file of the reader's, whose content would become a setting. Raises UserError."""
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *files)):
            if path.is_symlink():
                link = str(path.relative_to(folder))
                raise UserError(f"{where}: {link!r} is a link; copy the folder without links. Nothing was imported.")
        folders[:] = [name for name in folders if name != "artifacts"]  # not read


def _copied(file: Path, where: str, folder: Path) -> str:
    """A copy of the database, brought to this MLflow's version. Raises UserError for what is no database of MLflow."""
    from mlflow.store.db import utils

    if not file.is_file():
        raise UserError(f"{where}: there is no file {file}. Nothing was imported.")
    copy = folder / "mlflow.db"
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as theirs:
            tables = {name for (name,) in theirs.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            with closing(sqlite3.connect(copy)) as ours:
                theirs.backup(ours)
    except sqlite3.Error as error:
        raise UserError(f"{where}: {file} cannot be read as a database: {error}. Nothing was imported.") from None
    if not {"experiments", "runs", "metrics", "alembic_version"} <= tables:
        raise UserError(f"{where}: {file} is not a database of MLflow. Nothing was imported.")
    uri = f"sqlite:///{copy}"
    engine = utils.create_sqlalchemy_engine(uri)
    try:
        utils._upgrade_db(engine)
    finally:
        engine.dispose()
    return uri


def _experiment(client: Any, name: str, where: str) -> Any:
    every = client.search_experiments()
    found = [one for one in every if one.name == name] if name else [one for one in every if _has_runs(client, one)]
    if len(found) != 1:
        offered = every if name else found
        names = ", ".join(repr(one.name) for one in offered[:20]) or "none with runs"
        if len(offered) > 20:
            names += f" and {len(offered) - 20} others"
        what = f"it has no experiment {name!r}" if name else "name one experiment with --experiment"
        raise UserError(f"{where}: {what}. Its experiments: {names}. Nothing was imported.")
    return found[0]


def _has_runs(client: Any, experiment: Any) -> bool:
    return bool(client.search_runs([experiment.experiment_id], max_results=1))


def _runs(client: Any, experiment: Any) -> Iterator[Any]:
    token = None
    while True:
        page = client.search_runs(
            [experiment.experiment_id], max_results=1000, order_by=["start_time ASC"], page_token=token
        )
        yield from page
        token = page.token
        if not token:
            return


def _name(run: Any) -> str:
    return str(run.info.run_name or run.info.run_id)


def _run(run: Any, where: str, row_by: str, seed_by: str) -> ExternalRun:
    tags = {name: text for name, text in run.data.tags.items() if not name.startswith(_OF_MLFLOW)}
    seed, settings = seed_of({name: as_value(text) for name, text in run.data.params.items()}, seed_by)
    if not seed:
        seed, _ = seed_of(tags, seed_by)
    row = str(settings.pop(row_by, "") or tags.get(row_by, "")) if row_by else tags.get("row", "")
    if row_by and not row:
        raise UserError(
            f"{where}, {run_called(_name(run))}: it has no tag or parameter {row_by!r}. Nothing was imported."
        )
    unreadable = [name for name, text in {**tags, **run.data.params}.items() if not isinstance(text, str)]
    unreadable += [name for name, score in run.data.metrics.items() if not isinstance(score, int | float)]
    if unreadable:
        raise UserError(
            f"{where}, {run_called(_name(run))}: {unreadable[0]!r} is neither text nor a number. Nothing was imported."
        )
    return ExternalRun(
        run_called(_name(run)), _name(run), run.info.run_id, row, tags.get("group", ""), seed, settings=settings,
        metrics=dict(run.data.metrics),
    )  # fmt: skip
