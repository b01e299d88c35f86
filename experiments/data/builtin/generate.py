"""The built-in corpus: one endless stream of pairs, cut to a finite training set, with fixed dev and test sets."""

import hashlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from experiments.data.builtin.dice import Dice
from experiments.data.builtin.sentences import sentence

RECIPE_VERSION = 1
SPLITS = {"train": 0, "dev": 300, "test": 300}  # pairs; the size of train is the caller's
_SEEDS = {"held out": 20_170_612, "train": 20_171_206}

Pair = tuple[str, str]


@cache  # a plan asks once per run
def recipe_digest(pairs: int) -> str:
    """16 hex digits that change with the grammar's source, the recipe or the number of training pairs."""
    sources = {path.name: path.read_text("utf-8") for path in sorted(Path(__file__).parent.glob("*.py"))}
    recipe = {"version": RECIPE_VERSION, "pairs": pairs, "splits": SPLITS, "seeds": _SEEDS, "sources": sources}
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]


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
