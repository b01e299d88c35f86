"""Artifacts: files that are hard-linked into the store's `artifacts/`, or sent to a server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.store.durable import link
from experiments.store.layout import LOG, Store
from experiments.tracking.database import SCHEME
from experiments.tracking.record import evaluations

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

        fresh: whether to replace an existing file in any case. If False, it is replaced only if its size has changed.
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
