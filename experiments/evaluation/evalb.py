"""Bracketing precision and recall by EVALB's rules, sentence by sentence and summed. Imports no torch.

Checked against EVALB's own sample with its expected output, and written from its README: words whose tag is deleted
vanish, and brackets that then hold nothing; function tags are cut off labels at "-" or "="; a bracket matches one of
the same span and label, each at most once, so that repeated unary brackets count as often as both sides have them.
Sums are over brackets, not over sentences.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from enum import IntEnum
from pathlib import Path

import numpy as np

from experiments.data.corpora.files import read_lines
from experiments.data.corpora.tree import NO_TAG, Bracket, Repairs, Tree, delinearise, to_text, without_words
from experiments.errors import UserError
from experiments.evaluation.counts import SetScores

# --- EVALB's parameters: which labels and words are left out, which count as equal
# The defaults are COLLINS.prm, with which results on the Wall Street Journal are reported. Other sets are read from
# EVALB's own parameter files. Sekine and Collins 1997; the README that comes with EVALB.


Pairs = tuple[tuple[str, str], ...]

_PUNCTUATION = (",", ":", "``", "''", ".")


@dataclass(frozen=True)
class Rules:
    """The parameters of a scoring by EVALB's rules."""

    labeled: bool = True  # a bracket matches only one of its own label
    delete_labels: tuple[str, ...] = ("TOP", "-NONE-", *_PUNCTUATION)  # a word with its tag; of brackets only the label
    delete_labels_for_length: tuple[str, ...] = ("-NONE-",)  # words that a sentence's length does not count
    quote_labels: tuple[str, ...] = ()  # tags of quotes that may be mistaken for one another
    equal_labels: Pairs = (("ADVP", "PRT"),)
    equal_words: Pairs = ()
    cutoff_length: int = 40  # sentences up to so many words are summed once more on their own

    def label_equal(self, one: str, other: str) -> bool:
        """Whether two labels count as equal."""
        return _equal(one, other, self.equal_labels)

    def word_equal(self, one: str, other: str) -> bool:
        """Whether two words count as equal."""
        return _equal(one, other, self.equal_words)

    def text(self) -> str:
        """One line that names the rules: COLLINS, or what a parameter file says, with ";" for its line ends."""
        if self == COLLINS:
            return "COLLINS"
        lines = [f"LABELED {int(self.labeled)}", f"CUTOFF_LEN {self.cutoff_length}"]
        for keyword, name in _LISTS.items():
            values = getattr(self, name)
            lines += [f"{keyword} {value if isinstance(value, str) else ' '.join(value)}" for value in values]
        return "; ".join(lines)


def _equal(one: str, other: str, pairs: Pairs) -> bool:
    return one == other or (one, other) in pairs or (other, one) in pairs


COLLINS = Rules()
_LISTS = {
    "DELETE_LABEL": "delete_labels",
    "DELETE_LABEL_FOR_LENGTH": "delete_labels_for_length",
    "QUOTE_LABEL": "quote_labels",
    "EQ_LABEL": "equal_labels",
    "EQ_WORD": "equal_words",
}
_NUMBERS = {"LABELED": "labeled", "CUTOFF_LEN": "cutoff_length"}
_IGNORED = ("DEBUG", "MAX_ERROR")  # of the program EVALB, not of its scores


def read_rules(path: Path) -> Rules:
    """An EVALB parameter file. Raises UserError, with the line, for what EVALB would not understand."""
    return _rules(enumerate(read_lines(path), start=1), str(path))


def rules_of_text(text: str) -> Rules:
    """What `Rules.text` wrote."""
    return COLLINS if text == "COLLINS" else _rules(enumerate(text.split("; "), start=1), "the rules")


