"""Bracketing precision and recall by EVALB's rules, sentence by sentence and summed. Imports no torch.

Checked against EVALB's own sample with its expected output, and written from its README: words whose tag is deleted
vanish, and brackets that then hold nothing; function tags are cut off labels at "-" or "="; a bracket matches one of
the same span and label, each at most once, so that repeated unary brackets count as often as both sides have them.
Sums are over brackets, not over sentences.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from experiments.data.corpora.trees.tree import Bracket, Tree, without_words
from experiments.evaluation.score.evalb.rules import COLLINS, Rules

_QUOTES = ("'", '"', "/")


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


def score_sentence(gold: Tree | None, parse: Tree | None, rules: Rules = COLLINS) -> SentenceScore:
    """One parse against its gold tree; None is text that was no tree."""
    length = sum(tag not in rules.delete_labels_for_length for tag in gold.tags) if gold else 0
    if parse is not None and all(tag in rules.delete_labels for tag in parse.tags):
        return SentenceScore(length, Status.SKIPPED)
    if gold is None or parse is None:
        return SentenceScore(length, Status.ERROR)
    ours, theirs = _counted_words(gold, parse, rules)
    equal = len(ours) == len(theirs) and all(map(rules.word_equal, ours.words, theirs.words))
    if not equal:
        return SentenceScore(length, Status.ERROR)
    expected, found = _counted_brackets(ours, rules), _counted_brackets(theirs, rules)
    return SentenceScore(
        length,
        Status.VALID,
        matched=_matches(expected, found, rules),
        gold=len(expected),
        parsed=len(found),
        crossing=_crossing(expected, found),
        words=len(ours),
        correct_tags=sum(map(rules.label_equal, ours.tags, theirs.tags)),
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


def _counted_words(gold: Tree, parse: Tree, rules: Rules) -> tuple[Tree, Tree]:
    """Both trees without deleted words.

    A quote that one side deletes and the other takes for something else (CD, POS) makes the sides unequally long; where
    the rules name such tags, both keep it (the correction of 2006).
    """
    ours, theirs = (without_words(tree, lambda tag: tag in rules.delete_labels) for tree in (gold, parse))
    # traces first: what is left of the sides then stands word by word
    gold, parse = (without_words(tree, lambda tag: tag in rules.delete_labels_for_length) for tree in (gold, parse))
    if len(ours) == len(theirs) or not rules.quote_labels or len(gold) != len(parse):
        return ours, theirs
    deleted = [[tag in rules.delete_labels for tag in tree.tags] for tree in (gold, parse)]
    for place, (one, other) in enumerate(zip(*deleted, strict=True)):
        if one != other and all(_is_quote(tree, place, rules) for tree in (gold, parse)):
            deleted[0][place] = deleted[1][place] = False
    return _without_places(gold, deleted[0]), _without_places(parse, deleted[1])


def _is_quote(tree: Tree, place: int, rules: Rules) -> bool:
    return tree.tags[place] in rules.quote_labels and tree.words[place] in _QUOTES


def _without_places(tree: Tree, gone: Sequence[bool]) -> Tree:
    mark = "\0"  # no tag of a file
    marked = tuple(mark if is_gone else tag for tag, is_gone in zip(tree.tags, gone, strict=True))
    return without_words(Tree(tree.words, marked, tree.brackets), lambda tag: tag == mark)


def _counted_brackets(tree: Tree, rules: Rules) -> list[Bracket]:
    """Without function tags and without brackets of a deleted label."""
    cut = (Bracket(_cut(label), start, end) for label, start, end in tree.brackets)
    return [b for b in cut if not any(rules.label_equal(b.label, deleted) for deleted in rules.delete_labels)]


def _cut(label: str) -> str:
    return label.partition("-")[0].partition("=")[0]


def _matches(expected: Sequence[Bracket], found: Sequence[Bracket], rules: Rules) -> int:
    """Pairs of equal brackets, each in one pair: in the order in which they open, as EVALB looks for them."""
    free: dict[tuple[int, int], list[str]] = defaultdict(list)
    for label, *span in found:
        free[span[0], span[1]].append(label)
    matched = 0
    for label, start, end in expected:
        there = free[start, end]
        partner = next((o for o in there if not rules.labeled or rules.label_equal(label, o)), None)
        if partner is not None:
            there.remove(partner)
            matched += 1
    return matched


def _crossing(expected: Iterable[Bracket], found: Iterable[Bracket]) -> int:
    """Brackets of `found` that overlap one of `expected` without either holding the other."""
    spans = {(start, end) for _, start, end in expected}
    return sum(any(s < start < e < end or start < s < end < e for s, e in spans) for _, start, end in found)
