"""MLflow's database in a store: its file, and all in it but the runs that were trained (mlflow.py).

These are the headings of tables, the keys of names, artifacts, and rows that are views of runs.
MLflow takes over a second to import: it is imported only where its database is made or written.
"""

import contextlib
import functools
import importlib.metadata
import logging
import os
import posixpath
import re
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiments.identity import digest
from experiments.jobs.queue.queue_file import explain
from experiments.store.durable import folder_beside, link
from experiments.store.layout import LOG, Store
from experiments.store.sqlite_mode import journal_mode
from experiments.store.user_cache import UserCache
from experiments.tracking import written
from experiments.tracking.record import evaluations

# --- MLflow's SQLite file in a store: its address, journal and server command


HOST = "127.0.0.1"  # the pages are for this machine only
ANEW = "No result is lost. Write the database again with `ablations ui --rebuild mlflow`."
SCHEME = "mlflow-artifacts:/"  # relative to the folder that the server is started with


def import_mlflow() -> Any:
    """MLflow, without telemetry and without its messages on runs, migrations and errors that it also raises."""
    os.environ.update(MLFLOW_DISABLE_TELEMETRY="true", MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT="true")
    # seconds: MLflow keeps connections for each address, also of a database that was replaced or removed since
    os.environ.setdefault("MLFLOW_SQLALCHEMYSTORE_POOL_RECYCLE", "1")
    import mlflow

    for name, level in (("mlflow", "WARNING"), ("alembic", "WARNING"), ("mlflow.store.db.utils", "CRITICAL")):
        logging.getLogger(name).setLevel(level)
    return mlflow


def database_uri(store: Store) -> str:
    return f"sqlite:///{store.mlflow_db}"


def explained(path: Path) -> contextlib.AbstractContextManager[None]:
    """Errors of MLflow's database as UserError: locked, full, read-only, damaged, of another version of MLflow."""
    return explain(path, "MLflow's database", ANEW)


def set_journal(path: Path) -> None:
    """Set the journal mode that fits the file's disk; an absent file is created empty.

    With WAL from the start, creating MLflow's 60 tables takes 2 s instead of 7 s.
    """
    with contextlib.closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as connection:
        mode = journal_mode(path.parent)
        with contextlib.suppress(sqlite3.OperationalError):  # the file is in use: its mode is set already, or next time
            if connection.execute("PRAGMA journal_mode").fetchone()[0].upper() != mode:
                connection.execute(f"PRAGMA journal_mode={mode}")
                connection.execute("CREATE TABLE IF NOT EXISTS made_by_ablations (version INTEGER)")
                connection.execute("DROP TABLE made_by_ablations")


def merge_journal(path: Path) -> None:
    """Merge the journal into the database's file, so that the file alone holds everything."""
    with contextlib.closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def make_database(path: Path) -> None:
    """Create a database with MLflow's tables; set the journal mode of an existing one.

    The tables are created in a temporary file and renamed: MLflow's migrations are not one transaction, and it cannot
    use tables that a kill left incomplete. MLflow's empty experiment "Default" also gets a relative address. Their text
    is kept for the user's next store, because the migrations take 2 s.
    """
    if path.exists():
        set_journal(path)
        return
    with folder_beside(path.parent, ".mlflow-") as folder:
        aside = folder / path.name
        set_journal(aside)
        version = importlib.metadata.version("mlflow")
        with UserCache("mlflow-tables-1") as cache, contextlib.closing(sqlite3.connect(aside)) as database:
            if isinstance(tables := cache.get(version), str):
                database.executescript(tables)
            else:
                import_mlflow()
                from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

                SqlAlchemyStore(f"sqlite:///{aside}", SCHEME).engine.dispose()
                cache.put(version, "\n".join(database.iterdump()))
        if not path.exists():  # otherwise another process was faster, and its database may already contain runs
            written.begin(path, {})  # in place of an earlier database's
            aside.replace(path)


