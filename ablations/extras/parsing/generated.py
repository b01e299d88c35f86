"""The generated trees: a training set of any size, fixed dev and test sets, and trees with a parser's mistakes.

The second row of the paper's Table 4 is also trained on about 17 million sentences that other parsers annotated, with
mistakes. This module generates trees of a grammar with random mistakes instead. Imports no torch.
"""

from collections.abc import Iterator
from functools import cache

from ablations.extras.parsing.grammar import sentence
from ablations.extras.parsing.tree import Bracket, Tree
from experiments.data.corpora.lexicon import Dice
from experiments.identity import digest

# Increase this version when the generated trees change. A test compares their hash.
RECIPE_VERSION = 1
HELD_OUT = {"dev": 300, "test": 300}
_SEEDS = {"held out": 2_342_017, "train": 2_122_017, "extra": 1_722_017}
# Percentages of brackets with a mistake. The last one is a percentage of the PP and SBAR brackets.
_DROPPED, _RELABELLED, _RAISED = 3, 2, 12
_LABELS = ("NP", "VP", "PP", "ADVP", "ADJP", "SBAR", "S")


def recipe_digest(trees: int, extra: int) -> str:
    """Return 16 hex digits that change with the recipe's version or the number of training trees."""
    return digest({"version": RECIPE_VERSION, "trees": trees, "extra": extra, "held out": HELD_OUT, "seeds": _SEEDS})


def generate_trees(split: str, trees: int = 0) -> Iterator[Tree]:
    """Yield the first `trees` trees of "train" or "extra", or all trees of "dev" or "test", which have fixed sizes.

    No sentence of dev or test occurs in another split.
    """
    if split in HELD_OUT:
        yield from _held_out()[split]
        return
    held_out = {each.words for part in _held_out().values() for each in part}
    dice, mistakes = Dice(_SEEDS[split]), Dice(_SEEDS[split] + 1)
    while trees > 0:
        made = sentence(dice)
        if made.words not in held_out:
            yield mistaken(mistakes, made) if split == "extra" else made
            trees -= 1


@cache
def _held_out() -> dict[str, tuple[Tree, ...]]:
    """Return the trees of dev and test, without repeated sentences."""
    dice = Dice(_SEEDS["held out"])
    by_words: dict[tuple[str, ...], Tree] = {}
    while len(by_words) < sum(HELD_OUT.values()):
        made = sentence(dice)
        by_words.setdefault(made.words, made)
    trees = iter(by_words.values())
    return {name: tuple(next(trees) for _ in range(count)) for name, count in HELD_OUT.items()}


def mistaken(dice: Dice, original: Tree) -> Tree:
    """Return the tree with typical mistakes of a parser: missing brackets, wrong labels, phrases attached too high."""
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
    """Attach the last bracket one level higher if a noun phrase directly around it ends at the same word.

    The noun phrase then ends before the last bracket starts.
    """
    start, end = brackets[-1].start, brackets[-1].end
    above = [i for i, b in enumerate(brackets[:-1]) if b.start < start and b.end >= end]
    if above and brackets[above[-1]].label == "NP" and brackets[above[-1]].end == end:
        brackets[above[-1]] = brackets[above[-1]]._replace(end=start)
