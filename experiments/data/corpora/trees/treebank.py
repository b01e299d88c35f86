"""Trees in Penn Treebank format: any number to a file, on one line or many. Imports no torch.

    (TAG word)  (LABEL child child …)  ( (S …) )      brackets of the text itself are written -LRB- -RRB-

Between trees, a line that starts with # ; % or * is a comment. Only ASCII spaces separate: a word may hold a no-break
space.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from experiments.data.corpora.files import read_lines
from experiments.data.corpora.trees.tree import Bracket, Tree
from experiments.errors import UserError

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
    label: str = ""
    word: str | None = None  # of a tag
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
    reader = _Reader(allow_empty)
    number = 0
    for number, line in enumerate(lines, start=1):
        yield from reader.feed(number, line)
    reader.finish(number)


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


class _Reader:
    def __init__(self, allow_empty: bool) -> None:
        self._allow_empty = allow_empty
        self._open: list[_Open] = []
        self._at_margin = 0  # the first line that opens a bracket at its margin inside a tree: perhaps the next tree
        self._clear()

    def _clear(self) -> None:
        self._words: list[str] = []
        self._tags: list[str] = []
        self._brackets: list[Bracket | None] = []  # None: not closed yet

    def feed(self, number: int, line: str) -> Iterator[Tree]:
        if not self._open and line.startswith(_COMMENT):
            return
        if self._open and line.startswith("(") and not self._at_margin:
            self._at_margin = number
        for found in _TOKENS.finditer(line):
            token = found[0]
            if token == "(":
                self._opens(number)
            elif token == ")":
                self._closes(number)
                if not self._open:
                    yield Tree(tuple(self._words), tuple(self._tags), tuple(b for b in self._brackets if b))
                    self._clear()
                    self._at_margin = 0
            else:
                self._text(number, token)

    def finish(self, last: int) -> None:
        if self._open:
            began = self._open[0].line
            near = f" Line {self._at_margin} may begin the next tree." if self._at_margin else ""
            missing = f"{len(self._open)} closing bracket{'s are' if len(self._open) > 1 else ' is'}"
            raise BadTree(
                began, f"the tree that begins here is never closed: {missing} missing up to line {last}.{near}"
            )

    def _opens(self, number: int) -> None:
        if self._open:
            self._open[-1].children += 1
            if self._open[-1].word is not None:
                raise BadTree(number, f'a bracket opens beside the word "{self._open[-1].word}". {_FORM}')
        self._open.append(_Open(number, len(self._words), len(self._brackets)))
        self._brackets.append(None)

    def _text(self, number: int, token: str) -> None:
        if not self._open:
            raise BadTree(number, f'"{token}" stands outside of any bracket. {_FORM}')
        top = self._open[-1]
        if top.children or top.word is not None:
            raise BadTree(number, f'"{token}" has no tag of its own. {_FORM}')
        if not top.label:
            top.label = token
        else:
            top.word = token

    def _closes(self, number: int) -> None:
        if not self._open:
            raise BadTree(number, "a closing bracket too many.")
        done = self._open.pop()
        if done.word is not None:
            self._brackets.pop()  # it was a tag
            self._tags.append(done.label)
            self._words.append(done.word)
        elif done.start == len(self._words) and self._allow_empty:
            self._brackets.pop()  # what it held is popped already
        elif not done.children:
            raise BadTree(number, f'the bracket "({done.label})" holds nothing. {_FORM}')
        else:
            self._brackets[done.place] = Bracket(done.label, done.start, len(self._words))


_FORM = "A tree is (LABEL child child …), and each word (TAG word)."
