"""The task `language_modelling`: train a network on running text, and score it.

The main score is bits per byte, which does not depend on the kind of pieces.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field, model_validator

from ablations.extras.language_models import corpus as text
from ablations.extras.language_models.scores import TEXT_COUNTS, bits_per_byte, piece_perplexity, word_perplexity
from ablations.extras.language_models.windows import WindowPlan, rows_of
from experiments.attempt_context import AttemptContext
from experiments.config.evaluation import OF_SEARCH, EvaluationConfig
from experiments.config.run_config import RunConfig
from experiments.config.training import TrainingConfig
from experiments.data.corpora.corpus import select_sets
from experiments.data.encoding.encoded import EncodedCorpus
from experiments.errors import UserError
from experiments.run_spec import EvaluationSpec
from experiments.tasks.base import Use
from experiments.tasks.columns import Column, Counts
from experiments.tasks.network import OF_WEIGHTS
from experiments.tasks.network_task import NetworkTask
from experiments.tasks.preflight import of_builtin, of_settings
from model.config import ModelConfig

if TYPE_CHECKING:
    from experiments.tasks.train_network import CorpusReader


_NO_SEARCH = "a language model is scored without a search"
_UNREAD = {
    **{name: f"it is of {what}, and a language model reads one text" for name, what in text.UNREAD.items()},
    **dict.fromkeys((f"evaluation.{name}" for name in OF_SEARCH), _NO_SEARCH),
}


class LanguageModel(ModelConfig):
    """Settings of a network without an encoder and without attention to an encoder."""

    encoder: str = Field("", description="must be empty, because a language model has no source")
    decoder: str = Field("N * (self_attention, feed_forward)", description="layers of the network")


class LanguageTraining(TrainingConfig):
    """Settings of training. Labels are not smoothed, because bits per byte measure unsmoothed probabilities."""

    label_smoothing: float = Field(0.0, ge=0, lt=1, description="epsilon_ls (section 5.4)")


class LanguageEvaluation(EvaluationConfig):
    """Settings of scoring. The likelihood is computed in windows, without a search."""

    stride: int | None = Field(
        None, ge=1, description="distance in pieces between the starts of evaluation windows; no overlap if unset"
    )
    window: int | None = Field(None, ge=2, description="size of evaluation windows in pieces; data.window if unset")


class LanguageConfig(RunConfig):
    """Settings of a run. The defaults are those of the paper's base, without encoder and label smoothing.

    The defaults never change, because run_ids contain the differences from them.
    """

    needs_encoder: ClassVar[bool] = False

    task: str = "language_modelling"
    model: LanguageModel = LanguageModel()
    data: text.TextData = text.TextData()
    training: LanguageTraining = LanguageTraining()
    evaluation: LanguageEvaluation = LanguageEvaluation()

    @property
    def evaluated_window(self) -> int:
        """Number of pieces in an evaluation window."""
        return self.evaluation.window or self.data.window

    def unread(self, names: Iterable[str]) -> list[str]:
        names = list(names)
        return [*super().unread(names), *(name for name in names if name in _UNREAD)]

    def why_unread(self, name: str) -> str:
        return _UNREAD[name] if name in _UNREAD else super().why_unread(name)

    @model_validator(mode="after")
    def _reads_text_alone(self) -> Self:
        if self.model.encoder:
            raise ValueError('model.encoder must be empty ("") for the task language_modelling, which has no source')
        if (self.evaluation.stride or 1) > self.evaluated_window:
            raise ValueError(
                f"evaluation.stride = {self.evaluation.stride} is more than the window of {self.evaluated_window} "
                "pieces: text between windows would not be scored. Set it to that or less"
            )
        longest = self.model.longest
        for name, window in (("data.window", self.data.window), ("evaluation.window", self.evaluated_window)):
            if longest is not None and window > longest:
                raise ValueError(
                    f"{name} = {window} is more than the {longest} positions that the network learns: set "
                    f"model.max_length to {window} or more, or {name} to less"
                )
        return self


_FILE = "statistics.npy"
BITS = Column(
    "bits", "dev", "bits_per_byte", "bits/byte (dev)", "lower", 3, paper="bits_per_byte",
    counts=Counts(TEXT_COUNTS, bits_per_byte, _FILE),
    about="bits/byte: per byte of the raw UTF-8 text, with the ends of documents; independent of the pieces.",
)  # fmt: skip
PER_PIECE = Column(
    "ppl", "dev", "perplexity", "PPL (dev)", "lower", 2, paper="perplexity", logarithmic=True, per_piece=True,
    counts=Counts(TEXT_COUNTS, piece_perplexity, _FILE), about="PPL: perplexity per piece of the vocabulary.",
)  # fmt: skip
PER_WORD = Column(
    "ppl_word", "dev", "word_perplexity", "PPL/word (dev)", "lower", 1, paper="word_perplexity", logarithmic=True,
    counts=Counts(TEXT_COUNTS, word_perplexity, _FILE), about="PPL/word: per word between spaces.",
)  # fmt: skip

_HOW_TO_USE = (Path(__file__).parent / "templates" / "use.md").read_text(encoding="utf-8")


class LanguageModelling(NetworkTask):
    name = "language_modelling"
    use = Use("continue text", "ablations.extras.language_models.sampler:Sampler", _HOW_TO_USE)
    config_type = LanguageConfig
    metrics = ("bits_per_byte", "perplexity", "word_perplexity")
    columns = (
        BITS,
        replace(BITS, key="bits_*", set="*", header="bits/byte (*)", paper="bits_per_byte_test", about=""),
        PER_PIECE,
        PER_WORD,
    )
    evaluation_parts = ("likelihood",)
    prepare_reads: tuple[str, ...] | None = ("data.", "training.tokens_per_batch")
    init_stats: tuple[str, ...] = ("entropy_decoder", "gradient_norm")

    def corpus(self, config: LanguageConfig) -> text.TextCorpus:
        return text.resolve(config.data)

    def evaluation_settings(self, config: LanguageConfig) -> dict[str, Any]:
        """Return the settings that identify an evaluation: which weights, the window and its stride."""
        read = (*OF_WEIGHTS, *config.network_changes)
        chosen = {name: value for name, value in super().evaluation_settings(config).items() if name in read}
        window = config.evaluated_window
        return {**chosen, "window": window, "stride": config.evaluation.stride or window}

    def typical_length(self, config: LanguageConfig) -> int:
        return config.data.window

    def preflight(self, config: LanguageConfig, store: Path) -> list[UserError]:
        reasons = [
            *of_settings(config.training, config.evaluation),
            *of_builtin(config.data),
            *self.network_preflight(config),
        ]
        try:
            corpus = self.corpus(config)
            corpus.check(store / "corpora")
            select_sets(corpus, config.evaluation.sets)
        except UserError as error:
            reasons.append(error)
        try:
            rows_of(config.training.tokens_per_batch, config.data.window)
        except UserError as error:
            reasons.append(error)
        return reasons

    def check_batches(self, config: LanguageConfig, encoded: EncodedCorpus) -> None:
        data, documents = config.data, encoded.train["target"].offsets
        # The constructor raises UserError if the text is shorter than a window.
        WindowPlan(documents, data.window, data.mix_documents, config.training.tokens_per_batch, 0)

    def reading(self) -> "CorpusReader":
        from ablations.extras.language_models.training import WINDOWS

        return WINDOWS

    def likelihood(
        self, config: LanguageConfig, evaluation: EvaluationSpec, weights: Path, folder: Path, context: AttemptContext
    ) -> dict[str, Any]:
        """Return the scores of a set for the weights of a run, or for the members of an ensemble."""
        from ablations.extras.language_models.scoring import measure_text

        trained, text = self.trained(config, evaluation, weights, context), self.evaluated(config, evaluation, context)
        return measure_text(trained, text, evaluation.settings, config.data.mix_documents, folder, context)


TASK = LanguageModelling()