def _rules(lines: Iterable[tuple[int, str]], where: str) -> Rules:
    listed: dict[str, list[object]] = {name: [] for name in _LISTS.values()}
    numbers: dict[str, int] = {}
    for number, line in lines:
        keyword, *values = line.split() or [""]
        if not keyword or keyword.startswith("#"):
            continue
        wanted = 2 if keyword.startswith("EQ_") else 1
        if keyword not in (*_LISTS, *_NUMBERS, *_IGNORED):
            known = ", ".join([*_LISTS, *_NUMBERS, *_IGNORED])
            raise UserError(f"{where}, line {number}: there is no parameter {keyword}. EVALB knows {known}.")
        if len(values) != wanted:
            raise UserError(
                f"{where}, line {number}: {keyword} takes {wanted} value{'s' * (wanted > 1)}: {line.strip()}"
            )
        if keyword in _LISTS:
            listed[_LISTS[keyword]].append(values[0] if wanted == 1 else (values[0], values[1]))
        elif keyword in _NUMBERS:
            if not values[0].isdecimal():
                raise UserError(f"{where}, line {number}: {keyword} is a whole number, and not {values[0]}.")
            numbers[_NUMBERS[keyword]] = int(values[0])
    lists = {name: tuple(values) for name, values in listed.items()}
    return Rules(
        labeled=bool(numbers.get("labeled", 1)),
        cutoff_length=numbers.get("cutoff_length", 40),
        **lists,  # type: ignore[arg-type]
    )


assert {field.name for field in fields(Rules)} == {*_LISTS.values(), *_NUMBERS.values()}


# --- Scores of sentences


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
    expected, parsed = _counted_brackets(ours, rules), _counted_brackets(theirs, rules)
    return SentenceScore(
        length,
        Status.VALID,
        matched=_matches(expected, parsed, rules),
        gold=len(expected),
        parsed=len(parsed),
        crossing=_crossing(expected, parsed),
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


def _matches(expected: Sequence[Bracket], parsed: Sequence[Bracket], rules: Rules) -> int:
    """Pairs of equal brackets, each in one pair: in the order in which they open, as EVALB looks for them."""
    free: dict[tuple[int, int], list[str]] = defaultdict(list)
    for label, *span in parsed:
        free[span[0], span[1]].append(label)
    matched = 0
    for label, start, end in expected:
        there = free[start, end]
        partner = next((o for o in there if not rules.labeled or rules.label_equal(label, o)), None)
        if partner is not None:
            there.remove(partner)
            matched += 1
    return matched


def _crossing(expected: Iterable[Bracket], parsed: Iterable[Bracket]) -> int:
    """Brackets of `parsed` that overlap one of `expected` without either holding the other."""
    spans = {(start, end) for _, start, end in expected}
    return sum(any(s < start < e < end or start < s < end < e for s, e in spans) for _, start, end in parsed)


# --- The report that EVALB prints


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


# --- Score lines of symbols as trees


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
    return _scores(sentences, [repairs for _, repairs in made], rules)


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


def _scores(sentences: Sequence[SentenceScore], repairs: Sequence[Repairs], rules: Rules) -> SetScores:
    """Metrics: EVALB's, the same up to the rules' cut-off length, and the repairs, by sentences and by kind."""
    all_, short = summarise(sentences), summarise(sentences, rules.cutoff_length)
    metrics = all_.metrics() | {f"f1_up_to_{rules.cutoff_length}": short.f1}
    metrics |= {"evalb_errors": float(all_.errors), "evalb_skipped": float(all_.skipped)}
    malformed = sum(map(bool, repairs))
    metrics |= {"malformed": 100 * malformed / len(repairs), "malformed_sentences": float(malformed)}
    for kind in asdict(Repairs()):
        metrics[f"repaired_{kind}"] = float(sum(getattr(each, kind) for each in repairs))
    statistics = np.array([[s.matched, s.gold, s.parsed] for s in sentences], dtype=np.int64)
    signature = f"EVALB|labeled F1|rules: {rules.text()}|punctuation: gold's"
    return SetScores(metrics, {"f1": signature}, statistics)
