"""A store as it was at an earlier revision of the code: results that a newer training has replaced since."""

from collections.abc import Iterator
from pathlib import Path

from experiments.store.layout import Store
from experiments.store.results import FILE, EvaluationResult, TrainingResult


class AtRevision:
    """Reads like a Store. `revision`: the beginning of a commit or of a digest of the training code."""

    def __init__(self, store: Store, revision: str) -> None:
        self._store, self._revision, self.root = store, revision, store.root

    def result(self, run_id: str) -> TrainingResult | None:
        """The newest training of that revision."""
        return next(self._results(run_id), None)

    def evaluation(self, run_id: str, eval_id: str) -> EvaluationResult | None:
        """The evaluation of that training; None where that revision made none."""
        return EvaluationResult.load(self.evaluation_folder(run_id, eval_id) / FILE, run_id=run_id, eval_id=eval_id)

    def evaluation_folder(self, run_id: str, eval_id: str) -> Path:
        """Where the scores of that revision's weights lie: moved to their attempt once they are replaced."""
        place = self._store.evaluation_folder(run_id, eval_id)
        result, none = self.result(run_id), self._store.run_folder(run_id) / "none"
        if result is None:
            return none
        if _weights_of(place) in (None, result.attempt):
            return place
        for number in reversed(self._store.attempts(run_id)):
            kept = self._store.attempt_folder(run_id, number) / "evaluations" / eval_id
            if (_weights_of(kept) or number) == result.attempt:
                return kept
        return none

    def _results(self, run_id: str) -> Iterator[TrainingResult]:
        for number in reversed(self._store.attempts(run_id)):
            trained = TrainingResult.load(self._store.attempt_folder(run_id, number) / FILE, run_id=run_id)
            if trained is not None and self._is_of(trained):
                yield trained.model_copy(update={"attempt": number})

    def _is_of(self, trained: TrainingResult) -> bool:
        names = (trained.revision.commit, trained.tool.commit, trained.code_digest)
        return any(name is not None and name.startswith(self._revision) for name in names)


def _weights_of(folder: Path) -> int | None:
    """The attempt that trained the weights of an evaluation; None if there is no record, or it does not say so."""
    made = EvaluationResult.load(folder / FILE)
    return made.weights_attempt if made else None
