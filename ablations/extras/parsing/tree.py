"""A constituency tree as flat lists: words, tags, and labelled spans in the order in which they open. Imports no torch.

(S (NP (DT the) (NN dog)) (VP (VBD slept))) has the words "the dog slept", the tags DT NN VBD, and the brackets S 0–3,
NP 0–2, VP 2–3.

Flat lists need no recursion, so no depth of nesting can exhaust the stack. linear.py writes a tree as a line of symbols
and reads it; treebank.py reads the format of the Penn Treebank.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

ROOTS = ("", "TOP", "ROOT", "S1", "VROOT")  # labels that treebanks give to the bracket around a whole tree
EMPTY_TAG = "-NONE-"  # tag of traces and other empty words


class Bracket(NamedTuple):
    """A labelled span of words."""

    label: str
    start: int  # index of the first word
    end: int  # index of the last word + 1


@dataclass(frozen=True)
class Tree:
    """One tree, or several trees in a row if no bracket encloses all words."""

    words: tuple[str, ...]
    tags: tuple[str, ...]  # one per word
    brackets: tuple[Bracket, ...]  # in the order in which they open: outer before inner; none is empty

    def __len__(self) -> int:
        return len(self.words)


def base_label(label: str) -> str:
    """Return the label without function tags and indices: NP for NP-SBJ-1 and NP=2, but -LRB- for -LRB-."""
    return label if label.startswith(("-", "=")) else label.partition("-")[0].partition("=")[0]


def cleaned(tree: Tree) -> Tree:
    """Return the tree as it is used for training and scoring.

    It has no root, no empty words, no brackets that contain only empty words, and no function tags.
    """
    kept = without_words(tree, lambda tag: tag == EMPTY_TAG)
    brackets = [Bracket(base_label(label), start, end) for label, start, end in kept.brackets]
    while brackets and brackets[0].label in ROOTS and brackets[0][1:] == (0, len(kept)):
        brackets.pop(0)
    return Tree(kept.words, kept.tags, tuple(brackets))


def without_words(tree: Tree, gone: Callable[[str], bool]) -> Tree:
    """Return the tree without words for whose tag `gone` is true, and without brackets that become empty."""
    stays = [not gone(tag) for tag in tree.tags]
    if all(stays):
        return tree
    place = [0, *accumulate(stays)]
    spans = (Bracket(label, place[start], place[end]) for label, start, end in tree.brackets)
    words = tuple(word for word, stay in zip(tree.words, stays, strict=True) if stay)
    tags = tuple(tag for tag, stay in zip(tree.tags, stays, strict=True) if stay)
    return Tree(words, tags, tuple(span for span in spans if span.start < span.end))


class Step(NamedTuple):
    """The brackets that open before a word, and those that close after it."""

    word: int
    opening: list[str]
    closing: list[str]  # innermost first


def steps(tree: Tree) -> Iterator[Step]:
    """Yield a step for each word, from left to right."""
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
    """Return the tree as one line of treebank format, in a bracket with the label `root` (no bracket if it is "")."""
    parts = []
    for word, opening, closing in steps(tree):
        opens = "".join(f"({label} " for label in opening)
        parts.append(f"{opens}({tree.tags[word]} {tree.words[word]}){')' * len(closing)}")
    text = " ".join(parts)
    return f"({root} {text})" if root else text
