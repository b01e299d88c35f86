"""Read trees in the format of the Penn Treebank. Imports no torch.

    (TAG word)  (LABEL child child …)  ( (S …) )

A file may contain any number of trees, and a tree may span several lines. Brackets in the text are written -LRB- and
-RRB-. Between trees, a line that starts with #, ;, % or * is a comment. Only ASCII white space separates words,
because a word may contain a no-break space.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ablations.extras.parsing.tree import Bracket, Tree
from experiments.data.corpora.files import read_lines
from experiments.errors import UserError
from experiments.messages import number as count

_TOKENS = re.compile(r"[()]|[^ \t\r\n\f\v()]+")
_COMMENT = ("#", ";", "%", "*")


class BadTree(ValueError):  # noqa: N818 - the name describes the text
    """Raised for text that is not a tree. The message is the reason. `line` is the line number, counted from 1."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line


@dataclass
class _Open:
    """A bracket that has not been closed yet."""

    line: int
    start: int  # number of words before the bracket
    place: int  # index in the list of the tree's brackets
    texts: list[str] = field(default_factory=list)  # the label, or a tag and its word
    children: int = 0


def read_trees(path: Path, sha256: str = "") -> Iterator[Tree]:
    """Yield the trees of a file, plain or .gz.

    Raises UserError with file and line for text that is not a tree. If `sha256` is given, raises UserError for a file
    with another hash.
    """
    try:
        yield from parse(read_lines(path, sha256))
    except BadTree as bad:
        raise UserError(f"{path}, line {bad.line}: {bad}") from None


def parse(lines: Iterable[str], *, allow_empty: bool = False) -> Iterator[Tree]:
    """Yield the trees in `lines`. Raises BadTree for text that is not a tree.

    An empty bracket also raises BadTree unless `allow_empty` is set.
    """
    opened: list[_Open] = []
    words, tags, brackets = list[str](), list[str](), list[Bracket | None]()  # None while a bracket is open
    number = at_margin = 0  # at_margin: first line within the tree that starts with a bracket
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
                what = (
                    "there is a closing bracket too many."
                    if token == ")"
                    else (f'"{token}" is outside of all brackets. ')
                )
                raise BadTree(number, what if token == ")" else what + _FORM)
            elif token != ")":
                if top.children or len(top.texts) == 2:
                    raise BadTree(number, f'"{token}" has no tag. {_FORM}')
                top.texts.append(token)
            else:
                opened.pop()
                if len(top.texts) == 2:
                    brackets.pop()  # the bracket was a tag with its word
                    tags.append(top.texts[0])
                    words.append(top.texts[1])
                elif top.start == len(words) and allow_empty:
                    brackets.pop()  # brackets inside it have been removed already
                elif not top.children:
                    raise BadTree(number, f'the bracket "({"".join(top.texts)})" holds nothing. {_FORM}')
                else:
                    brackets[top.place] = Bracket("".join(top.texts), top.start, len(words))
                if not opened:
                    yield Tree(tuple(words), tuple(tags), tuple(bracket for bracket in brackets if bracket))
                    words, tags, brackets, at_margin = [], [], [], 0
    if opened:
        near = f" The next tree may begin at line {at_margin}." if at_margin else ""
        missing = f"{count(len(opened), 'closing bracket')} missing up to line {number}"
        raise BadTree(opened[0].line, f"the tree that begins here is not closed: {missing}.{near}")


def parse_line(line: str) -> Tree:
    """Return all trees of a line as one Tree. Raises BadTree for text that is not a tree.

    EVALB's files have one tree per line. Empty brackets are left out, as in EVALB.
    """
    words: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    brackets: tuple[Bracket, ...] = ()
    for tree in parse([line], allow_empty=True):
        brackets += tuple(Bracket(label, start + len(words), end + len(words)) for label, start, end in tree.brackets)
        words, tags = words + tree.words, tags + tree.tags
    return Tree(words, tags, brackets)


_FORM = "A tree is (LABEL child child …), and each word (TAG word)."
