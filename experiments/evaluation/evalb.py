"""Bracketing precision and recall by EVALB's rules, sentence by sentence and summed. Imports no torch.

Checked against EVALB's own sample with its expected output, and written from its README: words whose tag is deleted
vanish, and brackets that then hold nothing; function tags are cut off labels at "-" or "="; a bracket matches one of
the same span and label, each at most once, so that repeated unary brackets count as often as both sides have them.
Sums are over brackets, not over sentences.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np

from experiments.data.corpora.tree import NO_TAG, Bracket, Repairs, Tree, delinearise, to_text, without_words
from experiments.evaluation.counts import SetScores

# --- EVALB's rules: which labels and words are left out, which count as equal
# Those of COLLINS.prm, with which results on the Wall Street Journal are reported. Sekine and Collins 1997.


SIGNATURE = "EVALB|labeled F1|rules: COLLINS|punctuation: gold's"
DELETED = frozenset({"TOP", "-NONE-", ",", ":", "``", "''", "."})  # a word with its tag; of brackets only the label
TRACES = "-NONE-"  # words that a sentence's length does not count
CUTOFF_LENGTH = 40  # sentences up to so many words are summed once more on their own


def _equal(label: str) -> str:
    """The label that stands for all that count as equal to it."""
    return "ADVP" if label == "PRT" else label


# --- Scores of sentences


class Status(IntEnum):
    VALID = 0
    ERROR = 1  # the sides have other words, or the text is no tree: in no sum
    SKIPPED = 2  # the parse has no words that count: in no sum


@dataclass(frozen=True)
class SentenceScore:
    """One line of EVALB's output. Counts are 0 where the status is not VALID."""

    length: int  # of the gold sentence, without what is deleted for length
    status: Status
    matched: int = 0
    gold: int = 0  # brackets
    parsed: int = 0
    crossing: int = 0  # brackets of the parse that cross one of gold
    words: int = 0  # with a tag that is not deleted
    correct_tags: int = 0

    @property
    def complete(self) -> bool:
        """Whether all brackets of both sides match."""
        return self.status == Status.VALID and self.matched == self.gold == self.parsed


@dataclass(frozen=True)
class Summary:
    """EVALB's summary; rates from 0 to 100."""

    sentences: int
    errors: int
    skipped: int
    valid: int
    matched: int
    gold: int
    parsed: int
    crossing: int
    words: int
    correct_tags: int
    complete: int
    without_crossing: int
    at_most_two_crossing: int

    @property
    def recall(self) -> float:
        return _percent(self.matched, self.gold)

    @property
    def precision(self) -> float:
        """Matched of the parser's brackets, in percent."""
        return _percent(self.matched, self.parsed)

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return _percent(2 * self.matched, self.gold + self.parsed)

    def metrics(self) -> dict[str, float]:
        """EVALB's summary by metric name; percent, except average_crossing (brackets per sentence)."""
        return {
            "f1": self.f1,
            "precision": self.precision,
            "recall": self.recall,
            "complete_match": _percent(self.complete, self.valid),
            "average_crossing": self.crossing / self.valid if self.valid else 0.0,
            "no_crossing": _percent(self.without_crossing, self.valid),
            "two_or_less_crossing": _percent(self.at_most_two_crossing, self.valid),
            "tagging_accuracy": _percent(self.correct_tags, self.words),
        }


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


def score_sentence(gold: Tree | None, parse: Tree | None) -> SentenceScore:
    """One parse against its gold tree; None is text that was no tree."""
    length = sum(tag != TRACES for tag in gold.tags) if gold else 0
    if parse is not None and DELETED.issuperset(parse.tags):
        return SentenceScore(length, Status.SKIPPED)
    if gold is None or parse is None:
        return SentenceScore(length, Status.ERROR)
    ours, theirs = (without_words(tree, DELETED.__contains__) for tree in (gold, parse))
    if ours.words != theirs.words:
        return SentenceScore(length, Status.ERROR)
    expected, parsed = _counted_brackets(ours), _counted_brackets(theirs)
    return SentenceScore(
        length,
        Status.VALID,
        matched=(Counter(expected) & Counter(parsed)).total(),
        gold=len(expected),
        parsed=len(parsed),
        crossing=_crossing(expected, parsed),
        words=len(ours),
        correct_tags=sum(_equal(tag) == _equal(other) for tag, other in zip(ours.tags, theirs.tags, strict=True)),
    )