def ui_command(store: Store, port: int) -> list[str]:
    """The command of a local MLflow server on a store."""
    with explained(store.mlflow_db):
        set_journal(store.mlflow_db)
    server = [sys.executable, "-P", "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1"]
    return [*server, "--backend-store-uri", database_uri(store), "--artifacts-destination", str(store.artifacts)]


# --- The parents of a table's runs: an experiment per study, in it a heading per profile and corpus


class Headings:
    """Finds or makes them. `elsewhere`: at a server, which decides where artifacts lie."""

    def __init__(self, client: Any, elsewhere: bool) -> None:
        self._client, self._elsewhere = client, elsewhere
        self._experiments: dict[str, str] = {}
        self._active: list[str] = []
        self._headings: dict[tuple[str, str, str], str] = {}

    def experiments(self) -> list[str]:
        """The ids of the active experiments: looked up once, and again when one was made or restored here."""
        if not self._active:  # looking them up for every run would be a sixth of what MLflow costs a run
            self._active = [one.experiment_id for one in self._client.search_experiments()]
        return self._active

    def experiment(self, study: str) -> str:
        """The id of the study's experiment, created or restored if necessary."""
        if study not in self._experiments:
            self._active = []
            known = self._client.get_experiment_by_name(study)
            if known is None:
                location = f"{SCHEME}{''.join(c if c.isalnum() else '-' for c in study)}"
                self._experiments[study] = self._client.create_experiment(
                    study, artifact_location=None if self._elsewhere else location
                )
            else:
                if known.lifecycle_stage != "active":
                    self._client.restore_experiment(known.experiment_id)
                self._experiments[study] = known.experiment_id
        return self._experiments[study]

    def heading(self, study: str, profile: str, corpus: str, start_ms: int | None = None) -> str:
        """The id of the parent run. It only groups runs, so it is finished from the start."""
        key = (study, profile, corpus)
        if key not in self._headings:
            experiment = self.experiment(study)
            about = {"heading": digest(key), "study": study, "profile": profile, "corpus": corpus}
            found = self._client.search_runs([experiment], f"tags.heading = '{about['heading']}'", max_results=1)
            if not found:
                name = " · ".join(part for part in key if part)
                found = [self._client.create_run(experiment, start_time=start_ms, tags=about, run_name=name)]
            if found[0].info.status != "FINISHED":  # new, or left by a kill
                self._client.set_terminated(found[0].info.run_id, "FINISHED", start_ms)
            self._headings[key] = found[0].info.run_id
        return self._headings[key]


# --- Names of metrics, parameters and tags as keys that MLflow accepts, and back
# MLflow accepts only letters, digits and `_ . - : / blank`, refuses names that are not plain paths (`a//b`, `..`), and
# allows 250 characters. A refused character is written by its code point: `_x25_`. A name that is too long is cut and
# gets a digest; a tag of the run contains the whole name.


LONGEST = 250
# a refused character, or an underscore that looks like the beginning of an escape
_REFUSED = re.compile(r"[^\w.\- :/]|_(?=x[0-9A-F]*(?:_|[^\w.\- :/]))")
_REFUSED_AND_PATH = re.compile(r"[^\w\- :]|_(?=x[0-9A-F]*(?:_|[^\w\- :]))")
_ESCAPED = re.compile(r"_x([0-9A-F]*)_")


@functools.lru_cache(10_000)
def to_key(name: str) -> str:
    """MLflow's key for `name`; different names have different keys."""
    key = _escape(_REFUSED, name) or "_x_"
    if posixpath.normpath(key) != key or key == "." or key.startswith(("..", "/")):
        key = _escape(_REFUSED_AND_PATH, name)
    return key if len(key) <= LONGEST else f"{key[:200]}.{digest(name)}"


