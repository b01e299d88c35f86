"""Two files with a tree a line, scored as EVALB scores them, and its report of them. Imports no torch."""

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from experiments.data.corpora.files import read_lines
from experiments.data.corpora.trees.tree import Tree
from experiments.data.corpora.trees.treebank import BadTree, parse_line
from experiments.errors import UserError
from experiments.evaluation.score.evalb.rules import COLLINS, Rules
from experiments.evaluation.score.evalb.score import SentenceScore, Summary, score_sentence, summarise

_TAGGED = re.compile(r"\(([^\s()]*)\s+([^\s()]*)\s*\)")  # (TAG word); EVALB takes the word of "(NP )" to be ""
_LOOSE = re.compile(r"(?:^|[\s)])[^\s()]")  # text that follows no opening bracket


def score_files(gold: Path, parses: Path, rules: Rules = COLLINS) -> list[SentenceScore]:
    """Line by line. A line that is no tree is an error of its sentence; unequal numbers of lines are the user's."""
    scores = []
    for number, (ours, theirs) in enumerate(zip_longest(read_lines(gold), read_lines(parses)), start=1):
        if ours is None or theirs is None:
            short = gold if ours is None else parses
            raise UserError(f"{short} ends at line {number - 1}, and its other side goes on: line n parses line n.")
        scores.append(score_sentence(_tree(ours), _parse(theirs, rules), rules))
    return scores


def _parse(line: str, rules: Rules) -> Tree | None:
    """A parser's line as evalb.c reads it: one without counted words is skipped, whether or not its brackets close."""
    counted = [word for tag, word in _TAGGED.findall(line) if tag not in rules.delete_labels]
    if not counted and not _LOOSE.search(_TAGGED.sub("", line)):
        return Tree((), (), ())
    return None if "" in counted else _tree(line)


def _tree(line: str) -> Tree | None:
    try:
        return parse_line(line)
    except BadTree:
        return None


_HEAD = """\
  Sent.                        Matched  Bracket   Cross        Correct Tag
 ID  Len.  Stat. Recal  Prec.  Bracket gold test Bracket Words  Tags Accracy
============================================================================
"""


def report(scores: Sequence[SentenceScore], rules: Rules = COLLINS) -> str:
    """The text that EVALB (of 2006 and later, which prints the F measure too) prints, its spelling included."""
    longest = rules.cutoff_length
    lines = [_HEAD, *_sentences(scores), f"{'=' * 76}\n", _sums(summarise(scores)), "=== Summary ===\n"]
    lines += ["\n-- All --\n", *_summary(summarise(scores))]
    lines += [f"\n-- len<={longest} --\n", *_summary(summarise(scores, longest))]
    return "".join(lines)


def _sentences(scores: Sequence[SentenceScore]) -> Iterator[str]:
    for number, s in enumerate(scores, start=1):
        yield (
            f"{number:4d}  {s.length:3d}    {s.status:d}  {_rate(s.matched, s.gold)} {_rate(s.matched, s.parsed)}"
            f"   {s.matched:3d}    {s.gold:3d}  {s.parsed:3d}    {s.crossing:3d}"
            f"   {s.words:4d}  {s.correct_tags:4d}   {_rate(s.correct_tags, s.words)}\n"
        )


def _rate(part: int, whole: int) -> str:
    return f"{100 * part / whole if whole else 0:6.2f}"


def _sums(s: Summary) -> str:
    brackets = f"{'':16}{s.recall:6.2f} {s.precision:6.2f} {s.matched:6d} {s.gold:5d} {s.parsed:5d}  {s.crossing:5d}"
    tags = f"  {s.words:5d} {s.correct_tags:5d}   {_rate(s.correct_tags, s.words)}\n"
    return (brackets if s.gold and s.parsed else "") + tags


def _summary(s: Summary) -> Iterator[str]:
    counts = {
        "sentence": s.sentences,
        "Error sentence": s.errors,
        "Skip  sentence": s.skipped,
        "Valid sentence": s.valid,
    }
    yield from (f"{f'Number of {name}':<25} = {count:6d}\n" for name, count in counts.items())
    m = s.metrics()
    rates = {
        "Bracketing Recall": s.recall,
        "Bracketing Precision": s.precision,
        "Bracketing FMeasure": s.f1,
        "Complete match": m["complete_match"],
        "Average crossing": m["average_crossing"],
        "No crossing": m["no_crossing"],
        "2 or less crossing": m["two_or_less_crossing"],
        "Tagging accuracy": m["tagging_accuracy"],
    }
    yield from (f"{name:<25} = {rate:6.2f}\n" for name, rate in rates.items())
