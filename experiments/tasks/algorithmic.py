"""Algorithms as sequence to sequence: generated inputs, one right output each; exact sequences and exact pieces."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from experiments.data.corpora.algorithmic import AlgorithmicCorpus, bounds, resolve
from experiments.data.encoding.encoded import EncodedSet
from experiments.evaluation.counts import EXACT_COUNTS, SetScores, exact, pieces, score_exact
from experiments.tasks.base import EvaluationSpec
from experiments.tasks.columns import Column, Counts
from experiments.tasks.configs import AlgorithmicConfig
from experiments.tasks.sequence import SequenceTask

EXACT = Column(
    "exact", "dev", "exact", "exact % (dev)", "higher", 1,
    counts=Counts(EXACT_COUNTS, exact, "statistics.npy"),
    about="exact %: outputs that are right from the first to the last piece. pieces %: pieces at their place, of the "
    "longer of output and reference.",
)  # fmt: skip
PIECES = Column(
    "pieces", "dev", "pieces", "pieces % (dev)", "higher", 1, counts=Counts(EXACT_COUNTS, pieces, "statistics.npy")
)


class Algorithmic(SequenceTask):
    name = "algorithmic"
    config_type = AlgorithmicConfig
    columns = (
        EXACT,
        replace(EXACT, key="exact_*", set="*", header="exact % (*)", about=""),
        PIECES,
        replace(PIECES, key="pieces_*", set="*", header="pieces % (*)"),
    )
    outputs_file = "outputs.txt"

    def corpus(self, config: AlgorithmicConfig) -> AlgorithmicCorpus:
        return resolve(config.data)

    def typical_length(self, config: AlgorithmicConfig) -> int:
        return sum(bounds(config.data.train_lengths)) // 2 + 1

    def score_outputs(
        self, config: AlgorithmicConfig, evaluation: EvaluationSpec, text: EncodedSet, outputs: Sequence[str],
        labels: Sequence[str], folder: Path,
    ) -> SetScores:  # fmt: skip
        return score_exact(outputs, text.target)


TASK = Algorithmic()
