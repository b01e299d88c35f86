"""A constituency tree, flat: words, tags, and labelled spans in the order in which they open. Imports no torch.

(S (NP (DT the) (NN dog)) (VP (VBD slept)))  is  words the dog slept, tags DT NN VBD, brackets S 0–3, NP 0–2, VP 2–3.

Flat, because that is what is scored and what is written, and because no depth of nesting can exhaust a stack.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

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
