"""The algorithmic corpus: generated pairs of an input and the output of an algorithm for it. Imports no torch.

This file contains the settings, the sets with their digests, and the algorithms.
"""

import random
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from experiments.config.data import MOST_GENERATED, DataConfig
from experiments.config.field_types import Names
from experiments.data.corpora.corpus import Corpus
from experiments.errors import UserError
from experiments.identity import digest

LONGEST = 10_000  # maximum number of symbols in an input


def _range(text: str) -> str:
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]) <= LONGEST:
        raise ValueError(f'expected two lengths from 1 to {LONGEST:,}, the shorter first, as "5-20"; found "{text}"')
    return f"{int(match[1])}-{int(match[2])}"


Range = Annotated[str, AfterValidator(_range)]


def _test_range(text: str) -> str:
    lengths, mark, distance = text.partition("d")
    if mark and not re.fullmatch(r"[1-9]\d{0,4}", distance):
        raise ValueError(f'expected lengths and a distance, as "33-33d4"; found "{text}"')
    return f"{_range(lengths)}{mark}{distance}"


def bounds(lengths: str) -> tuple[int, int]:
    """Return the shortest and the longest length of a range: "5-20" and "5-20d4" → (5, 20)."""
    shortest, longest = lengths.partition("d")[0].split("-")
    return int(shortest), int(longest)


class AlgorithmicData(DataConfig):
    """Settings of the generated pairs. Every word is a symbol; lengths are numbers of input symbols."""

    corpus: Literal["builtin"] = Field("builtin", description="these pairs are generated")
    units: Literal["word"] = Field("word", description="every symbol is a piece")
    builtin_pairs: int = Field(20000, ge=1, le=MOST_GENERATED, description="training pairs that are generated")
    algorithm: Literal["copy", "reverse", "sort", "recall", "dyck", "recall_all"] = Field(
        "copy", description="task to learn (defined in ablations/extras/algorithmic/algorithmic.md)"
    )
    symbols: int = Field(16, ge=2, le=10_000, description="number of symbols; dyck: half are opening brackets")
    train_lengths: Range = Field(
        "5-20", description="range of lengths of training inputs, in symbols; all lengths are equally frequent"
    )
    dev_lengths: Range = Field("5-20", description="range of lengths of dev inputs")
    test_lengths: Names = Field(
        ("21-30", "31-40", "41-60"),
        description='test sets, each named by its range; recall: "33-33d4" also sets the distance',
    )
    set_pairs: int = Field(
        200, ge=1, le=100_000, description="number of pairs of dev and of each test set, all different"
    )
    distance: int = Field(
        0, ge=0, description="recall: distance in pairs from the value to the query, 1 the nearest; 0: any"
    )
    corpus_seed: int = Field(1, ge=0, description="seed of the pairs; the training's seed does not change them")

    @property
    def sized_by_text(self) -> bool:
        return True

    @model_validator(mode="after")
    def _possible(self) -> Self:
        for each in self.test_lengths:
            try:
                _test_range(each)
            except ValueError as error:
                raise ValueError(f"test_lengths: {error}") from None
        if len({_test_range(each) for each in self.test_lengths}) < len(self.test_lengths):
            raise ValueError(f"test_lengths names a range twice: {', '.join(self.test_lengths)}")
        if self.algorithm == "recall":
            for each in (self.train_lengths, self.dev_lengths, *self.test_lengths):
                distance = self.distance_of(each)
                least = 2 * (distance or 1) + 1
                if bounds(each)[0] < least:
                    raise ValueError(
                        f"recall over distance {distance or 'any'} needs inputs of {least} symbols or more (keys, "
                        f"values, the query), but a range is {each}: start it at {least}, or set data.distance to less"
                    )
        elif self.distance or any(self.distance_of(each) for each in self.test_lengths):
            raise ValueError(
                f'only algorithm = "recall" uses a distance, and algorithm is "{self.algorithm}": leave out the '
                f"distance"
            )
        if self.algorithm == "recall_all":
            for each in (self.train_lengths, self.dev_lengths, *self.test_lengths):
                shortest, longest = bounds(each)
                if shortest < 3 or longest // 3 > self.symbols:
                    raise ValueError(
                        f"recall_all needs inputs of 3 symbols or more (a key, its value, the query), and one key for "
                        f"each third of them; a range is {each} and data.symbols is {self.symbols}: start the range at "
                        f"3, or set data.symbols to {longest // 3} or more"
                    )
        return self

    def distance_of(self, lengths: str) -> int:
        """Return the distance in the name of a set (4 in "33-33d4"), or `distance` if the name has none."""
        return int(lengths.partition("d")[2] or self.distance)


@dataclass(frozen=True)
class AlgorithmicCorpus(Corpus):
    """A corpus of generated pairs. Each test set has the name of its range of lengths, such as "21-30"."""

    source: str = "input"
    target: str = "output"
    data: AlgorithmicData = field(kw_only=True)

    def read(self, set_name: str) -> Iterator[tuple[str, str]]:
        """Yield the (source, target) lines of "train", "dev" or a test set.

        Raises UserError if the settings allow too few different lines.
        """
        return generate(self.data, set_name)

    def check(self, cache_dir: Path | None = None) -> dict[str, int]:
        """Return the number of pairs of each set."""
        return {"train": self.generated, **dict.fromkeys(self.sets, self.data.set_pairs)}

    def set_digest(self, set_name: str, cache_dir: Path | None = None) -> str:
        """Return 16 hex digits that identify the content of one evaluated set."""
        return self._digest({"set": ["dev" if set_name == "dev" else "test", *self._recipe(set_name)]})

    def _digest(self, content: Mapping[str, Any]) -> str:
        data = self.data
        recipe = {"algorithmic": VERSION, "algorithm": data.algorithm, "symbols": data.symbols}
        if data.algorithm in REVISIONS:
            recipe["revision"] = REVISIONS[data.algorithm]
        return digest({**recipe, "distance": data.distance, "seed": data.corpus_seed, **content})

    def _recipe(self, set_name: str) -> list[Any]:
        """Return the range of lengths and the number of pairs of a set.

        The test sets do not change the recipes of train and dev.
        """
        lengths = {"train": self.data.train_lengths, "dev": self.data.dev_lengths}.get(set_name, set_name)
        return [lengths, self.data.builtin_pairs if set_name == "train" else self.data.set_pairs]


