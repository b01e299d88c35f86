"""Runs in MLflow: one experiment a study, a heading run per study × profile × corpus, below it a run per row × seed.

The only importer of mlflow, and it imports it when a Tracker is made: that takes two seconds. MLflow is a view: `sync`
writes what is not there yet of a whole run, from its events and results, whether the run has just begun, has ended, or
is rebuilt years later. Only one process writes at a time: the coordinator.

Artifacts lie in the store's `artifacts/`, hard-linked where possible. Their addresses are `mlflow-artifacts:/…`,
relative to what the server is started with (`ui_command`), so that the database holds no absolute path and a store can
be moved.
"""

import json
import logging
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.config import digest, flatten
from experiments.history import History, Point
from experiments.mlflow_file import SCHEME, database_uri, set_journal
from experiments.store import Store, remove_folder
from experiments.tracked import (
    ARTIFACT_BYTES,
    RUNNING,
    TAG_LENGTH,
    TrackedRun,
    artifacts,
    curve_name,
    final_metrics,
    place_artifact,
    tags,
)

PARAM_LENGTH = 500  # MLflow's limit on a parameter's text
METRICS_AT_ONCE, ITEMS_AT_ONCE = 1000, 100  # and on one call


@dataclass
class _Entry:
    """A run in MLflow."""

    mlflow_id: str
    experiment: str
    history: History
    status: str = ""
    tags: dict[str, str] = field(default_factory=dict)


