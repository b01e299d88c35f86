"""Constituency parsing as sequence to sequence (section 6.3, Table 4): words in, a line of brackets out, EVALB's F1.

An evaluation keeps, a tree a line: parses.mrg and gold.mrg, which EVALB itself reads, evalb.txt (its report, as we make
it), and outputs.txt, what was decoded before any repair.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.data.corpora.trees.corpus import TreeCorpus, resolve
from experiments.data.corpora.trees.linear import NO_TAG, Repairs, delinearise
from experiments.data.corpora.trees.tree import Tree, to_text
from experiments.evaluation.score.evalb.files import report
from experiments.evaluation.score.evalb.rules import COLLINS, Rules, read_rules, rules_of_text
from experiments.evaluation.score.evalb.score import SentenceScore, score_sentence, summarise
from experiments.tasks.base import Column, EvaluationSpec
from experiments.tasks.parsing_config import ParsingConfig
from experiments.tasks.sequence import EVALUATED_BY, TRAINED_BY, SequenceTask, write_lines

if TYPE_CHECKING:
    from experiments.evaluation.score.scoring import SetScores


_HERE = ("experiments.tasks.parsing", "experiments.tasks.parsing_config")


class Parsing(SequenceTask):
    name = "parsing"
    config_type = ParsingConfig
    columns = (
        Column("f1", "dev", "f1", "F1 (dev)", "higher", 1, paper="f1_dev"),
        Column("f1_*", "*", "f1", "F1 (*)", "higher", 1, paper="f1"),
        Column("complete", "dev", "complete_match", "complete match % (dev)", "higher", 1),
        Column("malformed", "dev", "malformed", "malformed % (dev)", "lower", 1),
    )
    training_code = (*TRAINED_BY, *_HERE)
    evaluation_code = (*EVALUATED_BY, *_HERE)

    def corpus(self, config: ParsingConfig) -> TreeCorpus:
        return resolve(config.data)

    def target_symbols(self, config: ParsingConfig) -> int:
        return config.data.target_vocab_size

    def scoring(self, config: ParsingConfig) -> dict[str, Any]:
        """The rules themselves, and not where they lie. Raises UserError for a parameter file that cannot be read."""
        named = config.evaluation.rules
        return {"rules": (COLLINS if named == "collins" else read_rules(Path(named))).text()}

    def score(
        self, config: ParsingConfig, evaluation: EvaluationSpec, sources: Sequence[str], outputs: Sequence[str],
        references: Sequence[str], labels: Sequence[str], folder: Path,
    ) -> "SetScores":  # fmt: skip
        rules = rules_of_text(evaluation.settings["rules"])
        brackets = [label[1:] for label in labels if label.startswith("/") and len(label) > 1]
        words = [source.split(" ") if source else [] for source in sources]
        gold = [delinearise(w, r.split())[0] for w, r in zip(words, references, strict=True)]
        made = [delinearise(w, o.split(), brackets) for w, o in zip(words, outputs, strict=True)]
        parses = [with_golds_punctuation(tree, g, rules) for (tree, _), g in zip(made, gold, strict=True)]
        sentences = [score_sentence(g, p, rules) for g, p in zip(gold, parses, strict=True)]
        write_lines(folder / "outputs.txt", outputs)
        write_lines(folder / "gold.mrg", [to_text(tree) for tree in gold])
        write_lines(folder / "parses.mrg", [to_text(tree) for tree in parses])
        (folder / "evalb.txt").write_text(report(sentences, rules), encoding="utf-8")
        return _scores(sentences, [repairs for _, repairs in made], rules, folder)


def with_golds_punctuation(parse: Tree, gold: Tree, rules: Rules) -> Tree:
    """The parse, with gold's word for which words the rules delete.

    A sentence in which the parser takes a comma for a noun, or the reverse, would be an error of EVALB's and in no sum:
    a parser that tags badly would be scored on the sentences that it tags well. Wrong tags still count as wrong.
    """
    deleted = rules.delete_labels
    tags = [g if g in deleted else NO_TAG if p in deleted else p for p, g in zip(parse.tags, gold.tags, strict=True)]
    return Tree(parse.words, tuple(tags), parse.brackets)


def _scores(sentences: Sequence[SentenceScore], repairs: Sequence[Repairs], rules: Rules, folder: Path) -> "SetScores":
    """Metrics: EVALB's, the same up to the rules' cut-off length, and what was repaired, in sentences and by kind."""
    import numpy as np

    from experiments.evaluation.score.scoring import SetScores

    all_, short = summarise(sentences), summarise(sentences, rules.cutoff_length)
    metrics = all_.metrics() | {f"f1_up_to_{rules.cutoff_length}": short.f1}
    metrics |= {"evalb_errors": float(all_.errors), "evalb_skipped": float(all_.skipped)}
    malformed = sum(map(bool, repairs))
    metrics |= {"malformed": 100 * malformed / len(repairs), "malformed_sentences": float(malformed)}
    for kind in asdict(Repairs()):
        metrics[f"repaired_{kind}"] = float(sum(getattr(each, kind) for each in repairs))
    statistics = np.array([[s.matched, s.gold, s.parsed] for s in sentences], dtype=np.int64)
    np.save(folder / "brackets.npy", statistics, allow_pickle=False)
    signature = f"EVALB|labeled F1|rules: {rules.text()}|punctuation: gold's"
    return SetScores(metrics, {"f1": signature}, statistics)


TASK = Parsing()