def from_key(key: str) -> str:
    """The name of a key that was not cut."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)) if found[1] else "", key)


def whole_names(names: Iterable[str]) -> dict[str, str]:
    """Tags with the full names of keys that were cut: `name.<digest>` → name."""
    return {f"name.{digest(name)}": name for name in names if from_key(to_key(name)) != name}


def _escape(pattern: re.Pattern[str], text: str) -> str:
    return pattern.sub(lambda found: f"_x{ord(found[0]):X}_", text)


# --- Calls of MLflow's client


MOST, MOST_PARAMS, MOST_TAGS = 1000, 100, 100  # MLflow's limits on one call: of all items, and of each kind


def log(
    client: Any, mlflow_id: str, *, metrics: Sequence[Any] = (), params: Sequence[Any] = (), tags: Sequence[Any] = ()
) -> None:
    """Log metrics, parameters and tags of a run in as few calls as MLflow's limits allow.

    A call is not one transaction: what must be written after something else belongs in a later call of this function.
    """
    while metrics or params or tags:
        count = MOST - len(params[:MOST_PARAMS]) - len(tags[:MOST_TAGS])
        client.log_batch(
            mlflow_id,
            metrics=metrics[:count],
            params=params[:MOST_PARAMS],
            tags=tags[:MOST_TAGS],
            synchronous=True,  # whatever MLFLOW_ENABLE_ASYNC_LOGGING says
        )
        metrics, params, tags = metrics[count:], params[MOST_PARAMS:], tags[MOST_TAGS:]


# --- Files among the artifacts: hard-linked into the store's `artifacts/`, or sent to a server


ARTIFACT_BYTES = 64 << 20  # larger files stay in the run's folder only


class Artifacts:
    """Artifacts of the runs that `client` knows. `folder`: their folder; None if the client's server stores them."""

    def __init__(self, client: Any, folder: Path | None) -> None:
        self._client, self._folder = client, folder
        self._locations: dict[str, Path] = {}

    def locate(self, run: Any) -> None:
        """Remember where a run of MLflow's has its artifacts."""
        if self._folder is not None:
            self._locations[run.info.run_id] = self._folder / run.info.artifact_uri.removeprefix(SCHEME)

    def keep(self, mlflow_id: str, source: Path, name: str, fresh: bool = False) -> None:
        """Add a file to a run's artifacts under `name`; folders and too large files are left out.

        fresh: replace an earlier version of the file.
        """
        if not source.is_file() or source.stat().st_size > ARTIFACT_BYTES:
            return
        if self._folder is None:
            self._client.log_artifact(mlflow_id, str(source), name.rpartition("/")[0] or None)
            return
        if mlflow_id not in self._locations:
            self.locate(self._client.get_run(mlflow_id))
        target = self._locations[mlflow_id] / name
        if fresh or not target.exists() or target.stat().st_size != source.stat().st_size:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            link(source, target)


def artifacts(store: Store, run_id: str) -> Iterator[tuple[Path, str]]:
    """(file, name) of artifacts: outputs, attention maps, logs, uncommitted changes."""
    for eval_id, made in evaluations(store, run_id):
        for path in sorted(store.evaluation_folder(run_id, eval_id).glob("[!.]*")):  # no hidden ones, which a kill left
            yield path, f"evaluations/{made.set or 'set'}-{eval_id[:8]}/{path.name}"
    for path in sorted((store.run_folder(run_id) / "attention").glob("*")):
        yield path, f"attention/{path.name}"
    for number in store.attempts(run_id):
        for name in (LOG, "uncommitted.diff"):
            yield store.attempt_folder(run_id, number) / name, f"attempts/{number:04d}/{name}"


# --- Runs that nothing trained: rows of a printed table, and rows that share another row's training
# The rows of a printed table have means, deviations and changes, and page.py puts the trainings of each below it. A row
# that shares a training has its own name and scores beside that training. Both are views of runs: they have no
# `run_id`, and are made anew where their content has changed.