class Tracker:
    """Writes to a store's MLflow database, or to the server at `uri`. Not to be shared between threads."""

    def __init__(self, store: Store, uri: str = "") -> None:
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        from mlflow import MlflowClient, entities

        for name in ("mlflow", "alembic"):  # migrations are not the user's news
            logging.getLogger(name).setLevel(logging.WARNING)
        if not uri:
            make_database(store.mlflow_db)
        self._store, self._entities = store, entities
        self._elsewhere = bool(uri)
        self._client = MlflowClient(tracking_uri=uri or database_uri(store))
        self._experiments: dict[str, str] = {}
        self._locations: dict[str, Path] = {}
        self._headings: dict[tuple[str, str, str], str] = {}
        self._open: dict[str, _Entry] = {}

    @property
    def client(self) -> Any:
        """MLflow's own, for views.py."""
        return self._client

    def sync(self, run: TrackedRun) -> None:
        """Bring MLflow up to date with a run. Raises what MLflow raises; may be repeated."""
        entry = self._open.get(run.run_id) or self._find(run) or self._create(run)
        begin = entry.history.begin
        points = list(entry.history.read())
        if begin and entry.history.begin != begin:  # started anew: the former curve is another training's
            self._client.delete_run(entry.mlflow_id)
            entry = self._create(run)
            points = list(entry.history.read())
        self._log_points(entry, points)
        about = tags(run, entry.history)
        if run.error or "error" in entry.tags:
            about["error"] = run.error[:TAG_LENGTH]
        self._set_tags(entry, about)
        if run.status != RUNNING:
            self._log_results(entry, run)
        if run.status != entry.status:
            if run.status == RUNNING:
                self._client.update_run(entry.mlflow_id, status=RUNNING)
            else:
                self._client.set_terminated(entry.mlflow_id, run.status)
            entry.status = run.status
        self._open[run.run_id] = entry
        if run.status != RUNNING:
            del self._open[run.run_id]

    def _find(self, run: TrackedRun) -> _Entry | None:
        """The run as an earlier coordinator left it."""
        experiments = [e.experiment_id for e in self._client.search_experiments()]
        found = self._client.search_runs(experiments, f"tags.run_id = '{run.run_id}'", max_results=1)
        if not found:
            return None
        known = found[0]
        history = History(self._store, run.run_id)
        history.begin = int(known.data.tags.get("first_attempt", 0))
        for name in known.data.metrics:
            steps = (m.step for m in self._client.get_metric_history(known.info.run_id, name))
            history.last[name.removeprefix("train_")] = max(steps, default=-1)
        entry = _Entry(known.info.run_id, known.info.experiment_id, history, known.info.status, dict(known.data.tags))
        if not known.data.params:
            self._log_params(entry, run)
        return entry

    def _create(self, run: TrackedRun) -> _Entry:
        study, profile, corpus, row, _ = run.members[0] if run.members else ("runs", "", "", run.run_id, "")
        experiment = self.experiment(study)
        history = History(self._store, run.run_id)
        list(history.read())
        about = tags(run, history) | {
            "mlflow.parentRunId": self.heading(study, profile, corpus),
            "first_attempt": str(history.begin),
        }
        start = int(history.first_t * 1000) if history.first_t else None
        made = self._client.create_run(experiment, start_time=start, tags=about, run_name=f"{row} · seed {run.seed}")
        entry = _Entry(made.info.run_id, experiment, History(self._store, run.run_id), RUNNING, about)
        entry.history.begin = history.begin
        self._log_params(entry, run)
        self._log_inputs(entry, run, corpus)
        return entry

    def experiment(self, study: str) -> str:
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

    def heading(self, study: str, profile: str, corpus: str) -> str:
        """The parent run: a heading and nothing more, so that it is finished from the start."""
        key = (study, profile, corpus)
        if key not in self._headings:
            experiment = self.experiment(study)
            about = {"heading": digest(key), "study": study, "profile": profile, "corpus": corpus}
            found = self._client.search_runs([experiment], f"tags.heading = '{about['heading']}'", max_results=1)
            if found:
                self._headings[key] = found[0].info.run_id
            else:
                name = " · ".join(part for part in key if part)
                made = self._client.create_run(experiment, tags=about, run_name=name)
                self._client.set_terminated(made.info.run_id, "FINISHED")
                self._headings[key] = made.info.run_id
        return self._headings[key]

    def _log_params(self, entry: _Entry, run: TrackedRun) -> None:
        make = self._entities.Param
        values = {"task": run.task, **dict(flatten(run.config)), "seed": run.seed}
        params = [make(name, str(value)[:PARAM_LENGTH]) for name, value in values.items()]
        for some in _chunks(params, ITEMS_AT_ONCE):
            self._client.log_batch(entry.mlflow_id, params=some)

    def _log_inputs(self, entry: _Entry, run: TrackedRun, corpus: str) -> None:
        source = json.dumps({"corpus": corpus})
        tag = self._entities.InputTag("mlflow.data.context", "training")
        datasets = [
            self._entities.DatasetInput(self._entities.Dataset(name, value[:36], "local", source), [tag])
            for name, value in run.inputs.items()
        ]
        if datasets:
            self._client.log_inputs(entry.mlflow_id, datasets)

    def _log_points(self, entry: _Entry, points: Iterable[Point]) -> None:
        make = self._entities.Metric
        metrics = [make(curve_name(p.name), p.value, int(p.t * 1000), p.step) for p in points]
        for some in _chunks(metrics, METRICS_AT_ONCE):
            self._client.log_batch(entry.mlflow_id, metrics=some)

    def _set_tags(self, entry: _Entry, wanted: Mapping[str, str]) -> None:
        changed = {name: value for name, value in wanted.items() if entry.tags.get(name) != value}
        make = self._entities.RunTag
        for some in _chunks([make(*item) for item in changed.items()], ITEMS_AT_ONCE):
            self._client.log_batch(entry.mlflow_id, tags=some)
        entry.tags |= changed

    def _log_results(self, entry: _Entry, run: TrackedRun) -> None:
        known = self._client.get_run(entry.mlflow_id).data.metrics
        new = {name: value for name, value in final_metrics(self._store, run).items() if known.get(name) != value}
        step = max(entry.history.last.values(), default=0)
        now = int(time.time() * 1000)
        metrics = [self._entities.Metric(name, value, now, step) for name, value in new.items()]
        for some in _chunks(metrics, METRICS_AT_ONCE):
            self._client.log_batch(entry.mlflow_id, metrics=some)
        for source, name in artifacts(self._store, run):
            self.keep_artifact(entry.mlflow_id, source, name)

    def keep_artifact(self, mlflow_id: str, source: Path, name: str, fresh: bool = False) -> None:
        """Show a file among a run's artifacts, by its name there; what is no file or too large is left out.

        `fresh`: it may have changed since it was kept.
        """
        if not self._elsewhere:
            if mlflow_id not in self._locations:
                location = self._client.get_run(mlflow_id).info.artifact_uri.removeprefix(SCHEME)
                self._locations[mlflow_id] = self._store.artifacts / location
            target = self._locations[mlflow_id] / name
            if fresh:
                target.unlink(missing_ok=True)
            place_artifact(source, target)
        elif source.is_file() and source.stat().st_size <= ARTIFACT_BYTES:
            self._client.log_artifact(mlflow_id, str(source), name.rpartition("/")[0] or None)


def attach(store: Store, run_id: str, files: Mapping[Path, str]) -> bool:
    """Show files, by their names there, among a run's artifacts; False if the run is not in MLflow."""
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


def rebuild(store: Store, runs: Iterable[TrackedRun]) -> None:
    """Write the MLflow database anew from the store's events and results. Hold the coordinator's lock."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        store.mlflow_db.with_name(store.mlflow_db.name + suffix).unlink(missing_ok=True)
    remove_folder(store.artifacts)
    store.artifacts.mkdir()
    tracker = Tracker(store)
    for run in runs:
        tracker.sync(run)


def make_database(path: Path) -> None:
    """A database with MLflow's tables, or the one that is there in the journal mode that is right for its disk.

    The tables are made aside and renamed: MLflow's migrations are not one transaction, and it can never go on with
    tables that a kill has left half made. Its own empty experiment "Default" gets a relative address too.
    """
    if path.exists():
        set_journal(path)
        return
    with tempfile.TemporaryDirectory(prefix=".mlflow-", dir=path.parent, ignore_cleanup_errors=True) as folder:
        aside = Path(folder) / path.name
        set_journal(aside)
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        SqlAlchemyStore(f"sqlite:///{aside}", SCHEME).engine.dispose()
        if not path.exists():  # else another process was faster, and its database may hold runs by now
            aside.replace(path)


def _chunks(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (items[at : at + size] for at in range(0, len(items), size))
