"""Language models: running text, scored by bits per byte, which does not depend on the pieces."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.data.corpora import text
from experiments.data.corpora.pair_corpus import select_sets
from experiments.data.corpora.text import TextCorpus
from experiments.errors import UserError
from experiments.evaluation.counts import TEXT_COUNTS, bits_per_byte, piece_perplexity, word_perplexity
from experiments.tasks.base import Context, EvaluationSpec, Progress
from experiments.tasks.columns import Column, Counts
from experiments.tasks.configs import LanguageConfig
from experiments.tasks.network import OF_WEIGHTS, NetworkTask, evaluation_settings, size_by_text
from experiments.tasks.preflight import of_builtin, of_settings

if TYPE_CHECKING:
    from experiments.data.encoding.text import EncodedText

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
    inputs_read: tuple[str, ...] | None = ("data.",)
    prepare_reads: tuple[str, ...] | None = ("data.", "training.tokens_per_batch")
    init_stats: tuple[str, ...] = ("entropy_decoder", "gradient_norm")
    ensembles = True

    def corpus(self, config: LanguageConfig) -> TextCorpus:
        """The text of a configuration, found by file names. Raises UserError."""
        return text.resolve(config.data)

    def inputs(self, config: LanguageConfig, store: Path) -> dict[str, str]:
        """The content of train and dev, or the recipe of the built-in text."""
        return {"corpus": self.corpus(config).training_digest(store / "corpora")}

    def evaluations(self, config: LanguageConfig, store: Path) -> list[EvaluationSpec]:
        """One per set, with its window and stride."""
        corpus = self.corpus(config)
        window = config.evaluated_window
        settings = {
            **{k: v for k, v in evaluation_settings(config).items() if k in OF_WEIGHTS},
            "window": window,
            "stride": config.evaluation.stride or window,
        }
        return [
            EvaluationSpec(name, settings, {"set": corpus.set_digest(name, store / "corpora")})
            for name in select_sets(corpus, config.evaluation.sets)
        ]

    def vocab_sizes(self, config: LanguageConfig) -> tuple[int, int]:
        size = config.data.vocab_size
        if config.data.sized_by_text:
            size = size_by_text(self.corpus(config), config.data)
        return size, size

    def typical_length(self, config: LanguageConfig) -> int:
        return config.data.window

    def obstacles(self, config: LanguageConfig, store: Path) -> list[UserError]:
        from experiments.data.windows import rows_of

        found = [*of_settings(config.training, config.evaluation), *of_builtin(config.data)]
        for check in (
            lambda: self._check_corpus(config, store),
            lambda: rows_of(config.training.tokens_per_batch, config.data.window),
        ):
            try:
                check()
            except UserError as error:
                found.append(error)
        return found

    def _check_corpus(self, config: LanguageConfig, store: Path) -> None:
        corpus = self.corpus(config)
        corpus.check(store / "corpora")
        select_sets(corpus, config.evaluation.sets)

    def prepare(self, config: LanguageConfig, store: Path, progress: Progress) -> dict[str, Any]:
        """Train the tokenizer and encode the text, once; see experiments/data/encoding/text.py for the errors."""
        from experiments.data.encoding.text import prepare_text
        from experiments.data.windows import WindowPlan

        data = config.data
        encoded = prepare_text(self.corpus(config), data, store / "corpora", progress)
        # raises UserError for a text shorter than a window
        WindowPlan(encoded.train.documents, data.window, data.mix_documents, config.training.tokens_per_batch, 0)
        return {"corpus": encoded.facts["corpus"]["name"], **encoded.facts}

    def train(self, config: LanguageConfig, context: Context) -> dict[str, Any]:
        from experiments.tasks.train_network import train_text

        keeps = (*self.keeps(config), *context.keeps)
        return train_text(config, context, self._encoded(config, context), keeps)

    def likelihood(
        self, config: LanguageConfig, evaluation: EvaluationSpec, weights: Path, folder: Path, context: Context
    ) -> dict[str, Any]:
        """The bits per byte of a set, of the weights or of an ensemble's members."""
        from experiments.tasks.evaluate_network import measure_text

        trainings = context.members or [weights]
        return measure_text(config, self._encoded(config, context), evaluation, trainings, folder, context)

    def _encoded(self, config: LanguageConfig, context: Context) -> "EncodedText":
        from experiments.data.encoding.text import open_text, text_digest

        return open_text(context.store / "corpora", text_digest(context.inputs["corpus"], config.data))


TASK = LanguageModelling()
