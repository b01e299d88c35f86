"""A constituency tree, flat: words, tags, and labelled spans in the order in which they open. Imports no torch.

(S (NP (DT the) (NN dog)) (VP (VBD slept)))  is  words the dog slept, tags DT NN VBD, brackets S 0–3, NP 0–2, VP 2–3.

Flat, because that is what is scored and what is written, and because no depth of nesting can exhaust a stack. A tree
is read from and written to a line of symbols, and the format of the Penn Treebank.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from experiments.data.corpora.files import read_lines
from experiments.errors import UserError

ROOTS = ("", "TOP", "ROOT", "S1", "VROOT")  # labels that treebanks give to what holds a whole tree
EMPTY_TAG = "-NONE-"  # of traces and other words that are not there


class Bracket(NamedTuple):
    """A labelled span of words."""

    label: str
    start: int  # of its first word
    end: int  # behind its last word


@dataclass(frozen=True)
class Tree:
    """One tree, or several side by side: nothing says that one bracket holds all words."""

    words: tuple[str, ...]
    tags: tuple[str, ...]  # one per word
    brackets: tuple[Bracket, ...]  # as they open: outer before inner, left before right; none is empty

    def __len__(self) -> int:
        return len(self.words)


def base_label(label: str) -> str:
    """Without function tags and indices: NP-SBJ-1 and NP=2 are NP. One that starts with such a sign stays: -LRB-."""
    return label if label.startswith(("-", "=")) else label.partition("-")[0].partition("=")[0]


def cleaned(tree: Tree) -> Tree:
    """What is learnt and scored: no root, no empty words (nor brackets that hold only such), no function tags."""
    kept = without_words(tree, lambda tag: tag == EMPTY_TAG)
    brackets = [Bracket(base_label(label), start, end) for label, start, end in kept.brackets]
    while brackets and brackets[0].label in ROOTS and brackets[0][1:] == (0, len(kept)):
        brackets.pop(0)
    return Tree(kept.words, kept.tags, tuple(brackets))


def without_words(tree: Tree, gone: Callable[[str], bool]) -> Tree:
    """The tree without the words whose tag is `gone`, and without brackets that then hold nothing."""
    stays = [not gone(tag) for tag in tree.tags]
    if all(stays):
        return tree
    place = [0, *accumulate(stays)]
    spans = (Bracket(label, place[start], place[end]) for label, start, end in tree.brackets)
    words = tuple(word for word, stay in zip(tree.words, stays, strict=True) if stay)
    tags = tuple(tag for tag, stay in zip(tree.tags, stays, strict=True) if stay)
    return Tree(words, tags, tuple(span for span in spans if span.start < span.end))


class Step(NamedTuple):
    """What stands between two words: brackets that open before word `word`, and those that close after it."""

    word: int
    opening: list[str]
    closing: list[str]  # innermost first


def steps(tree: Tree) -> Iterator[Step]:
    """The tree from left to right, a step per word."""
    opened: list[Bracket] = []
    waiting = iter([*tree.brackets, Bracket("", len(tree), len(tree))])
    following = next(waiting)
    for word in range(len(tree)):
        opening, closing = [], []
        while following.start == word:
            opening.append(following.label)
            opened.append(following)
            following = next(waiting)
        while opened and opened[-1].end == word + 1:
            closing.append(opened.pop().label)
        yield Step(word, opening, closing)


def to_text(tree: Tree, root: str = "TOP") -> str:
    """One line of brackets, as treebanks are written; a root holds all of it ("": none)."""
    parts = []
    for word, opening, closing in steps(tree):
        opens = "".join(f"({label} " for label in opening)
        parts.append(f"{opens}({tree.tags[word]} {tree.words[word]}){')' * len(closing)}")
    text = " ".join(parts)
    return f"({root} {text})" if root else text


# --- A tree as a line of symbols and back: S NP DT NN /NP VP VBD /VP . /S
# Labels open brackets; "/" and the label close them. Tags stand for the words, which are put back from left to right.
# See section 6.3 and Vinyals et al. 2015 (who also close with the label). A tag that is also a label of the same tree,
# or that looks like a closing, is written with "_" behind it, so that every tree can be read back.


UNKNOWN = "⁇"  # the tokenizer's sign for a symbol that is not in the training set
NO_TAG = "XX"  # tag of a word for which the output has none


@dataclass
class Repairs:
    """Repairs that turned an output into a tree."""

    unclosed: int = 0  # brackets that the output leaves open, or closes only by closing an outer one: closed there
    unopened: int = 0  # closings of what is not open: left out
    empty: int = 0  # brackets without a word: left out
    missing_tags: int = 0  # words beyond the output's tags: tagged XX, in the innermost bracket open, or the last one
    extra_tags: int = 0  # tags beyond the words: left out
    unknown: int = 0  # symbols that training did not hold: left out

    def __bool__(self) -> bool:
        return any(getattr(self, each.name) for each in fields(self))


def linearise(tree: Tree) -> list[str]:
    """The symbols of a tree. Raises ValueError for a label that cannot be written unambiguously."""
    labels = {bracket.label for bracket in tree.brackets}
    for label in labels:
        if not label or label.startswith("/") or label.endswith("_"):
            raise ValueError(
                f'the label "{label}" cannot be written as a symbol: it is empty, or starts with / or ends with _'
            )
    symbols = []
    for word, opening, closing in steps(tree):
        tag = tree.tags[word]
        ambiguous = tag in labels or tag.startswith("/") or tag.endswith("_")
        symbols += [*opening, f"{tag}_" if ambiguous else tag, *(f"/{label}" for label in closing)]
    return symbols


def delinearise(words: Sequence[str], symbols: Sequence[str], labels: Collection[str] = ()) -> tuple[Tree, Repairs]:
    """The tree over `words` for any line of symbols, and the repairs that were necessary.

    A symbol opens a bracket if it is closed anywhere in the line or is one of `labels`; otherwise it is a tag.
    """
    opens = {s[1:] for s in symbols if _closes(s)} | set(labels)
    tree = _Growing(words)
    for symbol in symbols:
        if _closes(symbol):
            tree.close(symbol[1:])
        elif symbol in opens:
            tree.open(symbol)
        elif symbol == UNKNOWN:
            tree.repairs.unknown += 1
        else:
            tree.tag(symbol.removesuffix("_") or symbol)
    return tree.finish(), tree.repairs


def _closes(symbol: str) -> bool:
    return symbol.startswith("/") and len(symbol) > 1 and not symbol.endswith("_")


class _Growing:
    """A tree under construction: `_open` are indices into `_brackets`, innermost last."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        self._tags: list[str] = []
        self._brackets: list[Bracket] = []
        self._open: list[int] = []
        self.repairs = Repairs()

    def open(self, label: str) -> None:
        self._open.append(len(self._brackets))
        self._brackets.append(Bracket(label, len(self._tags), -1))

    def tag(self, tag: str) -> None:
        if len(self._tags) < len(self._words):
            self._tags.append(tag)
        else:
            self.repairs.extra_tags += 1

    def close(self, label: str) -> None:
        if not any(self._brackets[place].label == label for place in self._open):
            self.repairs.unopened += 1
            return
        while self._brackets[self._open[-1]].label != label:
            self.repairs.unclosed += 1
            self._close_innermost()
        self._close_innermost()

    def _close_innermost(self) -> None:
        place = self._open.pop()
        self._brackets[place] = self._brackets[place]._replace(end=len(self._tags))

    def finish(self) -> Tree:
        missing = len(self._words) - len(self._tags)
        if missing:
            self.repairs.missing_tags = missing
            self._take_rest_into_last()
            self._tags += [NO_TAG] * missing
        self.repairs.unclosed += len(self._open)
        while self._open:
            self._close_innermost()
        held = tuple(bracket for bracket in self._brackets if bracket.start < bracket.end)
        self.repairs.empty = len(self._brackets) - len(held)
        return Tree(tuple(self._words), tuple(self._tags), held)

    def _take_rest_into_last(self) -> None:
        """If no bracket is open any more, put the remaining words into the last outermost bracket."""
        if self._open or not self._tags:
            return
        last, end = None, 0
        for place, bracket in enumerate(self._brackets):
            if bracket.start >= end and bracket.end > bracket.start:
                last, end = place, bracket.end
        if last is not None and end == len(self._tags):
            self._brackets[last] = self._brackets[last]._replace(end=len(self._words))


