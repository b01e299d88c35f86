"""The built-in corpus: an endless stream of pairs cut to a finite training set, with fixed dev and test sets."""

import hashlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from experiments.data.builtin.grammar import Dice, sentence

RECIPE_VERSION = 1
SPLITS = {"train": 0, "dev": 300, "test": 300}  # pairs; train's number is the caller's
_SEEDS = {"held out": 20_170_612, "train": 20_171_206}

Pair = tuple[str, str]


def recipe_digest(pairs: int) -> str:
    """16 hex digits that change with the grammar's source, the recipe or the number of training pairs."""
    here = Path(__file__).parent
    sources = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(here.glob("*.py"))}
    recipe = {"version": RECIPE_VERSION, "pairs": pairs, "splits": SPLITS, "sources": sources}
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]


def generate(split: str, pairs: int = 0) -> Iterator[Pair]:
    """Yield (English, German) pairs of "train" (the first `pairs` of one stream), "dev" or "test" (of fixed size).

    No sentence of either language in dev or test occurs in another split. Train may repeat a pair, as text does.
    """
    if split not in SPLITS:
        raise ValueError(f"the built-in corpus has no split {split!r}; it has {', '.join(SPLITS)}")
    return _train(pairs) if split == "train" else iter(_held_out()[split])


def _train(pairs: int) -> Iterator[Pair]:
    held_out = {side for split in _held_out().values() for pair in split for side in pair}
    dice = Dice(_SEEDS["train"])
    while pairs > 0:
        source, target = sentence(dice)
        if source not in held_out and target not in held_out:
            yield source, target
            pairs -= 1


@cache
def _held_out() -> dict[str, tuple[Pair, ...]]:
    """Dev and test: no sentence of either side twice."""
    dice, seen, found = Dice(_SEEDS["held out"]), set[str](), list[Pair]()
    total = SPLITS["dev"] + SPLITS["test"]
    while len(found) < total:
        pair = sentence(dice)
        if seen.isdisjoint(pair):
            seen.update(pair)
            found.append(pair)
    return {"dev": tuple(found[: SPLITS["dev"]]), "test": tuple(found[SPLITS["dev"] :])}
