"""Runs in MLflow: one experiment per study, a parent run per study × profile × corpus, one run per row × seed below it.

The only importer of mlflow; imported when a Tracker is created, because it takes two seconds. MLflow is a view: `sync`
writes everything that is missing of a run, from its events and results, whether the run has just begun, has ended, or
is rebuilt years later. Only one process writes at a time: the coordinator.

A tag of the run says how far its events are written; it is set after the points themselves. After a failure `sync`
continues from there. A point written twice is the same row, which MLflow ignores.

Artifacts are in the store's `artifacts/`, hard-linked if possible. Their addresses are `mlflow-artifacts:/…`, relative
to the folder that the server is started with (`ui_command`). So the database contains no absolute path, and a store
can be moved.
"""

import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.config import digest, flatten
from experiments.errors import DiskFull
from experiments.events.history import History, Point
from experiments.records import RUNNING, TrackedRun
from experiments.store.durable import folder_beside, remove_folder
from experiments.store.layout import Store
from experiments.tracking.database import SCHEME, database_uri, set_journal
from experiments.tracking.names import to_key, whole_names
from experiments.tracking.record import (
    ARTIFACT_BYTES,
    artifacts,
    config,
    curve_name,
    evaluations,
    final_points,
    first_member,
    place_artifact,
    tags,
)
from experiments.tracking.tables import Tables, knows

PARAM_LENGTH = 500  # MLflow's limit on a parameter's text
METRICS_AT_ONCE, ITEMS_AT_ONCE = 900, 100  # limits of a call: MLflow allows 1,000 items in all
MOST_ATTEMPTS = 200  # in the tag POSITION; points of older attempts would be written again
SCORED = "scored"  # tag: when each evaluation was made whose scores are in MLflow
POSITION = "events_written"  # tag: bytes of each attempt's events that are in MLflow


@dataclass
class _Entry:
    """A run in MLflow."""

    mlflow_id: str
    history: History
    begin: int  # the first attempt of its curve
    status: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)


