"""MLflow's database in a store: its file, parent runs of tables, keys, artifacts, and runs for the rows of tables.

mlflow.py writes the runs that were trained. Importing MLflow takes over a second, so this module imports it only to
create or write a database.
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
from experiments.jobs.queue.sqlite_errors import explain
from experiments.store.durable import folder_beside, link
from experiments.store.layout import LOG, Store
from experiments.store.sqlite_mode import journal_mode
from experiments.store.user_cache import UserCache
from experiments.tracking import written
from experiments.tracking.record import evaluations

# --- MLflow's SQLite file in a store: its address, journal and server command


HOST = "127.0.0.1"  # the server is accessible only from this machine
ANEW = "No result is lost. Write the database again with `ablations ui --rebuild mlflow`."
SCHEME = "mlflow-artifacts:/"  # relative to the server's folder of artifacts


def import_mlflow() -> Any:
    """Import MLflow without telemetry, and without log messages on runs, migrations and errors that it also raises."""
    os.environ.update(MLFLOW_DISABLE_TELEMETRY="true", MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT="true")
    # Seconds after which MLflow reopens a connection, which may be to a database that was replaced or removed.
    os.environ.setdefault("MLFLOW_SQLALCHEMYSTORE_POOL_RECYCLE", "1")
    import mlflow

    for name, level in (("mlflow", "WARNING"), ("alembic", "WARNING"), ("mlflow.store.db.utils", "CRITICAL")):
        logging.getLogger(name).setLevel(level)
    return mlflow


def database_uri(store: Store) -> str:
    """Return MLflow's address of the database of a store."""
    return f"sqlite:///{store.mlflow_db}"


def explained(path: Path) -> contextlib.AbstractContextManager[None]:
    """Return a context that turns errors of MLflow's database into UserError.

    The causes are a locked, full, read-only or damaged database, or one of another version of MLflow.
    """
    return explain(path, "MLflow's database", ANEW)


def set_journal(path: Path) -> None:
    """Set the journal mode that is suitable for the file's disk. A missing file is created empty.

    If WAL is set before MLflow creates its 60 tables, creating them takes 2 s instead of 7 s.
    """
    with contextlib.closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as connection:
        mode = journal_mode(path.parent)
        with contextlib.suppress(sqlite3.OperationalError):  # the file is in use: keep its mode
            if connection.execute("PRAGMA journal_mode").fetchone()[0].upper() != mode:
                connection.execute(f"PRAGMA journal_mode={mode}")
                connection.execute("CREATE TABLE IF NOT EXISTS made_by_ablations (version INTEGER)")
                connection.execute("DROP TABLE made_by_ablations")


def merge_journal(path: Path) -> None:
    """Merge the journal into the database's file, so that the file is complete without the journal."""
    with contextlib.closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def make_database(path: Path) -> None:
    """Create a database with MLflow's tables, or set the journal mode of an existing database.

    The tables are created in a temporary file, which is then renamed. MLflow's migrations are not one transaction, and
    MLflow cannot use tables that a kill left incomplete. MLflow's empty experiment "Default" gets a relative address.
    The SQL text of the tables is cached for the user's next store, because the migrations take 2 s.
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
        if not path.exists():  # if another process was faster, its database may already contain runs
            written.begin(path, {})  # replaces the list of an earlier database
            aside.replace(path)


def ui_command(store: Store, port: int) -> list[str]:
    """Return the command that starts a local MLflow server for a store."""
    with explained(store.mlflow_db):
        set_journal(store.mlflow_db)
    server = [sys.executable, "-P", "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1"]
    return [*server, "--backend-store-uri", database_uri(store), "--artifacts-destination", str(store.artifacts)]


# --- Experiments and headings
# A study has one experiment. In it, each profile and corpus has one heading: the parent run of the table's runs.


class Headings:
    """The experiments and headings of studies, which are created if missing.

    elsewhere: MLflow is on a server, which chooses the location of artifacts.
    """

    def __init__(self, client: Any, elsewhere: bool) -> None:
        self._client, self._elsewhere = client, elsewhere
        self._experiments: dict[str, str] = {}
        self._active: list[str] = []
        self._headings: dict[tuple[str, str, str], str] = {}

    def experiments(self) -> list[str]:
        """Return the ids of the active experiments. They are cached until `experiment` creates or restores one."""
        if not self._active:  # a search for every run would be a sixth of the time that MLflow needs for a run
            self._active = [one.experiment_id for one in self._client.search_experiments()]
        return self._active

    def experiment(self, study: str) -> str:
        """Return the id of the study's experiment, which is created or restored if necessary."""
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
        """Return the id of a heading, which is created if missing. It only groups runs, so its status is "FINISHED"."""
        key = (study, profile, corpus)
        if key not in self._headings:
            experiment = self.experiment(study)
            about = {"heading": digest(key), "study": study, "profile": profile, "corpus": corpus}
            found = self._client.search_runs([experiment], f"tags.heading = '{about['heading']}'", max_results=1)
            if not found:
                name = " · ".join(part for part in key if part)
                found = [self._client.create_run(experiment, start_time=start_ms, tags=about, run_name=name)]
            if found[0].info.status != "FINISHED":  # new, or left incomplete by a kill
                self._client.set_terminated(found[0].info.run_id, "FINISHED", start_ms)
            self._headings[key] = found[0].info.run_id
        return self._headings[key]


