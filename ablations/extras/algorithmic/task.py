"""The task `algorithmic`: learn an algorithm from generated inputs, each with exactly one correct output."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from ablations.extras.algorithmic.corpus import AlgorithmicCorpus, AlgorithmicData, bounds, resolve
from ablations.extras.algorithmic.scores import EXACT_COUNTS, exact, pieces, score_exact
from experiments.config.evaluation import EvaluationConfig
from experiments.config.field_types import Names
from experiments.config.run_config import NOT_IN_RUN_ID, RunConfig
from experiments.config.task_config import SettingRoles
from experiments.data.encoding.encoded import EncodedSet
from experiments.evaluation.scoring import SetScores
from experiments.run_spec import EvaluationSpec
from experiments.tasks.columns import Column, Counts
from experiments.tasks.translation import TRANSLATE, SequenceTask

# Settings that are not part of run_id, because the corpus digest contains them. data.vocab_size has no effect.
_OF_CORPUS = (
    "data.algorithm", "data.symbols", "data.train_lengths", "data.dev_lengths", "data.test_lengths", "data.set_pairs",
    "data.distance", "data.corpus_seed", "data.vocab_size",
)  # fmt: skip


class AlgorithmicEvaluation(EvaluationConfig):
    """Settings of decoding. The defaults are greedy search, because each input has one correct output."""

    sets: Names = Field(
        ("dev", "test"),
        description='"dev" and test sets, each named by its range of lengths; "test" means all test sets',
    )
    beam_size: int = Field(1, ge=1, description="hypotheses kept at each step of the search (section 6.1)")
    length_penalty: float = Field(0.0, ge=0, description="alpha of ((5 + |Y|) / 6)^alpha")
    max_extra_length: int = Field(
        10, ge=0, description="maximum number of output pieces beyond the length of the input"
    )


class AlgorithmicConfig(RunConfig):
    """Settings of a run. The defaults of model and training are those of the paper's base.

    The defaults never change, because run_ids contain the differences from them.
    """

    setting_roles: ClassVar[SettingRoles] = replace(
        RunConfig.setting_roles, not_in_run_id=(*NOT_IN_RUN_ID, *_OF_CORPUS)
    )

    task: str = "algorithmic"
    data: AlgorithmicData = AlgorithmicData()
    evaluation: AlgorithmicEvaluation = AlgorithmicEvaluation()


EXACT = Column(
    "exact", "dev", "exact", "exact % (dev)", "higher", 1,
    counts=Counts(EXACT_COUNTS, exact, "statistics.npy"),
    about="exact %: share of outputs that equal the reference. pieces %: number of positions at which output and "
        "reference have the same piece, divided by the length of the longer one.",
)  # fmt: skip
PIECES = Column(
    "pieces", "dev", "pieces", "pieces % (dev)", "higher", 1, counts=Counts(EXACT_COUNTS, pieces, "statistics.npy")
)


class Algorithmic(SequenceTask):
    name = "algorithmic"
    use = TRANSLATE
    metrics = ("perplexity", "exact", "pieces")
    config_type = AlgorithmicConfig
    columns = (
        EXACT,
        replace(EXACT, key="exact_*", set="*", header="exact % (*)", about=""),
        PIECES,
        replace(PIECES, key="pieces_*", set="*", header="pieces % (*)"),
    )
    outputs_file = "outputs.txt"

    def corpus(self, config: AlgorithmicConfig) -> AlgorithmicCorpus:
        return resolve(config.data)

    def typical_length(self, config: AlgorithmicConfig) -> int:
        return sum(bounds(config.data.train_lengths)) // 2 + 1

    def score_outputs(
        self, config: AlgorithmicConfig, evaluation: EvaluationSpec, text: EncodedSet, outputs: Sequence[str],
        labels: Sequence[str], folder: Path,
    ) -> SetScores:  # fmt: skip
        return score_exact(outputs, text.target)


TASK = Algorithmic()
