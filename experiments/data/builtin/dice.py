"""Chance for the grammar: a few integer rules over Mersenne Twister bits, the same on every Python and platform."""

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Dice:
    """Every draw takes 32 random bits and only integer arithmetic; no method of `random` whose recipe may change."""

    def __init__(self, seed: int) -> None:
        self._bits = random.Random(seed).getrandbits

    def below(self, count: int) -> int:
        """0 … count − 1, evenly."""
        return (self._bits(32) * count) >> 32

    def chance(self, percent: int) -> bool:
        return self._bits(32) * 100 < percent << 32

    def pick(self, options: Sequence[T]) -> T:
        return options[(self._bits(32) * len(options)) >> 32]

    def pick_early(self, options: Sequence[T]) -> T:
        """Early options more often than late ones, as words of a text are: P(among the first i of n) = √(i / n)."""
        bits = self._bits(32)
        return options[(bits * bits * len(options)) >> 64]