ROWS_OF = "rows_of"  # tag of a row: the parent's `heading`
TABLE = "table"  # tag of a row and of the runs that it is made of: the same
PARENT = "mlflow.parentRunId"
SHARED = "training"  # tag of a row that shares a training: that run's run_id
CONTENT = "content"  # tag: digest of all that the run shows; set last, so that an incomplete one has none
PARAM_LENGTH = 500  # MLflow's limit on a parameter's text


@dataclass(frozen=True)
class RowLine:
    """A row as the table prints it."""

    key: str
    group: str
    seeds: int  # that its means are over
    params: Mapping[str, str]  # settings that vary in the table, also where they are base's
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class MlflowRunView:
    """Content of an MLflow run that shows a row or a table: its name, tags, parameters and metrics."""

    experiment: str
    parent: str  # its heading's id; "": none
    name: str
    tags: Mapping[str, str]
    params: Mapping[str, str]
    points: Sequence[tuple[str, float, int, int]]  # name, value, time in ms, step
    times_ms: tuple[int | None, int | None] = (None, None)  # of its start and end
    status: str = "FINISHED"


def write_rows(
    client: Any, experiment: str, heading: Any, about: Mapping[str, str], lines: Sequence[RowLine]
) -> dict[str, str]:
    """Bring the runs of a table's rows up to date; returns their ids by the rows' keys.

    heading: the table's. about: its tags. A row has no parent, so that MLflow's list begins with rows. Only a list that
    is sorted by start has runs below others, so a row's start says its place in the table.
    """
    table, begin = heading.data.tags["heading"], heading.info.start_time
    views = []
    for place, line in enumerate(lines):
        tags = {**about, "row": line.key, "group": line.group, "seeds": str(line.seeds), ROWS_OF: table, TABLE: table}
        points = [(name, value, 0, 0) for name, value in line.metrics.items()]
        views.append(MlflowRunView(experiment, "", line.key, tags, line.params, points, (begin + place,) * 2))
    ids = write_views(
        client, views, client.search_runs([experiment], f"tags.{ROWS_OF} = '{table}'", max_results=10_000)
    )
    return dict(zip((line.key for line in lines), ids, strict=True))


def write_views(client: Any, views: Iterable[MlflowRunView], known: Iterable[Any]) -> list[str]:
    """Make the views that are not among MLflow's `known` runs, and delete those of these that are no longer views.

    Returns the views' ids.
    """
    wanted = {_content(view): view for view in views}
    ids: dict[str, str] = {}
    for run in known:
        shown = run.data.tags.get(CONTENT, "")
        if shown in wanted and shown not in ids:
            ids[shown] = run.info.run_id
        else:
            client.delete_run(run.info.run_id)
    return [ids.get(shown) or _write(client, view, shown) for shown, view in wanted.items()]


def _content(view: MlflowRunView) -> str:
    """A digest of what it shows, not of the ids that this database gives."""
    told = asdict(view) | {"points": repr(view.points)}  # some are not finite
    return digest({name: value for name, value in told.items() if name not in ("experiment", "parent")})


def _write(client: Any, view: MlflowRunView, content: str) -> str:
    entities = import_mlflow().entities
    start, end = view.times_ms
    tags = {**view.tags, **({PARENT: view.parent} if view.parent else {})}
    made = client.create_run(view.experiment, start_time=start, tags=tags, run_name=view.name)
    params = [entities.Param(to_key(name), value[:PARAM_LENGTH]) for name, value in view.params.items()]
    points = [entities.Metric(to_key(name), value, t, step) for name, value, t, step in view.points]
    log(client, made.info.run_id, params=params, metrics=points)
    client.set_terminated(made.info.run_id, view.status, end)
    named = whole_names([*view.params, *(name for name, *_ in view.points)])
    log(client, made.info.run_id, tags=[entities.RunTag(*item) for item in {**named, CONTENT: content}.items()])
    mlflow_id: str = made.info.run_id
    return mlflow_id
