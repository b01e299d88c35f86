"""The built-in corpus: one endless stream of pairs, cut to a finite training set, with fixed dev and test sets."""

from collections.abc import Iterator
from functools import cache

from experiments.data.builtin.dice import Dice
from experiments.data.builtin.sentences import sentence
from experiments.identity import digest

RECIPE_VERSION = 1  # increase it when the pairs change: a test compares their hash
# Names of version 1 by number of training pairs, which were made of the text of its files. They are in the run_ids of
# this program's studies, so they stay; other numbers of pairs are named by the recipe alone.
_FIRST_NAMES = {
    900: "4312db83f77a0698", 1_200: "9b18a29e42bf7176", 8_000: "040022f7a10d5ecf", 20_000: "0024e393fe50ccfd",
}  # fmt: skip
SPLITS = {"train": 0, "dev": 300, "test": 300}  # pairs; the size of train is the caller's
_SEEDS = {"held out": 20_170_612, "train": 20_171_206}

Pair = tuple[str, str]


def recipe_digest(pairs: int) -> str:
    """16 hex digits that change with the recipe's version, its settings or the number of training pairs."""
    if RECIPE_VERSION == 1 and pairs in _FIRST_NAMES:
        return _FIRST_NAMES[pairs]
    return digest({"builtin": RECIPE_VERSION, "pairs": pairs, "splits": SPLITS, "seeds": _SEEDS})


def generate(split: str, pairs: int = 0) -> Iterator[Pair]:
    """Yield (English, German): the first `pairs` of the training stream, or "dev" or "test", whose size is fixed.

    No sentence of either language in dev or test occurs in another split, or twice in its own. Train may repeat a
    short pair, as text does. Raises ValueError for another split.
    """
    if split not in SPLITS:
        raise ValueError(f"the built-in corpus has no split {split!r}; it has {', '.join(SPLITS)}")
    return _train(pairs) if split == "train" else iter(_held_out()[split])


def _train(pairs: int) -> Iterator[Pair]:
    held_out = {side for split in _held_out().values() for pair in split for side in pair}
    dice = Dice(_SEEDS["train"])
    while pairs > 0:
        pair = sentence(dice)
        if held_out.isdisjoint(pair):
            yield pair
            pairs -= 1


@cache
def _held_out() -> dict[str, tuple[Pair, ...]]:
    """Dev and test, sentences of either language all different."""
    dice, seen, found = Dice(_SEEDS["held out"]), set[str](), list[Pair]()
    while len(found) < SPLITS["dev"] + SPLITS["test"]:
        pair = sentence(dice)
        if seen.isdisjoint(pair):
            seen.update(pair)
            found.append(pair)
    return {"dev": tuple(found[: SPLITS["dev"]]), "test": tuple(found[SPLITS["dev"] :])}
