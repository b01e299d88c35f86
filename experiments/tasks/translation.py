"""Translation: parallel text, scored by BLEU and chrF; and its base class, which other tasks on pairs of lines share.

Imports no torch before a part of an evaluation is made.
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

# The parts of an evaluation, in the order in which they are made.
LIKELIHOOD, DECODE, SCORE = "likelihood", "decode", "score"


class SequenceTask(NetworkTask):
    """A task on pairs of lines, whose outputs are searched, written and scored.

    Subclasses define the corpus and the scores (`score_outputs`).
    """

    evaluation_parts = (LIKELIHOOD, DECODE, SCORE)
    part_reads: Mapping[str, tuple[str, ...]] = {SCORE: (DECODE,)}
    part_settings: Mapping[str, tuple[str, ...]] = {LIKELIHOOD: OF_WEIGHTS, DECODE: (*OF_WEIGHTS, *OF_SEARCH)}
    outputs_file = "translations.txt"  # in an evaluation's folder: what was decoded, a line each
    statistics_file = "statistics.npy"  # counts of each sentence
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
        """Score the decoded outputs; files may go to `folder`. labels: all pieces of the target's vocabulary."""

    def scoring(self, config: Any) -> dict[str, Any]:
        """Settings of `score_outputs` in eval_id, besides (or in place of) those of `config.evaluation`."""
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
        BatchPlan(source, target, config.training.tokens_per_batch, 0)  # raises UserError for a pair that fits no batch

    def likelihood(
        self, config: RunConfig, evaluation: EvaluationSpec, weights: Path, folder: Path, context: AttemptContext
    ) -> dict[str, Any]:
        """The perplexity of the references: of the weights, or of an ensemble's members."""
        from experiments.evaluation.trained import measure_pairs

        trained = self.trained(config, evaluation, weights, context)
        return measure_pairs(trained, self.evaluated(config, evaluation, context), context)

    def decode(
        self, config: RunConfig, evaluation: EvaluationSpec, weights: Path, folder: Path, context: AttemptContext
    ) -> dict[str, Any]:
        """Write `outputs_file`."""
        from experiments.evaluation.trained import decode

        trained, text = self.trained(config, evaluation, weights, context), self.evaluated(config, evaluation, context)
        return decode(trained, text, evaluation.settings, folder / self.outputs_file, context)

    def score(
        self, config: RunConfig, evaluation: EvaluationSpec, weights: Path, folder: Path, context: AttemptContext
    ) -> dict[str, Any]:
        """Score `outputs_file`; reads no weights."""
        from experiments.evaluation.trained import load_tokenizers

        text = self.evaluated(config, evaluation, context)
        outputs = written_lines(folder / self.outputs_file)
        labels = load_tokenizers(config, (*context.members, weights)[0])[1].vocabulary
        scores = self.score_outputs(config, evaluation, text, outputs, labels, folder)
        np.save(folder / self.statistics_file, scores.statistics, allow_pickle=False)
        return {"metrics": scores.metrics, "signature": scores.signatures}


# --- The task `translation` and its columns


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
    """The target language for the tokenizer of the paper's BLEU; "en" if neither corpus nor settings name one."""
    with contextlib.suppress(UserError):
        return resolve(config.data).target
    return config.data.target or "en"


TASK = Translation()
