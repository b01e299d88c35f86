"""Score lines of brackets as trees, as EVALB does."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from experiments.data.corpora.trees.linear import NO_TAG, Repairs, delinearise
from experiments.data.corpora.trees.tree import Tree, to_text
from experiments.evaluation.score.evalb.files import report
from experiments.evaluation.score.evalb.rules import Rules
from experiments.evaluation.score.evalb.score import SentenceScore, score_sentence, summarise
from experiments.evaluation.score.result import SetScores


def score_parses(
    sources: Sequence[str], outputs: Sequence[str], references: Sequence[str], labels: Sequence[str], rules: Rules,
    folder: Path,
) -> SetScores:  # fmt: skip
    """Repair and score the outputs; write parses.mrg and gold.mrg (one tree per line, for EVALB) and evalb.txt.

    labels: all pieces of the target's vocabulary. evalb.txt: EVALB's report, written by this program.
    """
    brackets = [label[1:] for label in labels if label.startswith("/") and len(label) > 1]
    words = [source.split(" ") if source else [] for source in sources]
    gold = [delinearise(w, _symbols(r))[0] for w, r in zip(words, references, strict=True)]
    made = [delinearise(w, _symbols(o), brackets) for w, o in zip(words, outputs, strict=True)]
    parses = [with_golds_punctuation(tree, g, rules) for (tree, _), g in zip(made, gold, strict=True)]
    sentences = [score_sentence(g, p, rules) for g, p in zip(gold, parses, strict=True)]
    _write(folder / "gold.mrg", gold)
    _write(folder / "parses.mrg", parses)
    (folder / "evalb.txt").write_text(report(sentences, rules), encoding="utf-8")
    return _scores(sentences, [repairs for _, repairs in made], rules, folder)


def _symbols(line: str) -> list[str]:
    """Parted by ASCII spaces alone: a label may hold another one."""
    return [symbol for symbol in line.split(" ") if symbol]


def _write(path: Path, trees: Sequence[Tree]) -> None:
    path.write_text("".join(f"{to_text(tree)}\n" for tree in trees), encoding="utf-8")


def with_golds_punctuation(parse: Tree, gold: Tree, rules: Rules) -> Tree:
    """The parse, where gold's tags decide which words the rules delete.

    A sentence in which the parser confuses comma and noun would be an error of EVALB and not counted: a parser with bad
    tags would be scored only on sentences with good tags. Wrong tags still count as wrong.
    """
    deleted = rules.delete_labels
    tags = [g if g in deleted else NO_TAG if p in deleted else p for p, g in zip(parse.tags, gold.tags, strict=True)]
    return Tree(parse.words, tuple(tags), parse.brackets)


def _scores(sentences: Sequence[SentenceScore], repairs: Sequence[Repairs], rules: Rules, folder: Path) -> SetScores:
    """Metrics: EVALB's, the same up to the rules' cut-off length, and the repairs, by sentences and by kind."""
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
