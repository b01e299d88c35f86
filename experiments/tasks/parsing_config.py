"""A parsing run's configuration: translation's sections with the paper's settings for parsing. Imports no torch."""

from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from experiments.config import NOT_IN_RUN_ID, EvaluationConfig, RunConfig, SettingRoles, TrainingConfig
from experiments.data.corpora.trees.settings import TreeData
from model.config import ModelConfig


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
