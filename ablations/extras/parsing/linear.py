"""Write a tree as a line of symbols, and read such a line: S NP DT NN /NP VP VBD /VP . /S. Imports no torch.

A label opens a bracket, and "/" followed by the label closes the bracket. A tag replaces each word. When a line is
read, the words are inserted at the tags from left to right. See section 6.3 and Vinyals et al. 2015, who also close
brackets with the label. A tag gets the suffix "_" if it is also a label of the same tree, starts with "/", or ends with
"_". So every tree whose labels `linearise` accepts can be read back.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields

from ablations.extras.parsing.tree import Bracket, Tree, steps

UNKNOWN = "⁇"  # text that the tokenizer prints for a symbol outside its vocabulary
NO_TAG = "XX"  # tag of a word for which the output has no tag


@dataclass
class Repairs:
    """Numbers of the repairs that turned an output into a tree."""

    unclosed: int = 0  # brackets still open at the end, or when an outer bracket closes; they are closed there
    unopened: int = 0  # closing symbols without an open bracket; they are removed
    empty: int = 0  # brackets without a word; they are removed
    missing_tags: int = 0  # words without a tag; they get XX and join the innermost open or the last bracket
    extra_tags: int = 0  # tags without a word; they are removed
    unknown: int = 0  # symbols outside the vocabulary; they are removed

    def __bool__(self) -> bool:
        return any(getattr(self, each.name) for each in fields(self))


def linearise(tree: Tree) -> list[str]:
    """Return the symbols of a tree. Raises ValueError for a label that cannot be written unambiguously."""
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
    """Return a tree over `words` for any line of symbols, and the numbers of repairs.

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
    """A tree under construction. `_open` holds the indices of open brackets in `_brackets`, the innermost last."""

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
        """If no bracket is open, extend the last outermost bracket to the remaining words."""
        if self._open or not self._tags:
            return
        last, end = None, 0
        for place, bracket in enumerate(self._brackets):
            if bracket.start >= end and bracket.end > bracket.start:
                last, end = place, bracket.end
        if last is not None and end == len(self._tags):
            self._brackets[last] = self._brackets[last]._replace(end=len(self._words))
