"""Translation: parallel text, scored by BLEU and chrF."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from experiments.config.run_config import RunConfig
from experiments.data.corpora.parallel import ParallelCorpus, resolve
from experiments.data.encoding.encoded import EncodedSet
from experiments.errors import UserError
from experiments.evaluation.counts import BLEU_COUNTS, SetScores, bleu
from experiments.run_spec import EvaluationSpec
from experiments.tasks.columns import Column, Counts
from experiments.tasks.sequence import TRANSLATE, SequenceTask

PERPLEXITY = Column(
    "ppl", "dev", "perplexity", "PPL (dev)", "lower", 2, paper="perplexity", logarithmic=True, per_piece=True,
    about="Perplexity: of unsmoothed probabilities, per piece of the vocabulary, end of sentence counted.",
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
        from experiments.evaluation.bleu import score_text

        return score_text(outputs, text.target, _target_language(config))


def _target_language(config: RunConfig) -> str:
    """The target language for the tokenizer of the paper's BLEU; "en" if neither corpus nor settings name one."""
    with contextlib.suppress(UserError):
        return resolve(config.data).target
    return config.data.target or "en"


TASK = Translation()
