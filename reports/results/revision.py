"""A store as it was at an earlier revision of the code: results that a newer training has replaced since."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.store.layout import Store
from experiments.store.sealed import read_json, read_named
from reports.results.facts import Trained


class AtRevision:
    """Reads like a Store. `revision`: the beginning of a commit or of a digest of the training code."""

    def __init__(self, store: Store, revision: str) -> None:
        self._store, self._revision, self.root = store, revision, store.root

    def result(self, run_id: str) -> dict[str, Any] | None:
        """The newest training of that revision."""
        return next((result for result in self._results(run_id)), None)

    def evaluation(self, run_id: str, eval_id: str) -> dict[str, Any] | None:
        """The evaluation of that training; None where that revision made none."""
        return read_named(self.evaluation_folder(run_id, eval_id) / "result.json", run_id=run_id, eval_id=eval_id)

    def evaluation_folder(self, run_id: str, eval_id: str) -> Path:
        """Where the scores of that revision's weights lie: moved to their attempt once they are replaced."""
        place = self._store.evaluation_folder(run_id, eval_id)
        attempt = (self.result(run_id) or {}).get("attempt")
        if attempt is None or (read_json(place / "result.json") or {}).get("weights_attempt", attempt) == attempt:
            return place if attempt is not None else self._store.run_folder(run_id) / "none"
        for number in reversed(self._store.attempts(run_id)):
            kept = self._store.attempt_folder(run_id, number) / "evaluations" / eval_id
            if (read_json(kept / "result.json") or {}).get("weights_attempt", number) == attempt:
                return kept
        return self._store.run_folder(run_id) / "none"

    def _results(self, run_id: str) -> Iterator[dict[str, Any]]:
        for number in reversed(self._store.attempts(run_id)):
            result = read_named(self._store.attempt_folder(run_id, number) / "result.json", run_id=run_id)
            if result is not None and self._is_of(result):
                yield {**result, "attempt": number}

    def _is_of(self, result: dict[str, Any]) -> bool:
        trained = Trained.read(result)
        names = (trained.revision.commit, trained.tool.commit if trained.tool else None, trained.code_digest)
        return any(name is not None and name.startswith(self._revision) for name in names)
