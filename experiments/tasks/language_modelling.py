"""Language models: running text, scored by bits per byte, which does not depend on the pieces."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.data.corpora import text
from experiments.data.corpora.corpus import select_sets
from experiments.data.encoding.encoded import EncodedCorpus
from experiments.data.windows import WindowPlan, rows_of
from experiments.errors import UserError
from experiments.evaluation.counts import TEXT_COUNTS, bits_per_byte, piece_perplexity, word_perplexity
from experiments.tasks.base import Context, EvaluationSpec
from experiments.tasks.columns import Column, Counts
from experiments.tasks.configs import LanguageConfig
from experiments.tasks.network import OF_WEIGHTS
from experiments.tasks.preflight import of_builtin, of_settings
from experiments.tasks.sequence import NetworkTask

_FILE = "statistics.npy"
BITS = Column(
    "bits", "dev", "bits_per_byte", "bits/byte (dev)", "lower", 3, paper="bits_per_byte",
    counts=Counts(TEXT_COUNTS, bits_per_byte, _FILE),
    about="bits/byte: of the raw text's UTF-8, the ends of documents predicted too; it does not depend on the pieces.",
)  # fmt: skip
PER_PIECE = Column(
    "ppl", "dev", "perplexity", "PPL (dev)", "lower", 2, paper="perplexity", logarithmic=True, per_piece=True,
    counts=Counts(TEXT_COUNTS, piece_perplexity, _FILE), about="PPL: perplexity per piece of the vocabulary.",
)  # fmt: skip
PER_WORD = Column(
    "ppl_word", "dev", "word_perplexity", "PPL/word (dev)", "lower", 1, paper="word_perplexity", logarithmic=True,
    counts=Counts(TEXT_COUNTS, word_perplexity, _FILE), about="PPL/word: per word between spaces.",
)  # fmt: skip


class LanguageModelling(NetworkTask):
    name = "language_modelling"
    config_type = LanguageConfig
    columns = (
        BITS,
        replace(BITS, key="bits_*", set="*", header="bits/byte (*)", paper="bits_per_byte_test", about=""),
        PER_PIECE,
        PER_WORD,
    )
    evaluation_parts = ("likelihood",)
    prepare_reads: tuple[str, ...] | None = ("data.", "training.tokens_per_batch")
    at_start: tuple[str, ...] = ("entropy_decoder", "gradient_norm")

    def corpus(self, config: LanguageConfig) -> text.TextCorpus:
        return text.resolve(config.data)

    def evaluation_settings(self, config: LanguageConfig) -> dict[str, Any]:
        """Those that choose weights, the window and its stride."""
        chosen = {name: value for name, value in super().evaluation_settings(config).items() if name in OF_WEIGHTS}
        window = config.evaluated_window
        return {**chosen, "window": window, "stride": config.evaluation.stride or window}

    def typical_length(self, config: LanguageConfig) -> int:
        return config.data.window

    def obstacles(self, config: LanguageConfig, store: Path) -> list[UserError]:
        reasons = [*of_settings(config.training, config.evaluation), *of_builtin(config.data)]

        def check_corpus() -> None:
            corpus = self.corpus(config)
            corpus.check(store / "corpora")
            select_sets(corpus, config.evaluation.sets)

        for check in (
            check_corpus,
            lambda: rows_of(config.training.tokens_per_batch, config.data.window),
        ):
            try:
                check()
            except UserError as error:
                reasons.append(error)
        return reasons

    def check_batches(self, config: LanguageConfig, encoded: EncodedCorpus) -> None:
        data, documents = config.data, encoded.train["target"].offsets
        # raises UserError for a text shorter than a window
        WindowPlan(documents, data.window, data.mix_documents, config.training.tokens_per_batch, 0)

    def likelihood(
        self, config: LanguageConfig, evaluation: EvaluationSpec, weights: Path, folder: Path, context: Context
    ) -> dict[str, Any]:
        """The bits per byte of a set, of the weights or of an ensemble's members."""
        from experiments.tasks.evaluate_network import measure_text

        trained, text = self.trained(config, evaluation, weights, context), self.evaluated(config, evaluation, context)
        return measure_text(trained, text, evaluation.settings, config.data.mix_documents, folder, context)


TASK = LanguageModelling()
