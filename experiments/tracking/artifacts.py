"""Files among the artifacts of MLflow's runs: hard-linked into the store's `artifacts/`, or sent to a server."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from experiments.store.durable import link
from experiments.store.layout import LOG, Store
from experiments.tracking.database import SCHEME, database_uri, explained
from experiments.tracking.record import evaluations

ARTIFACT_BYTES = 64 << 20  # larger files stay in the run's folder only


class Artifacts:
    """Of the runs that `client` knows. `folder`: where they lie; None: at the client's server."""

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
        if self._folder is not None:
            if mlflow_id not in self._locations:
                self.locate(self._client.get_run(mlflow_id))
            target = self._locations[mlflow_id] / name
            if fresh:
                target.unlink(missing_ok=True)
            place_artifact(source, target)
        elif source.is_file() and source.stat().st_size <= ARTIFACT_BYTES:
            self._client.log_artifact(mlflow_id, str(source), name.rpartition("/")[0] or None)


def attach(store: Store, run_id: str, files: Mapping[Path, str]) -> bool:
    """Add files (path → name) to a run's artifacts; False if the run is not in MLflow. Raises UserError."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    from mlflow import MlflowClient

    with explained(store.mlflow_db):
        client = MlflowClient(tracking_uri=database_uri(store))
        experiments = [e.experiment_id for e in client.search_experiments()]
        found = client.search_runs(experiments, f"tags.run_id = '{run_id}'", max_results=1) if experiments else []
    for known in found:
        location = known.info.artifact_uri.removeprefix(SCHEME)
        for source, name in files.items():
            place_artifact(source, store.artifacts / location / name)
    return bool(found)


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


def place_artifact(source: Path, target: Path) -> None:
    """Hard-link a file that no longer changes; copy it if links do not work. Skips files over ARTIFACT_BYTES."""
    if not source.is_file() or source.stat().st_size > ARTIFACT_BYTES:
        return
    if target.exists() and target.stat().st_size == source.stat().st_size:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    link(source, target)
