"""Bracketing precision and recall by EVALB's rules, per sentence and in total. Imports no torch.

The implementation follows EVALB's README. A test compares the results with the expected output of EVALB's sample. These
are the rules. Words whose tag is in DELETED (punctuation, traces) are removed. Brackets that become empty are removed
too. Labels are cut at "-" or "=" (function tags). A bracket that occurs m times in one tree and n times in the other,
with the same span and label, counts as min(m, n) matches. The totals are sums over brackets, not means over sentences.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from ablations.extras.parsing.tree import Bracket, Tree, without_words

# Results on the Wall Street Journal are reported with the rules of COLLINS.prm (Sekine and Collins 1997). They define
# which labels and words are deleted, and which labels count as equal.
SIGNATURE = "EVALB|labeled F1|rules: COLLINS|punctuation: gold's"
# Tags of deleted words, and labels of deleted brackets. The words inside a deleted bracket stay.
DELETED = frozenset({"TOP", "-NONE-", ",", ":", "``", "''", "."})
TRACES = "-NONE-"  # tag of words that do not count in the length of a sentence
CUTOFF_LENGTH = 40  # f1_up_to_40 is computed over sentences of at most 40 words


def _equal(label: str) -> str:
    """Map labels that count as equal to one label."""
    return "ADVP" if label == "PRT" else label


class Status(IntEnum):
    """Status of a sentence in EVALB's output. Only VALID sentences count in the totals."""

    VALID = 0
    ERROR = 1  # gold tree and parse have different words, or a text is not a tree
    SKIPPED = 2  # all words of the parse are deleted


@dataclass(frozen=True)
class SentenceScore:
    """One line of EVALB's output. Counts are 0 unless the status is VALID."""

    length: int  # words of the gold sentence without traces
    status: Status
    matched: int = 0
    gold: int = 0  # brackets of the gold tree
    parsed: int = 0  # brackets of the parse
    crossing: int = 0  # brackets of the parse that cross a gold bracket
    words: int = 0  # words whose gold tag is not deleted
    correct_tags: int = 0

    @property
    def complete(self) -> bool:
        """True if all brackets of both trees match."""
        return self.status == Status.VALID and self.matched == self.gold == self.parsed


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


def score_sentence(gold: Tree | None, parse: Tree | None) -> SentenceScore:
    """Score one parse against its gold tree. None stands for a text that is not a tree."""
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
    """Return EVALB's summary, a value per metric name, over all sentences or those of at most `longest` words.

    All values are percentages except average_crossing (brackets per sentence), evalb_errors and evalb_skipped (numbers
    of sentences).
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
    """Return the brackets with normalised labels (no function tags, equal labels mapped to one) and no deleted ones."""
    cut = (Bracket(_equal(label.partition("-")[0].partition("=")[0]), *span) for label, *span in tree.brackets)
    return [bracket for bracket in cut if bracket.label not in DELETED]


def _crossing(expected: Iterable[Bracket], parsed: Iterable[Bracket]) -> int:
    """Return the number of brackets in `parsed` that partly overlap a bracket in `expected`."""
    spans = {(start, end) for _, start, end in expected}
    return sum(any(s < start < e < end or start < s < end < e for s, e in spans) for _, start, end in parsed)