# --- Convert names of metrics, parameters and tags to keys that MLflow accepts, and back
# MLflow accepts only letters, digits, spaces and `_ . - : /`. It refuses names that are not normalized paths (`a//b`,
# `..`), and allows 250 characters. A refused character is replaced by its code point: `_x25_`. A name that is too long
# is cut and gets a digest. A tag of the run then contains the full name.


LONGEST = 250  # characters
# A refused character, or an underscore that could be the beginning of an escape.
_REFUSED = re.compile(r"[^\w.\- :/]|_(?=x[0-9A-F]*(?:_|[^\w.\- :/]))")
_REFUSED_AND_PATH = re.compile(r"[^\w\- :]|_(?=x[0-9A-F]*(?:_|[^\w\- :]))")
_ESCAPED = re.compile(r"_x([0-9A-F]*)_")


@functools.lru_cache(10_000)
def to_key(name: str) -> str:
    """Return MLflow's key for a name. Different names have different keys."""
    key = _escape(_REFUSED, name) or "_x_"
    if posixpath.normpath(key) != key or key == "." or key.startswith(("..", "/")):
        key = _escape(_REFUSED_AND_PATH, name)
    return key if len(key) <= LONGEST else f"{key[:200]}.{digest(name)}"


def from_key(key: str) -> str:
    """Return the name for a key that was not cut."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)) if found[1] else "", key)


def whole_names(names: Iterable[str]) -> dict[str, str]:
    """Return tags with the full names of keys that were cut: `name.<digest>` → name."""
    return {f"name.{digest(name)}": name for name in names if from_key(to_key(name)) != name}


def _escape(pattern: re.Pattern[str], text: str) -> str:
    return pattern.sub(lambda found: f"_x{ord(found[0]):X}_", text)


# --- Calls of MLflow's client


MOST, MOST_PARAMS, MOST_TAGS = 1000, 100, 100  # MLflow's limits on one call: of all items, and of each kind


def log(
    client: Any, mlflow_id: str, *, metrics: Sequence[Any] = (), params: Sequence[Any] = (), tags: Sequence[Any] = ()
) -> None:
    """Log metrics, parameters and tags of a run in as few calls as MLflow's limits allow.

    The calls are not one transaction. To write an item after other items, call this function a second time.
    """
    while metrics or params or tags:
        count = MOST - len(params[:MOST_PARAMS]) - len(tags[:MOST_TAGS])
        client.log_batch(
            mlflow_id,
            metrics=metrics[:count],
            params=params[:MOST_PARAMS],
            tags=tags[:MOST_TAGS],
            synchronous=True,  # overrides MLFLOW_ENABLE_ASYNC_LOGGING
        )
        metrics, params, tags = metrics[count:], params[MOST_PARAMS:], tags[MOST_TAGS:]


# --- Artifacts: files that are hard-linked into the store's `artifacts/`, or sent to a server


ARTIFACT_BYTES = 64 << 20  # larger files are not added to the artifacts


class Artifacts:
    """The artifacts of the runs of an MLflow client. folder: their folder; None if a server stores them."""

    def __init__(self, client: Any, folder: Path | None) -> None:
        self._client, self._folder = client, folder
        self._locations: dict[str, Path] = {}

    def locate(self, run: Any) -> None:
        """Store the location of the artifacts of an MLflow run."""
        if self._folder is not None:
            self._locations[run.info.run_id] = self._folder / run.info.artifact_uri.removeprefix(SCHEME)

    def keep(self, mlflow_id: str, source: Path, name: str, fresh: bool = False) -> None:
        """Add a file to the artifacts of a run under `name`. Folders and too large files are left out.

        fresh: always replace an existing file. Otherwise it is replaced only if its size has changed.
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
    """Yield (file, name) of a run's artifacts: outputs, attention maps, logs, uncommitted changes."""
    for eval_id, made in evaluations(store, run_id):
        # Skip hidden files, which an interrupted write may have left.
        for path in sorted(store.evaluation_folder(run_id, eval_id).glob("[!.]*")):
            yield path, f"evaluations/{made.set or 'set'}-{eval_id[:8]}/{path.name}"
    for path in sorted((store.run_folder(run_id) / "attention").glob("*")):
        yield path, f"attention/{path.name}"
    for number in store.attempts(run_id):
        for name in (LOG, "uncommitted.diff"):
            yield store.attempt_folder(run_id, number) / name, f"attempts/{number:04d}/{name}"


