"""The task `parsing`: map the words of a sentence to a line of brackets, scored by EVALB's F1 (section 6.3, Table 4).

An evaluation stores outputs.txt, which contains the outputs before repair, and the files that scores.py writes.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from ablations.extras.parsing.corpus import TreeCorpus, TreeData, resolve
from ablations.extras.parsing.scores import BRACKET_COUNTS, f1, score_parses
from experiments.config.evaluation import EvaluationConfig
from experiments.config.run_config import NOT_IN_RUN_ID, RunConfig
from experiments.config.task_config import SettingRoles
from experiments.config.training import TrainingConfig
from experiments.data.encoding.encoded import EncodedSet
from experiments.evaluation.scoring import SetScores
from experiments.run_spec import EvaluationSpec
from experiments.tasks.columns import Column, Counts
from experiments.tasks.translation import TRANSLATE, SequenceTask
from model.config import ModelConfig


class ParsingModel(ModelConfig):
    """Settings of the model. Section 6.3 gives 4 layers and d_model = 1024; the rest is as in base.

    The paper chose dropout, "both attention and residual", on section 22 and does not print the rates. These defaults
    are those of tensor2tensor's parsing settings of 2017, and so is d_k = d_model / h.
    """

    num_layers: int = Field(4, ge=1, description="layers of the encoder and of the decoder (N)")
    d_model: int = Field(1024, ge=1, description="width of the residual stream (d_model)")
    d_k: int = Field(128, ge=1, description="width of a query and a key, per head (d_k)")
    d_v: int = Field(128, ge=1, description="width of a value, per head (d_v)")
    dropout: float = Field(0.2, ge=0, lt=1, description="on sub-layer outputs and on embedding + position (P_drop)")
    attention_dropout: float = Field(0.2, ge=0, lt=1, description="on attention weights")
    shared_vocabulary: Literal[False] = Field(False, description="words and symbols share no pieces")


class ParsingTraining(TrainingConfig):
    """Settings of training. The warm-up is as long as that of base.

    The paper chose the learning rate on section 22 and does not print it. The default is that of tensor2tensor.
    """

    learning_rate_scale: float = Field(0.5, gt=0, description="factor on the paper's schedule")


class ParsingEvaluation(EvaluationConfig):
    beam_size: int = Field(21, ge=1, description="hypotheses kept at each step of the search (section 6.1)")
    length_penalty: float = Field(0.3, ge=0, description="alpha of ((5 + |Y|) / 6)^alpha")
    max_extra_length: int = Field(
        300, ge=0, description="maximum number of output pieces beyond the length of the input"
    )


class ParsingConfig(RunConfig):
    """Settings of a run. The defaults are the paper's settings for training on the Wall Street Journal alone.

    The defaults never change, because run_ids contain the differences from them.
    """

    setting_roles: ClassVar[SettingRoles] = replace(
        RunConfig.setting_roles, not_in_run_id=(*NOT_IN_RUN_ID, "data.train_extra", "data.builtin_extra")
    )

    task: str = "parsing"
    model: ParsingModel = ParsingModel()
    data: TreeData = TreeData()
    training: ParsingTraining = ParsingTraining()
    evaluation: ParsingEvaluation = ParsingEvaluation()


F1 = Column(
    "f1", "dev", "f1", "F1 (dev)", "higher", 1, paper="f1_dev", counts=Counts(BRACKET_COUNTS, f1, "brackets.npy")
)


class Parsing(SequenceTask):
    name = "parsing"
    use = TRANSLATE._replace(does="parse")
    config_type = ParsingConfig
    metrics = (
        *("perplexity", "f1", "f1_up_to_*", "precision", "recall", "complete_match", "average_crossing", "no_crossing"),
        *("two_or_less_crossing", "tagging_accuracy", "malformed", "malformed_sentences", "repaired_*", "evalb_*"),
    )
    columns = (
        F1,
        replace(F1, key="f1_*", set="*", header="F1 (*)", paper="f1"),
        Column("complete", "dev", "complete_match", "complete match % (dev)", "higher", 1),
        Column("malformed", "dev", "malformed", "malformed % (dev)", "lower", 1),
    )
    outputs_file = "outputs.txt"
    statistics_file = "brackets.npy"

    def corpus(self, config: ParsingConfig) -> TreeCorpus:
        return resolve(config.data)

    def scoring(self, config: ParsingConfig) -> dict[str, Any]:
        return {"rules": "COLLINS"}

    def score_outputs(
        self, config: ParsingConfig, evaluation: EvaluationSpec, text: EncodedSet, outputs: Sequence[str],
        labels: Sequence[str], folder: Path,
    ) -> SetScores:  # fmt: skip
        return score_parses(text.source, outputs, text.target, labels, folder)


TASK = Parsing()
