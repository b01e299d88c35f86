"""The built-in trees: a stream cut to a training set, fixed dev and test sets, and the output of "another parser".

The paper's second row trains on some 17 million sentences that other parsers parsed, with their mistakes. Here these
are trees of the grammar with random mistakes.
"""

from collections.abc import Iterator
from functools import cache

from experiments.data.builtin.dice import Dice
from experiments.data.corpora.trees import grammar
from experiments.data.corpora.trees.tree import Bracket, Tree
from experiments.identity import digest

# Increase it when the trees change: a test compares their hash.
RECIPE_VERSION = 1
# The name of version 1, once hashes of its files. run_ids contain it, so it stays when the files change.
_SOURCES = [
    "6ea71a4909576dc5c655a3c141a925fed274d7b9b7f44f6af4e9c77b5072e1b5",
    "054f09193649c4ad8cb870c6066b374da1c448d444411ef1e882e4d4d12e16ee",
    "51a45a359c9b461ffd4bed36c9dbb2b6c6902d0e0ec762ae20ab2c795df95565",
    "79feb79bef6d94952a77ee7a653af15faabbaa503314fd348970b06f8c26887a",
    "520cde7fc38e4271b036d10a72282a72a3cd8a8b3ccbff748433c9ca12e1b349",
    "8daaad3de06e2546f2078ecf605e7c86efb689ae51f4787b6d645efc24a3df11",
]
HELD_OUT = {"dev": 300, "test": 300}
_SEEDS = {"held out": 2_342_017, "train": 2_122_017, "extra": 1_722_017}
_DROPPED, _RELABELLED, _RAISED = 3, 2, 12  # percent of brackets; of phrases at another's end
_LABELS = ("NP", "VP", "PP", "ADVP", "ADJP", "SBAR", "S")


def recipe_digest(trees: int, extra: int) -> str:
    """16 hex digits that change with the recipe's version or the number of training trees."""
    recipe = {"version": RECIPE_VERSION, "trees": trees, "extra": extra, "held out": HELD_OUT, "sources": _SOURCES}
    return digest(recipe)


def generate(split: str, trees: int = 0) -> Iterator[Tree]:
    """Yield the trees of "train" or "extra" (the first `trees` of a stream), "dev" or "test" (of fixed size).

    No sentence of dev or test occurs in another split.
    """
    if split in HELD_OUT:
        return iter(_held_out()[split])
    if split not in _SEEDS:
        raise ValueError(f"the built-in trees have no split {split!r}")
    return _stream(split, trees)


def _stream(split: str, trees: int) -> Iterator[Tree]:
    held_out = {each.words for part in _held_out().values() for each in part}
    dice, mistakes = Dice(_SEEDS[split]), Dice(_SEEDS[split] + 1)
    while trees > 0:
        made = grammar.sentence(dice)
        if made.words not in held_out:
            yield mistaken(mistakes, made) if split == "extra" else made
            trees -= 1


@cache
def _held_out() -> dict[str, tuple[Tree, ...]]:
    """Dev and test: no sentence twice."""
    dice = Dice(_SEEDS["held out"])
    found: dict[tuple[str, ...], Tree] = {}
    while len(found) < sum(HELD_OUT.values()):
        made = grammar.sentence(dice)
        found.setdefault(made.words, made)
    trees = iter(found.values())
    return {name: tuple(next(trees) for _ in range(count)) for name, count in HELD_OUT.items()}


def mistaken(dice: Dice, original: Tree) -> Tree:
    """The tree as a parser might get it wrong: brackets lost, mislabelled, phrases attached too high."""
    brackets: list[Bracket] = []
    for bracket in original.brackets:
        whole = bracket[1:] == (0, len(original))
        if not whole and dice.chance(_DROPPED):
            continue
        label = dice.pick(_LABELS) if not whole and dice.chance(_RELABELLED) else bracket.label
        brackets.append(bracket._replace(label=label))
        if label in ("PP", "SBAR") and len(brackets) > 1 and dice.chance(_RAISED):
            _raise_last(brackets)
    return Tree(original.words, original.tags, tuple(brackets))


def _raise_last(brackets: list[Bracket]) -> None:
    """Attach the last bracket above the noun phrase that ends with it, if there is one: that one ends before it."""
    start, end = brackets[-1].start, brackets[-1].end
    above = [i for i, b in enumerate(brackets[:-1]) if b.start < start and b.end >= end]
    if above and brackets[above[-1]].label == "NP" and brackets[above[-1]].end == end:
        brackets[above[-1]] = brackets[above[-1]]._replace(end=start)