def summarise(scores: Iterable[SentenceScore], longest: int | None = None) -> Summary:
    """Sums over sentences, or over those of at most `longest` words."""
    taken = [score for score in scores if longest is None or score.length <= longest]
    status = Counter(score.status for score in taken)
    valid = [score for score in taken if score.status == Status.VALID]
    return Summary(
        sentences=len(taken),
        errors=status[Status.ERROR],
        skipped=status[Status.SKIPPED],
        valid=len(valid),
        matched=sum(score.matched for score in valid),
        gold=sum(score.gold for score in valid),
        parsed=sum(score.parsed for score in valid),
        crossing=sum(score.crossing for score in valid),
        words=sum(score.words for score in valid),
        correct_tags=sum(score.correct_tags for score in valid),
        complete=sum(score.complete for score in valid),
        without_crossing=sum(score.crossing == 0 for score in valid),
        at_most_two_crossing=sum(score.crossing <= 2 for score in valid),
    )


def _counted_brackets(tree: Tree) -> list[Bracket]:
    """Without function tags and without brackets of a deleted label; equal labels as one."""
    cut = (Bracket(_equal(label.partition("-")[0].partition("=")[0]), *span) for label, *span in tree.brackets)
    return [bracket for bracket in cut if bracket.label not in DELETED]


def _crossing(expected: Iterable[Bracket], parsed: Iterable[Bracket]) -> int:
    """Brackets of `parsed` that overlap one of `expected` without either holding the other."""
    spans = {(start, end) for _, start, end in expected}
    return sum(any(s < start < e < end or start < s < end < e for s, e in spans) for _, start, end in parsed)


# --- Score lines of symbols as trees


def score_parses(
    sources: Sequence[str], outputs: Sequence[str], references: Sequence[str], labels: Sequence[str], folder: Path
) -> SetScores:
    """Repair and score the outputs; write parses.mrg and gold.mrg, one tree per line, which EVALB reads too.

    labels: all pieces of the target's vocabulary.
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
    """Parted by ASCII spaces alone: a label may hold another one."""
    return [symbol for symbol in line.split(" ") if symbol]


def _write(path: Path, trees: Sequence[Tree]) -> None:
    path.write_text("".join(f"{to_text(tree)}\n" for tree in trees), encoding="utf-8")


def with_golds_punctuation(parse: Tree, gold: Tree) -> Tree:
    """The parse, where gold's tags decide which words the rules delete.

    A sentence in which the parser confuses comma and noun would be an error of EVALB and not counted: a parser with bad
    tags would be scored only on sentences with good tags. Wrong tags still count as wrong.
    """
    tags = [g if g in DELETED else NO_TAG if p in DELETED else p for p, g in zip(parse.tags, gold.tags, strict=True)]
    return Tree(parse.words, tuple(tags), parse.brackets)


def _scores(sentences: Sequence[SentenceScore], repairs: Sequence[Repairs]) -> SetScores:
    """Metrics: EVALB's, the same up to 40 words, and the repairs, by sentences and by kind."""
    all_, short = summarise(sentences), summarise(sentences, CUTOFF_LENGTH)
    metrics = all_.metrics() | {f"f1_up_to_{CUTOFF_LENGTH}": short.f1}
    metrics |= {"evalb_errors": float(all_.errors), "evalb_skipped": float(all_.skipped)}
    malformed = sum(map(bool, repairs))
    metrics |= {"malformed": 100 * malformed / len(repairs), "malformed_sentences": float(malformed)}
    for kind in asdict(Repairs()):
        metrics[f"repaired_{kind}"] = float(sum(getattr(each, kind) for each in repairs))
    statistics = np.array([[s.matched, s.gold, s.parsed] for s in sentences], dtype=np.int64)
    return SetScores(metrics, {"f1": SIGNATURE}, statistics)
