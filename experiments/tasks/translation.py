"""The task `translation`, and the base class of tasks on pairs of lines.

The task trains on parallel text, and scores with perplexity, BLEU and chrF. This module imports torch only when a part
of an evaluation is made.
"""

import contextlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.attempt_context import AttemptContext
from experiments.config.evaluation import OF_SEARCH
from experiments.config.run_config import RunConfig
from experiments.data.batching import BatchPlan
from experiments.data.corpora.files import written_lines
from experiments.data.corpora.parallel import ParallelCorpus, resolve
from experiments.data.encoding.encoded import EncodedCorpus, EncodedSet
from experiments.errors import UserError
from experiments.evaluation.scoring import BLEU_COUNTS, SetScores, bleu, score_text
from experiments.run_spec import EvaluationSpec
from experiments.tasks.base import Use
from experiments.tasks.columns import Column, Counts
from experiments.tasks.network import (
    OF_WEIGHTS,
)
from experiments.tasks.network_task import NetworkTask
from experiments.tasks.preflight import of_corpus, of_settings

TRANSLATE = Use(
    "translate", "experiments.evaluation.translator:Translator",
    (Path(__file__).parents[1] / "evaluation" / "readmes" / "translate.md").read_text(encoding="utf-8"),
)  # fmt: skip

# The parts of an evaluation, in their order
LIKELIHOOD, DECODE, SCORE = "likelihood", "decode", "score"


class SequenceTask(NetworkTask):
    """A task on pairs of lines. An evaluation decodes outputs, writes them to a file and scores them.

    Subclasses define the corpus (`corpus`) and the scores (`score_outputs`).
    """

    evaluation_parts = (LIKELIHOOD, DECODE, SCORE)
    part_reads: Mapping[str, tuple[str, ...]] = {SCORE: (DECODE,)}
    part_settings: Mapping[str, tuple[str, ...]] = {LIKELIHOOD: OF_WEIGHTS, DECODE: (*OF_WEIGHTS, *OF_SEARCH)}
    outputs_file = "translations.txt"  # decoded outputs in an evaluation's folder, one per line
    statistics_file = "statistics.npy"  # counts in an evaluation's folder, one row per sentence
    init_stats: tuple[str, ...] = (
        *("entropy_encoder", "entropy_decoder", "entropy_cross", "gradient_norm"),
        *(f"jacobian_{distance}" for distance in (1, 2, 4, 8, 16, 32)),
    )
    prepare_reads: tuple[str, ...] | None = ("data.", "model.shared_vocabulary", "training.tokens_per_batch")

    @abstractmethod
    def score_outputs(
        self, config: Any, evaluation: EvaluationSpec, text: EncodedSet, outputs: Sequence[str], labels: Sequence[str],
        folder: Path,
    ) -> SetScores:  # fmt: skip
        """Score the decoded outputs.

        text: the evaluated set.
        labels: all tokens of the target vocabulary.
        folder: a folder for files.
        """

    def scoring(self, config: Any) -> dict[str, Any]:
        """Return the settings of `score_outputs`. Like the settings of `config.evaluation`, they are in eval_id."""
        return {}

    def evaluation_settings(self, config: RunConfig) -> dict[str, Any]:
        return super().evaluation_settings(config) | self.scoring(config)

    def preflight(self, config: RunConfig, store: Path) -> list[UserError]:
        return [
            *of_settings(config.training, config.evaluation),
            *of_corpus(config, self.corpus(config), store / "corpora"),
            *self.network_preflight(config),
        ]

    def check_batches(self, config: RunConfig, encoded: EncodedCorpus) -> None:
        source, target = (side.lengths for side in encoded.train.values())
        BatchPlan(source, target, config.training.tokens_per_batch, 0)  # raises UserError for a pair that is too long

    def likelihood(
        self, config: RunConfig, evaluation: EvaluationSpec, weights: Path, folder: Path, context: AttemptContext
    ) -> dict[str, Any]:
        """Measure the perplexity of the references under the trained network or the ensemble."""
        from experiments.evaluation.trained import measure_pairs

        trained = self.trained(config, evaluation, weights, context)
        return measure_pairs(trained, self.evaluated(config, evaluation, context), context)

    def decode(
        self, config: RunConfig, evaluation: EvaluationSpec, weights: Path, folder: Path, context: AttemptContext
    ) -> dict[str, Any]:
        """Decode the set and write the outputs to `outputs_file`."""
        from experiments.evaluation.trained import decode

        trained, text = self.trained(config, evaluation, weights, context), self.evaluated(config, evaluation, context)
        return decode(trained, text, evaluation.settings, folder / self.outputs_file, context)

    def score(
        self, config: RunConfig, evaluation: EvaluationSpec, weights: Path, folder: Path, context: AttemptContext
    ) -> dict[str, Any]:
        """Score the outputs in `outputs_file`. No weights are read."""
        from experiments.evaluation.load_network import load_tokenizers

        text = self.evaluated(config, evaluation, context)
        outputs = written_lines(folder / self.outputs_file)
        labels = load_tokenizers(config, (*context.members, weights)[0])[1].vocabulary
        scores = self.score_outputs(config, evaluation, text, outputs, labels, folder)
        np.save(folder / self.statistics_file, scores.statistics, allow_pickle=False)
        return {"metrics": scores.metrics, "signature": scores.signatures}


PERPLEXITY = Column(
    "ppl", "dev", "perplexity", "PPL (dev)", "lower", 2, paper="perplexity", logarithmic=True, per_piece=True,
    about="Perplexity: unsmoothed, per piece of the vocabulary, end of sentence counted.",
)  # fmt: skip
ACCURACY = Column(
    "accuracy", "dev", "token_accuracy", "accuracy % (dev)", "higher", 1, per_piece=True, optional=True,
    about="Accuracy: the share of the references' pieces, end of sentence counted, that the model finds most probable "
    "given the source and the pieces before them.",
)  # fmt: skip
BLEU = Column(
    "bleu", "dev", "bleu", "BLEU (dev)", "higher", 1, paper="bleu",
    counts=Counts(BLEU_COUNTS, bleu, "statistics.npy", length="ref_len"),
)  # fmt: skip


class Translation(SequenceTask):
    """Translation of parallel text."""

    name = "translation"
    use = TRANSLATE
    metrics = ("perplexity", "token_accuracy", "bleu", "chrf", "bleu_paper")
    columns = (PERPLEXITY, ACCURACY, BLEU, replace(BLEU, key="bleu_*", set="*", header="BLEU (*)", paper="bleu_test"))

    def corpus(self, config: RunConfig) -> ParallelCorpus:
        return resolve(config.data)

    def score_outputs(
        self, config: RunConfig, evaluation: EvaluationSpec, text: EncodedSet, outputs: Sequence[str],
        labels: Sequence[str], folder: Path,
    ) -> SetScores:  # fmt: skip
        return score_text(outputs, text.target, _target_language(config))


def _target_language(config: RunConfig) -> str:
    """Return the target language, on which the tokenization of the paper's BLEU depends.

    Return "en" if neither the corpus nor the settings name a language.
    """
    with contextlib.suppress(UserError):
        return resolve(config.data).target
    return config.data.target or "en"


TASK = Translation()
