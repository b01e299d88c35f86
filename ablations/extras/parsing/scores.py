"""Score the outputs of the parsing task: repair them, score them by EVALB's rules, write files. Imports no torch."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ablations.extras.parsing.evalb import CUTOFF_LENGTH, DELETED, SIGNATURE, SentenceScore, score_sentence, summarise
from ablations.extras.parsing.linear import NO_TAG, Repairs, delinearise
from ablations.extras.parsing.tree import Tree, to_text
from experiments.evaluation.scoring import SetScores

BRACKET_COUNTS = ("matched", "gold", "parsed")


def f1(sums: NDArray[Any]) -> NDArray[np.float64]:
    """Return F1, 0 to 100, of shape (…). F1 is 0 if there are no brackets.

    sums: the sums of BRACKET_COUNTS, of shape (…, 3).
    """
    matched, gold, parsed = np.moveaxis(sums.astype(np.float64), -1, 0)
    score: NDArray[np.float64] = 200 * matched / np.maximum(gold + parsed, 1.0)
    return score


def score_parses(
    sources: Sequence[str], outputs: Sequence[str], references: Sequence[str], labels: Sequence[str], folder: Path
) -> SetScores:
    """Repair and score the outputs. Write parses.mrg and gold.mrg with one tree per line, as EVALB reads them.

    labels: all pieces of the target vocabulary.
    """
    brackets = [label[1:] for label in labels if label.startswith("/") and len(label) > 1]
    words = [source.split(" ") if source else [] for source in sources]
    gold = [delinearise(w, _symbols(r))[0] for w, r in zip(words, references, strict=True)]
    made = [delinearise(w, _symbols(o), brackets) for w, o in zip(words, outputs, strict=True)]
    parses = [with_golds_punctuation(tree, g) for (tree, _), g in zip(made, gold, strict=True)]
    sentences = [score_sentence(g, p) for g, p in zip(gold, parses, strict=True)]
    _write(folder / "gold.mrg", gold)
    _write(folder / "parses.mrg", parses)
    return _scores(sentences, [repairs for _, repairs in made])


def _symbols(line: str) -> list[str]:
    """Split a line into symbols at ASCII spaces only, because a label may contain another kind of space."""
    return [symbol for symbol in line.split(" ") if symbol]


def _write(path: Path, trees: Sequence[Tree]) -> None:
    path.write_text("".join(f"{to_text(tree)}\n" for tree in trees), encoding="utf-8")


def with_golds_punctuation(parse: Tree, gold: Tree) -> Tree:
    """Return the parse with changed tags, so that the rules delete the same words from the parse and the gold tree.

    Words that the gold tags delete get the gold tag; other words with a deleted tag get XX. Without this, EVALB would
    count a sentence as an error if the parser tags a noun as a comma, and a parser with bad tags would be scored only
    on sentences with good tags. A wrong tag of a counted word is still an error of tagging.
    """
    tags = [g if g in DELETED else NO_TAG if p in DELETED else p for p, g in zip(parse.tags, gold.tags, strict=True)]
    return Tree(parse.words, tuple(tags), parse.brackets)


def _scores(sentences: Sequence[SentenceScore], repairs: Sequence[Repairs]) -> SetScores:
    """Return EVALB's metrics, F1 on sentences of up to 40 words, and the numbers of repairs by kind."""
    metrics = summarise(sentences) | {f"f1_up_to_{CUTOFF_LENGTH}": summarise(sentences, CUTOFF_LENGTH)["f1"]}
    malformed = sum(map(bool, repairs))
    metrics |= {"malformed": 100 * malformed / len(repairs), "malformed_sentences": float(malformed)}
    for kind in asdict(Repairs()):
        metrics[f"repaired_{kind}"] = float(sum(getattr(each, kind) for each in repairs))
    statistics = np.array([[s.matched, s.gold, s.parsed] for s in sentences], dtype=np.int64)
    return SetScores(metrics, {"f1": SIGNATURE}, statistics)