def resolve(data: AlgorithmicData) -> AlgorithmicCorpus:
    """Return the corpus of a configuration. Raises UserError for settings that only corpora in files have."""
    if data.source or data.target or data.train or data.dev or data.test:
        raise UserError(
            "data.source, data.target, data.train, data.dev and data.test name languages and files; an algorithmic "
            "corpus is generated: data.train_lengths, data.dev_lengths and data.test_lengths say its sets. Leave them "
            "out."
        )
    if data.builtin_version != 1:
        raise UserError("data.builtin_version applies only to sentence pairs. Leave it out.")
    tests = dict.fromkeys(data.test_lengths, ())
    return AlgorithmicCorpus(data.algorithm, tests=tests, generated=data.builtin_pairs, data=data)


# A line is a sequence of symbols separated by spaces; symbols are numbers from 0. `VERSION` and `REVISIONS` are part of
# the corpus digest. If the lines of one algorithm change, increase its revision. If the lines of all algorithms change,
# increase the version. Tests pin the lines.


VERSION = 1
REVISIONS = {"recall_all": 2}  # only algorithms whose lines have changed since they were added
# The hash of an input modulo PARTS assigns the input to train, to dev, or to the test sets. So train, dev and the test
# sets never share an input.
PARTS = 10
DEV, TEST = 0, 1  # remainders of dev and of the test sets; train has the other remainders
TRIES = 2_000  # consecutive draws without a new line before generation fails

Draw = Callable[[random.Random, int, int, int], tuple[list[str], list[str]]]
Pair = tuple[str, str]


def generate(data: AlgorithmicData, name: str) -> Iterator[Pair]:
    """Yield the pairs of "train", "dev" or the test set with the name `name` (its range of lengths).

    Raises UserError if the settings allow too few different inputs.
    """
    lengths = {"train": data.train_lengths, "dev": data.dev_lengths}.get(name, name)
    shortest, longest = bounds(lengths)
    wanted = data.builtin_pairs if name == "train" else data.set_pairs
    parts = {"train": range(2, PARTS), "dev": (DEV,)}.get(name, (TEST,))
    chance = random.Random(f"{VERSION} {data.corpus_seed} {name} {lengths}")
    draw, seen, made, tries = _DRAWS[data.algorithm], set[str](), 0, 0
    while made < wanted:
        source, target = draw(chance, chance.randint(shortest, longest), data.symbols, data.distance_of(lengths))
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
    """Return an input and its output.

    The input alternates keys and values and ends with one of the keys. The output is the latest value of that key.
    This is a form of the task in Graves et al. 2014, section 4.3. An even length is reduced by one symbol. `distance`
    is the number of pairs from the value to the final key; 0 means that the distance is drawn. The key does not occur
    between its value and the end of the input.
    """
    pairs = (length - 1) // 2
    place = pairs - (distance or chance.randint(1, pairs))
    keys, values = _line(chance, pairs, symbols), _line(chance, pairs, symbols)
    asked = keys[place]
    keys[place + 1 :] = [(asked + chance.randrange(1, symbols)) % symbols for _ in keys[place + 1 :]]
    source = [text for key, value in zip(keys, values, strict=True) for text in (f"k{key}", str(value))]
    return [*source, f"k{asked}"], [str(values[place])]


def _recall_all(chance: random.Random, length: int, symbols: int, _distance: int) -> tuple[list[str], list[str]]:
    """Return an input and its output.

    The input alternates keys and values and ends with all keys in another order. No two of its pairs have the same key.
    The output has the keys in this other order, each followed by its value.

    The task is multi-query associative recall (Arora et al. 2023, arXiv 2312.04927) without other symbols between the
    queries. In that paper, a language model reads a query and predicts its value. Here the decoder writes the key and
    then the value. The length of the input is rounded down to a multiple of three.
    """
    keys = chance.sample(range(symbols), length // 3)
    values = _line(chance, len(keys), symbols)
    asked = chance.sample(range(len(keys)), len(keys))
    source = [text for key, value in zip(keys, values, strict=True) for text in (f"k{key}", str(value))]
    target = [text for place in asked for text in (f"k{keys[place]}", str(values[place]))]
    return [*source, *target[::2]], target


def _dyck(chance: random.Random, length: int, symbols: int, _distance: int) -> tuple[list[str], list[str]]:
    """Return the beginning of a well-formed sequence of brackets, and the brackets that close it.

    There are symbols / 2 types of brackets (Dyck-k). If no bracket is open, the output is empty, and `generate` draws
    again.
    """
    source, opened = list[str](), list[int]()
    for _ in range(length):
        if opened and chance.randrange(2):
            source.append(f"){opened.pop()}")
        else:
            opened.append(chance.randrange(symbols // 2))
            source.append(f"({opened[-1]}")
    return source, [f"){kind}" for kind in reversed(opened)]


_DRAWS: dict[str, Draw] = {
    "copy": _copy, "reverse": _reverse, "sort": _sort, "recall": _recall, "dyck": _dyck, "recall_all": _recall_all,
}  # fmt: skip
