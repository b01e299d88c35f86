"""The configurations of the tasks besides translation (experiments/config.py). Imports no torch.

A language model is a decoder alone, on running text.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from experiments.config import NOT_IN_RUN_ID, EvaluationConfig, Names, RunConfig, SettingRoles, TrainingConfig
from experiments.data.corpora.algorithmic import AlgorithmicData
from experiments.data.corpora.text import UNREAD, TextData
from experiments.data.corpora.trees import TreeData
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


# --- Parsing: translation's sections with the paper's settings for parsing (section 6.3)


class ParsingModel(ModelConfig):
    """Section 6.3: 4 layers, d_model 1024, the rest as base.

    The paper chose dropout, "both attention and residual", on section 22 and does not print it; the rates are those of
    tensor2tensor's parsing sets of 2017. So is d_k = d_model / h.
    """

    num_layers: int = Field(4, ge=1, description="layers of the encoder and of the decoder (N)")
    d_model: int = Field(1024, ge=1, description="width of the residual stream (d_model)")
    d_k: int = Field(128, ge=1, description="width of a query and a key, per head (d_k)")
    d_v: int = Field(128, ge=1, description="width of a value, per head (d_v)")
    dropout: float = Field(0.2, ge=0, lt=1, description="on sub-layer outputs and on embedding + position (P_drop)")
    attention_dropout: float = Field(0.2, ge=0, lt=1, description="on attention weights")
    shared_vocabulary: Literal[False] = Field(False, description="words and symbols share no pieces")


class ParsingTraining(TrainingConfig):
    """Warm-up and learning rate, chosen on section 22 as well, are tensor2tensor's too."""

    warmup_steps: int = Field(16000, ge=1, description="steps of linear warm-up")
    learning_rate_scale: float = Field(0.5, gt=0, description="factor on the paper's schedule")


class ParsingEvaluation(EvaluationConfig):
    beam_size: int = Field(21, ge=1, description="hypotheses kept at each step of the search (section 6.1)")
    length_penalty: float = Field(0.3, ge=0, description="alpha of ((5 + |Y|) / 6)^alpha")
    max_extra_length: int = Field(300, ge=0, description="output is at most this many pieces longer than the input")
    rules: str = Field("collins", description='"collins", or the path of an EVALB parameter file (.prm)')

    @field_validator("rules")
    @classmethod
    def _found_from_anywhere(cls, rules: str) -> str:
        return rules if rules == "collins" else str(Path(rules).expanduser().absolute())


class ParsingConfig(RunConfig):
    """Defaults are the paper's for the Wall Street Journal alone, and frozen like base's."""

    setting_roles: ClassVar[SettingRoles] = replace(
        RunConfig.setting_roles, not_in_run_id=(*NOT_IN_RUN_ID, "data.train_extra", "data.builtin_extra")
    )

    task: str = "parsing"
    model: ParsingModel = ParsingModel()
    data: TreeData = TreeData()
    training: ParsingTraining = ParsingTraining()
    evaluation: ParsingEvaluation = ParsingEvaluation()


# --- An algorithmic corpus: translation's sections, decoded greedily


# The corpus's digests cover these.
_OF_CORPUS = (
    "data.algorithm", "data.symbols", "data.train_lengths", "data.dev_lengths", "data.test_lengths", "data.set_pairs",
    "data.distance", "data.corpus_seed", "data.vocab_size",
)  # fmt: skip


class AlgorithmicEvaluation(EvaluationConfig):
    """One output is right, so the most probable piece is taken each time."""

    sets: Names = Field(("dev", "test"), description='"dev" and lengths of test sets; "test": all of them')
    beam_size: int = Field(1, ge=1, description="hypotheses kept at each step of the search (section 6.1)")
    length_penalty: float = Field(0.0, ge=0, description="alpha of ((5 + |Y|) / 6)^alpha")
    max_extra_length: int = Field(10, ge=0, description="output is at most this many pieces longer than the input")


class AlgorithmicConfig(RunConfig):
    """Defaults of the model and its training are the paper's base; all are frozen like base's."""

    setting_roles: ClassVar[SettingRoles] = replace(
        RunConfig.setting_roles, not_in_run_id=(*NOT_IN_RUN_ID, *_OF_CORPUS)
    )

    task: str = "algorithmic"
    data: AlgorithmicData = AlgorithmicData()
    evaluation: AlgorithmicEvaluation = AlgorithmicEvaluation()
