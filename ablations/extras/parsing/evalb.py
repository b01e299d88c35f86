"""Bracketing precision and recall by EVALB's rules, sentence by sentence and summed. Imports no torch.

Checked against EVALB's own sample with its expected output, and written from its README: words whose tag is deleted
vanish, and brackets that then hold nothing; function tags are cut off labels at "-" or "="; a bracket matches one of
the same span and label, each at most once, so that repeated unary brackets count as often as both sides have them.
Sums are over brackets, not over sentences.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from ablations.extras.parsing.tree import Bracket, Tree, without_words

# The rules are those of COLLINS.prm, with which results on the Wall Street Journal are reported (Sekine and Collins
# 1997): which labels and words are left out, and which count as equal.
SIGNATURE = "EVALB|labeled F1|rules: COLLINS|punctuation: gold's"
DELETED = frozenset({"TOP", "-NONE-", ",", ":", "``", "''", "."})  # a word with its tag; of brackets only the label
TRACES = "-NONE-"  # words that a sentence's length does not count
CUTOFF_LENGTH = 40  # sentences up to so many words are summed once more on their own


def _equal(label: str) -> str:
    """Return the label that represents all labels that count as equal."""
    return "ADVP" if label == "PRT" else label


class Status(IntEnum):
    """Status of a sentence in EVALB's output: it tells whether the sentence counts in the sums."""

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
        """Return whether all brackets of both sides match."""
        return self.status == Status.VALID and self.matched == self.gold == self.parsed


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


def score_sentence(gold: Tree | None, parse: Tree | None) -> SentenceScore:
    """Score one parse against its gold tree; None is text that was no tree."""
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


def summarise(scores: Iterable[SentenceScore], longest: int | None = None) -> dict[str, float]:
    """Return EVALB's summary by metric name, over all sentences or those of at most `longest` words.

    Percent, except average_crossing (brackets per sentence), evalb_errors and evalb_skipped (sentences).
    """
    taken = [score for score in scores if longest is None or score.length <= longest]
    valid = [score for score in taken if score.status == Status.VALID]

    def total(name: str) -> int:
        return sum(getattr(score, name) for score in valid)

    matched, gold, parsed = map(total, ("matched", "gold", "parsed"))
    return {
        "f1": _percent(2 * matched, gold + parsed),
        "precision": _percent(matched, parsed),
        "recall": _percent(matched, gold),
        "complete_match": _percent(total("complete"), len(valid)),
        "average_crossing": total("crossing") / len(valid) if valid else 0.0,
        "no_crossing": _percent(sum(score.crossing == 0 for score in valid), len(valid)),
        "two_or_less_crossing": _percent(sum(score.crossing <= 2 for score in valid), len(valid)),
        "tagging_accuracy": _percent(total("correct_tags"), total("words")),
        "evalb_errors": float(sum(score.status == Status.ERROR for score in taken)),
        "evalb_skipped": float(sum(score.status == Status.SKIPPED for score in taken)),
    }


def _counted_brackets(tree: Tree) -> list[Bracket]:
    """Return the brackets that count: labels without function tags, equal labels as one, deleted labels left out."""
    cut = (Bracket(_equal(label.partition("-")[0].partition("=")[0]), *span) for label, *span in tree.brackets)
    return [bracket for bracket in cut if bracket.label not in DELETED]


def _crossing(expected: Iterable[Bracket], parsed: Iterable[Bracket]) -> int:
    """Count brackets of `parsed` that overlap one of `expected` while neither contains the other."""
    spans = {(start, end) for _, start, end in expected}
    return sum(any(s < start < e < end or start < s < end < e for s, e in spans) for _, start, end in parsed)
