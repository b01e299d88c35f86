"""Constituency parsing as sequence to sequence (section 6.3, Table 4): words in, a line of brackets out, EVALB's F1.

An evaluation keeps outputs.txt, what was decoded before any repair, and what experiments/evaluation/evalb.py
writes.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.data.corpora.trees import TreeCorpus, resolve
from experiments.data.encoding.encoded import EncodedSet
from experiments.evaluation.counts import BRACKET_COUNTS, SetScores, f1
from experiments.evaluation.evalb import COLLINS, read_rules, rules_of_text, score_parses
from experiments.tasks.base import EvaluationSpec
from experiments.tasks.columns import Column, Counts
from experiments.tasks.configs import ParsingConfig
from experiments.tasks.sequence import SequenceTask

F1 = Column(
    "f1", "dev", "f1", "F1 (dev)", "higher", 1, paper="f1_dev", counts=Counts(BRACKET_COUNTS, f1, "brackets.npy")
)


class Parsing(SequenceTask):
    name = "parsing"
    config_type = ParsingConfig
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

    def target_symbols(self, config: ParsingConfig) -> int:
        return config.data.target_vocab_size

    def scoring(self, config: ParsingConfig) -> dict[str, Any]:
        """The rules themselves, and not where they lie. Raises UserError for a parameter file that cannot be read."""
        named = config.evaluation.rules
        return {"rules": (COLLINS if named == "collins" else read_rules(Path(named))).text()}

    def score_outputs(
        self, config: ParsingConfig, evaluation: EvaluationSpec, text: EncodedSet, outputs: Sequence[str],
        labels: Sequence[str], folder: Path,
    ) -> SetScores:  # fmt: skip
        return score_parses(
            text.source, outputs, text.target, labels, rules_of_text(evaluation.settings["rules"]), folder
        )


TASK = Parsing()