class Tracker:
    """Writes to a store's MLflow database, or to the server at `uri`. Not for use by several threads."""

    def __init__(
        self, store: Store, uri: str = "", *, database: Path | None = None, artifacts: Path | None = None
    ) -> None:
        """`database` and `artifacts`: fill these from scratch instead of the store's own."""
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        from mlflow import MlflowClient, entities

        for name in ("mlflow", "alembic"):  # migrations are of no interest to the user
            logging.getLogger(name).setLevel(logging.WARNING)
        database = database or store.mlflow_db
        if not uri:
            make_database(database)
        self._store, self._entities = store, entities
        self._artifacts = artifacts or store.artifacts
        self._elsewhere = bool(uri)
        self._client = self._mlflow = MlflowClient(tracking_uri=uri or f"sqlite:///{database}")
        self._fresh = database != store.mlflow_db
        if self._fresh and knows(database):
            self._client = Tables(database, self._client)
        self._experiments: dict[str, str] = {}
        self._locations: dict[str, Path] = {}
        self._headings: dict[tuple[str, str, str], str] = {}
        self._open: dict[str, _Entry] = {}

    def close(self) -> None:
        """Write everything, merge the journal into the database, and close it."""
        if isinstance(self._client, Tables):
            self._client.close()
        if not self._elsewhere:
            self._mlflow._tracking_client.store.engine.dispose()

    @property
    def client(self) -> Any:
        """MLflow's own client, for page.py."""
        return self._client

    def sync(self, run: TrackedRun) -> None:
        """Bring MLflow up to date with a run. Raises MLflow's errors; the next call then continues."""
        entry = self._open.pop(run.run_id, None) or (None if self._fresh else self._find(run))
        if (
            entry is not None and entry.begin != entry.history.look()
        ):  # restarted: the curve belongs to another training
            self._client.delete_run(entry.mlflow_id)
            entry = None
        entry = entry or self._create(run)
        if entry is None:
            return
        self._describe(entry, run)
        self._log_curve(entry)
        self._set_tags(entry, tags(run, entry.history))
        if "error" in entry.tags and not run.error:
            self._client.delete_tag(entry.mlflow_id, "error")
            del entry.tags["error"]
        if run.status != RUNNING:
            scored = _scored(self._store, run.run_id, entry.history)
            before = _parse_scored(entry.tags.get(SCORED, ""))
            if any(scored.get(name, t) != t for name, t in before.items()):
                self._client.delete_run(entry.mlflow_id)  # scored again: MLflow would show both values as one curve
                self.sync(run)
                return
            self._set_tags(entry, {SCORED: " ".join(f"{name}:{t}" for name, t in scored.items())} if scored else {})
            self._log(entry, final_points(self._store, run, entry.history))
            for source, name in artifacts(self._store, run.run_id):
                self.keep_artifact(entry.mlflow_id, source, name)
        if run.status != entry.status:
            self._set_status(entry, run.status)
        if run.status == RUNNING:
            self._open[run.run_id] = entry

    def _find(self, run: TrackedRun) -> _Entry | None:
        """The run's entry of an earlier sync; None if there is none."""
        experiments = [e.experiment_id for e in self._client.search_experiments()]
        found = self._client.search_runs(experiments, f"tags.run_id = '{run.run_id}'", max_results=1)
        if not found:
            return None
        known, history = found[0], History(self._store, run.run_id)
        about = dict(known.data.tags)
        history.skip(_position(about.get(POSITION, "")))
        begin, params = int(about.get("first_attempt", 0)), known.data.params
        self._locate(known)
        return _Entry(known.info.run_id, history, begin, known.info.status, about, params)

    def _create(self, run: TrackedRun) -> _Entry | None:
        """Create the run's entry; None for a run that has not begun."""
        history = History(self._store, run.run_id)
        begin = history.look()
        if history.first_t is None and run.status == RUNNING:
            return None
        study, profile, corpus, row, _ = first_member(run, history) or ("runs", "", "", run.run_id, "")
        start = _ms(history.first_t) if history.first_t else None
        experiment, parent = self.experiment(study), self.heading(study, profile, corpus, start)
        about = {"run_id": run.run_id, "mlflow.parentRunId": parent, "first_attempt": str(begin)}
        made = self._client.create_run(experiment, start_time=start, tags=about, run_name=f"{row} · seed {run.seed}")
        self._locate(made)
        return _Entry(made.info.run_id, history, begin, RUNNING, about)

    def _set_status(self, entry: _Entry, status: str) -> None:
        if status == RUNNING:
            self._client.update_run(entry.mlflow_id, status=RUNNING)
        else:
            self._client.set_terminated(entry.mlflow_id, status, _ms(entry.history.last_t) or None)
        entry.status = status

    def experiment(self, study: str) -> str:
        """The id of the study's experiment, created or restored if necessary."""
        if study not in self._experiments:
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
            if found:
                self._headings[key] = found[0].info.run_id
            else:
                name = " · ".join(part for part in key if part)
                made = self._client.create_run(experiment, start_time=start_ms, tags=about, run_name=name)
                self._client.set_terminated(made.info.run_id, "FINISHED", start_ms)
                self._headings[key] = made.info.run_id
        return self._headings[key]

    def _describe(self, entry: _Entry, run: TrackedRun) -> None:
        """Log what never changes, parameters and data sets: once, or again after a failure."""
        if POSITION in entry.tags:
            return
        values = {"task": run.task, **dict(flatten(config(self._store, run))), "seed": run.seed}
        wanted = {to_key(name): str(value)[:PARAM_LENGTH] for name, value in values.items()}
        params = [self._entities.Param(*item) for item in wanted.items() if item[0] not in entry.params]
        for some in _chunks(params, ITEMS_AT_ONCE):
            self._client.log_batch(entry.mlflow_id, params=some)
        member = first_member(run, entry.history)
        source = json.dumps({"corpus": member[2] if member else ""})
        use = self._entities.InputTag("mlflow.data.context", "training")
        datasets = [
            self._entities.DatasetInput(self._entities.Dataset(name, value[:36], "local", source), [use])
            for name, value in run.inputs.items()
        ]
        if datasets:
            self._client.log_inputs(entry.mlflow_id, datasets)
        self._set_tags(entry, whole_names(values))

    def _log_curve(self, entry: _Entry) -> None:
        """Log the new points, then record how far the events are written."""
        for batch in entry.history.batches(METRICS_AT_ONCE):
            self._log(entry, [point._replace(name=curve_name(point.name)) for point in batch])
            read = list(entry.history.position.items())[-MOST_ATTEMPTS:]
            position = " ".join(f"{number}:{offset}" for number, offset in read)
            if entry.tags.get(POSITION) != position:
                self._set_tags(entry, {POSITION: position})

    def _log(self, entry: _Entry, points: Sequence[Point]) -> None:
        make = self._entities.Metric
        metrics = [make(to_key(p.name), p.value, _ms(p.t), p.step) for p in points]
        for some in _chunks(metrics, METRICS_AT_ONCE):
            self._client.log_batch(entry.mlflow_id, metrics=some)
        self._set_tags(entry, whole_names(point.name for point in points))

    def _set_tags(self, entry: _Entry, wanted: Mapping[str, str]) -> None:
        """Write the new and changed tags."""
        changed = {to_key(name): value for name, value in wanted.items() if entry.tags.get(to_key(name)) != value}
        make = self._entities.RunTag
        for some in _chunks([make(*item) for item in changed.items()], ITEMS_AT_ONCE):
            self._client.log_batch(entry.mlflow_id, tags=some)
        entry.tags |= changed

    def _locate(self, run: Any) -> None:
        """Remember the artifact folder of an MLflow run."""
        self._locations[run.info.run_id] = self._artifacts / run.info.artifact_uri.removeprefix(SCHEME)

    def keep_artifact(self, mlflow_id: str, source: Path, name: str, fresh: bool = False) -> None:
        """Add a file to a run's artifacts under `name`; folders and too large files are left out.

        fresh: replace an earlier version of the file.
        """
        if not self._elsewhere:
            if mlflow_id not in self._locations:
                self._locate(self._client.get_run(mlflow_id))
            target = self._locations[mlflow_id] / name
            if fresh:
                target.unlink(missing_ok=True)
            place_artifact(source, target)
        elif source.is_file() and source.stat().st_size <= ARTIFACT_BYTES:
            self._client.log_artifact(mlflow_id, str(source), name.rpartition("/")[0] or None)


