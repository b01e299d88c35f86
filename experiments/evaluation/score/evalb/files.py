"""The report that EVALB prints of scored sentences. Imports no torch."""

from collections.abc import Iterator, Sequence

from experiments.evaluation.score.evalb.rules import COLLINS, Rules
from experiments.evaluation.score.evalb.score import SentenceScore, Summary, summarise

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
