"""The configuration of a run on an algorithmic corpus: translation's sections, decoded greedily. Imports no torch."""

from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from experiments.config import NOT_IN_RUN_ID, EvaluationConfig, Names, RunConfig, SettingRoles
from experiments.data.corpora.algorithmic.settings import AlgorithmicData

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