def attach(store: Store, run_id: str, files: Mapping[Path, str]) -> bool:
    """Add files (path → name) to a run's artifacts; False if the run is not in MLflow."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=database_uri(store))
    experiments = [e.experiment_id for e in client.search_experiments()]
    found = client.search_runs(experiments, f"tags.run_id = '{run_id}'", max_results=1) if experiments else []
    for known in found:
        location = known.info.artifact_uri.removeprefix(SCHEME)
        for source, name in files.items():
            place_artifact(source, store.artifacts / location / name)
    return bool(found)


def rebuild(store: Store, runs: Iterable[TrackedRun]) -> list[str]:
    """Write the MLflow database again from the store's events and results. The caller holds the coordinator's lock.

    A new database is filled and then replaces the old one. Returns a line for each run that could not be written; all
    others are written.
    """
    problems = []
    with folder_beside(store.state_dir, ".mlflow-") as state, folder_beside(store.root, ".mlflow-") as files:
        tracker = Tracker(store, database=state / store.mlflow_db.name, artifacts=files)
        for run in runs:
            try:
                tracker.sync(run)
            except (MemoryError, DiskFull):
                raise
            except Exception as error:
                problems.append(f"{run.run_id}: {error}")
        tracker.close()
        for suffix in ("", "-wal", "-shm", "-journal"):
            store.mlflow_db.with_name(store.mlflow_db.name + suffix).unlink(missing_ok=True)
        (state / store.mlflow_db.name).replace(store.mlflow_db)
        remove_folder(store.artifacts)
        files.rename(store.artifacts)
    return problems


def make_database(path: Path) -> None:
    """Create a database with MLflow's tables; set the journal mode of an existing one.

    The tables are created in a temporary file and renamed: MLflow's migrations are not one transaction, and it cannot
    use tables that a kill left incomplete. MLflow's empty experiment "Default" also gets a relative address.
    """
    if path.exists():
        set_journal(path)
        return
    with folder_beside(path.parent, ".mlflow-") as folder:
        aside = folder / path.name
        set_journal(aside)
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        SqlAlchemyStore(f"sqlite:///{aside}", SCHEME).engine.dispose()
        if not path.exists():  # otherwise another process was faster, and its database may already contain runs
            aside.replace(path)


def _position(text: str) -> dict[int, int]:
    """Parse the tag POSITION; {} for an unreadable one, which means that nothing is known to be written."""
    try:
        return {int(number): int(offset) for number, offset in (word.split(":") for word in text.split())}
    except ValueError:
        return {}


def _scored(store: Store, run_id: str, history: History) -> dict[str, int]:
    """When each evaluation was made, by the beginning of its eval_id."""
    return {name[:8]: _ms(history.evaluated_t.get(name, 0.0)) for name, _ in sorted(evaluations(store, run_id))}


def _parse_scored(text: str) -> dict[str, int]:
    return {name: int(t) for name, _, t in (word.partition(":") for word in text.split()) if t.isdecimal()}


def _ms(t: float) -> int:
    """Seconds as MLflow's milliseconds."""
    return int(t * 1000)


def _chunks(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (items[at : at + size] for at in range(0, len(items), size))
