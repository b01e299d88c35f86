"""The configuration of a language model: a decoder alone, on running text. Imports no torch."""

from collections.abc import Iterable
from typing import ClassVar, Self

from pydantic import Field, model_validator

from experiments.config import EvaluationConfig, RunConfig, TrainingConfig
from experiments.data.corpora.text.settings import UNREAD, TextData
from model.config import ModelConfig

_NO_SEARCH = "a language model is scored without a search"
_UNREAD = {
    **{name: f"it is of {what}, and a language model reads one text" for name, what in UNREAD.items()},
    **dict.fromkeys(("evaluation.beam_size", "evaluation.length_penalty", "evaluation.max_extra_length"), _NO_SEARCH),
}


class LanguageModel(ModelConfig):
    """No encoder, and no attention to one."""

    encoder: str = Field("", description="must stay empty: nothing is read but the text so far")
    decoder: str = Field("N * (self_attention, feed_forward)", description="layers of the network, as a line of text")


class LanguageTraining(TrainingConfig):
    """Bits per byte are those of unsmoothed probabilities, so nothing smooths the labels."""

    label_smoothing: float = Field(0.0, ge=0, lt=1, description="epsilon_ls (section 5.4)")


class LanguageEvaluation(EvaluationConfig):
    """Likelihood in windows; nothing is searched."""

    stride: int | None = Field(
        None, ge=1, description="windows of an evaluation begin so many pieces apart; unset: its window, no overlap"
    )
    window: int | None = Field(None, ge=2, description="pieces of a window in evaluation; data.window if unset")


class LanguageConfig(RunConfig):
    """Defaults are those of the paper's base without its encoder and its smoothing, and frozen like base's."""

    needs_encoder: ClassVar[bool] = False

    task: str = "language_modelling"
    model: LanguageModel = LanguageModel()
    data: TextData = TextData()
    training: LanguageTraining = LanguageTraining()
    evaluation: LanguageEvaluation = LanguageEvaluation()

    @property
    def evaluated_window(self) -> int:
        """Pieces of a window in evaluation."""
        return self.evaluation.window or self.data.window

    def unread(self, names: Iterable[str]) -> list[str]:
        names = list(names)
        return [*super().unread(names), *(name for name in names if name in _UNREAD)]

    def why_unread(self, name: str) -> str:
        return _UNREAD[name] if name in _UNREAD else super().why_unread(name)

    @model_validator(mode="after")
    def _reads_text_alone(self) -> Self:
        if self.model.encoder:
            raise ValueError('model.encoder must be empty ("") for task language_modelling: there is no source to read')
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