# --- Trees in Penn Treebank format: any number to a file, on one line or many
#     (TAG word)  (LABEL child child …)  ( (S …) )      brackets of the text itself are written -LRB- -RRB-
# Between trees, a line that starts with # ; % or * is a comment. Only ASCII spaces separate: a word may hold a no-break
# space.


_TOKENS = re.compile(r"[()]|[^ \t\r\n\f\v()]+")
_COMMENT = ("#", ";", "%", "*")


class BadTree(ValueError):  # noqa: N818 - it is the text that is bad
    """Text that is not a tree: the reason, and its line (from 1)."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line


@dataclass
class _Open:
    """A bracket that is not closed yet."""

    line: int
    start: int  # words before it
    place: int  # among the tree's brackets
    texts: list[str] = field(default_factory=list)  # its label, and the word of a tag
    children: int = 0


def read_trees(path: Path, sha256: str = "") -> Iterator[Tree]:
    """The trees of a file (.gz too), one at a time.

    Raises UserError with file and line for text that is not a tree, and for content with another hash than `sha256`.
    """
    try:
        yield from parse(read_lines(path, sha256))
    except BadTree as bad:
        raise UserError(f"{path}, line {bad.line}: {bad}") from None


def parse(lines: Iterable[str], *, allow_empty: bool = False) -> Iterator[Tree]:
    """The trees in some lines. Raises BadTree, also for an empty bracket unless `allow_empty`."""
    opened: list[_Open] = []
    words, tags, brackets = list[str](), list[str](), list[Bracket | None]()  # None: not closed yet
    number = at_margin = 0  # the first line that opens a bracket at its margin inside a tree: perhaps the next tree
    for number, line in enumerate(lines, start=1):
        if not opened and line.startswith(_COMMENT):
            continue
        if opened and line.startswith("("):
            at_margin = at_margin or number
        for match in _TOKENS.finditer(line):
            token, top = match[0], opened[-1] if opened else None
            if token == "(":
                if top:
                    top.children += 1
                    if len(top.texts) == 2:
                        raise BadTree(number, f'a bracket opens beside the word "{top.texts[1]}". {_FORM}')
                opened.append(_Open(number, len(words), len(brackets)))
                brackets.append(None)
            elif not top:
                what = "a closing bracket too many." if token == ")" else f'"{token}" stands outside of any bracket. '
                raise BadTree(number, what if token == ")" else what + _FORM)
            elif token != ")":
                if top.children or len(top.texts) == 2:
                    raise BadTree(number, f'"{token}" has no tag of its own. {_FORM}')
                top.texts.append(token)
            else:
                opened.pop()
                if len(top.texts) == 2:
                    brackets.pop()  # it was a tag
                    tags.append(top.texts[0])
                    words.append(top.texts[1])
                elif top.start == len(words) and allow_empty:
                    brackets.pop()  # what it held is popped already
                elif not top.children:
                    raise BadTree(number, f'the bracket "({"".join(top.texts)})" holds nothing. {_FORM}')
                else:
                    brackets[top.place] = Bracket("".join(top.texts), top.start, len(words))
                if not opened:
                    yield Tree(tuple(words), tuple(tags), tuple(bracket for bracket in brackets if bracket))
                    words, tags, brackets, at_margin = [], [], [], 0
    if opened:
        near = f" Line {at_margin} may begin the next tree." if at_margin else ""
        missing = f"{len(opened)} closing bracket{'s are' if len(opened) > 1 else ' is'} missing up to line {number}"
        raise BadTree(opened[0].line, f"the tree that begins here is never closed: {missing}.{near}")


def parse_line(line: str) -> Tree:
    """Everything in one line, side by side, as one Tree: EVALB's files have one tree per line. Raises BadTree.

    Empty brackets are left out, as EVALB does.
    """
    words: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    brackets: tuple[Bracket, ...] = ()
    for tree in parse([line], allow_empty=True):
        brackets += tuple(Bracket(label, start + len(words), end + len(words)) for label, start, end in tree.brackets)
        words, tags = words + tree.words, tags + tree.tags
    return Tree(words, tags, brackets)


_FORM = "A tree is (LABEL child child …), and each word (TAG word)."