# --- Views: MLflow runs that were not trained themselves
# There are two kinds of views. A row of a printed table has means, deviations and changes; page.py nests the trained
# runs of the row below it. A row that shares the training of another row has its own name and scores. Views have no tag
# `run_id`. If the content of a view changes, its MLflow run is replaced.


ROWS_OF = "rows_of"  # tag of a row of a printed table: the tag `heading` of the table's heading
TABLE = "table"  # tag of a row of a printed table and of its trained runs, with the same value
PARENT = "mlflow.parentRunId"
SHARED = "training"  # tag of a row that shares a training: run_id of the training
CONTENT = "content"  # tag: digest of a view's content; written last, so that incomplete views lack it
PARAM_LENGTH = 500  # MLflow's limit on the text of a parameter


@dataclass(frozen=True)
class RowLine:
    """A row of a printed table."""

    key: str
    group: str
    seeds: int  # number of seeds in the means
    params: Mapping[str, str]  # settings that vary in the table, also if they equal those of base
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class MlflowRunView:
    """The content of a view: name, tags, parameters and metrics."""

    experiment: str
    parent: str  # id of its heading; "" if it has no parent
    name: str
    tags: Mapping[str, str]
    params: Mapping[str, str]
    points: Sequence[tuple[str, float, int, int]]  # (name, value, time in ms, step)
    times_ms: tuple[int | None, int | None] = (None, None)  # (start, end)
    status: str = "FINISHED"


def write_rows(
    client: Any, experiment: str, heading: Any, about: Mapping[str, str], lines: Sequence[RowLine]
) -> dict[str, str]:
    """Update the views of a table's rows, and return a mapping from row keys to MLflow's ids.

    heading: the heading of the table. about: tags of the table. The views have no parent, so that rows are at the top
    level of MLflow's list. MLflow nests runs only in a list sorted by start, so start times encode the order of rows.
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
    """Create the views that are missing among the `known` MLflow runs. Delete known runs that no longer match a view.

    Returns MLflow's ids of the views.
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
    """Return a digest of a view, without ids that differ between databases."""
    shown = asdict(view) | {"points": repr(view.points)}  # as text, because values may not be finite
    return digest({name: value for name, value in shown.items() if name not in ("experiment", "parent")})


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
