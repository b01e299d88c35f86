"""Pairs of an input and what an algorithm makes of it: lines of symbols with spaces between, functions of a seed.

Symbols are the numbers from 0. `VERSION` is part of the corpus's identity: raise it if any line changes (a test pins
the text).
"""

import random
import zlib
from collections.abc import Callable, Iterator

from experiments.data.corpora.algorithmic.settings import AlgorithmicData, bounds
from experiments.errors import UserError

VERSION = 1
# Every possible input belongs to train or dev or the test sets, by its hash: so no set holds an input of another.
PARTS = 10
DEV, TEST = 0, 1  # one part in ten each; the rest is train's
TRIES = 2_000  # draws in a row without a new line of the part

Draw = Callable[[random.Random, int, int, int], tuple[list[str], list[str]]]
Pair = tuple[str, str]


def generate(data: AlgorithmicData, name: str) -> Iterator[Pair]:
    """The pairs of "train", "dev" or a test set, named by its lengths. Raises UserError where there are too few."""
    lengths = {"train": data.train_lengths, "dev": data.dev_lengths}.get(name, name)
    shortest, longest = bounds(lengths)
    wanted = data.builtin_pairs if name == "train" else data.set_pairs
    parts = {"train": range(2, PARTS), "dev": (DEV,)}.get(name, (TEST,))
    chance = random.Random(f"{VERSION} {data.corpus_seed} {name} {lengths}")
    draw, seen, made, tries = _DRAWS[data.algorithm], set[str](), 0, 0
    while made < wanted:
        source, target = draw(chance, chance.randint(shortest, longest), data.symbols, data.distance)
        line = " ".join(source)
        tries += 1
        if tries > TRIES:
            raise UserError(
                f"data.algorithm = {data.algorithm} with data.symbols = {data.symbols} and lengths {lengths} has too "
                f"few different inputs for {name}: {made:,} of {wanted:,} were found. Raise data.symbols or the "
                f"lengths{'' if name == 'train' else ', or lower data.set_pairs'}."
            )
        if zlib.crc32(line.encode()) % PARTS in parts and (name == "train" or line not in seen) and target:
            seen.update(() if name == "train" else (line,))
            made, tries = made + 1, 0
            yield line, " ".join(target)


def _line(chance: random.Random, length: int, symbols: int) -> list[int]:
    return [chance.randrange(symbols) for _ in range(length)]


def _copy(chance: random.Random, length: int, symbols: int, _distance: int) -> tuple[list[str], list[str]]:
    source = [str(symbol) for symbol in _line(chance, length, symbols)]
    return source, source


def _reverse(chance: random.Random, length: int, symbols: int, _distance: int) -> tuple[list[str], list[str]]:
    source = [str(symbol) for symbol in _line(chance, length, symbols)]
    return source, source[::-1]


def _sort(chance: random.Random, length: int, symbols: int, _distance: int) -> tuple[list[str], list[str]]:
    source = _line(chance, length, symbols)
    return list(map(str, source)), list(map(str, sorted(source)))


def _recall(chance: random.Random, length: int, symbols: int, distance: int) -> tuple[list[str], list[str]]:
    """Keys and values in turn, then one of the keys: its latest value (Graves et al. 2014, section 4.3, in this form).

    An even length is made odd by one symbol less. The key of `distance` is drawn such that it does not come again.
    """
    pairs = (length - 1) // 2
    place = pairs - (distance or chance.randint(1, pairs))
    keys, values = _line(chance, pairs, symbols), _line(chance, pairs, symbols)
    asked = keys[place]
    keys[place + 1 :] = [(asked + chance.randrange(1, symbols)) % symbols for _ in keys[place + 1 :]]
    source = [text for key, value in zip(keys, values, strict=True) for text in (f"k{key}", str(value))]
    return [*source, f"k{asked}"], [str(values[place])]


def _dyck(chance: random.Random, length: int, symbols: int, _distance: int) -> tuple[list[str], list[str]]:
    """The beginning of a word of Dyck-k, k = symbols / 2: the brackets that close it. Empty where none is open."""
    source, opened = list[str](), list[int]()
    for _ in range(length):
        if opened and chance.randrange(2):
            source.append(f"){opened.pop()}")
        else:
            opened.append(chance.randrange(symbols // 2))
            source.append(f"({opened[-1]}")
    return source, [f"){kind}" for kind in reversed(opened)]


_DRAWS: dict[str, Draw] = {"copy": _copy, "reverse": _reverse, "sort": _sort, "recall": _recall, "dyck": _dyck}
