"""Which algorithm, over which symbols and lengths: the `data` section of the algorithmic task. Imports no torch."""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from experiments.config import MOST_GENERATED, DataConfig, Names

ALGORITHMS = ("copy", "reverse", "sort", "recall", "dyck")
LONGEST = 10_000  # symbols of a line


def _range(text: str) -> str:
    found = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]) <= LONGEST:
        raise ValueError(f'expected two lengths from 1 to {LONGEST:,}, the shorter first, as "5-20"; found "{text}"')
    return f"{int(found[1])}-{int(found[2])}"


Range = Annotated[str, AfterValidator(_range)]


def bounds(lengths: str) -> tuple[int, int]:
    """The shortest and the longest line of a range: "5-20" → (5, 20)."""
    shortest, longest = lengths.split("-")
    return int(shortest), int(longest)


class AlgorithmicData(DataConfig):
    """Pairs of an input and what an algorithm makes of it. A word is a symbol; lengths count symbols of the input."""

    corpus: Literal["builtin"] = Field("builtin", description="these pairs are generated")
    units: Literal["word"] = Field("word", description="every symbol is a piece")
    builtin_pairs: int = Field(20000, ge=1, le=MOST_GENERATED, description="training pairs that are generated")
    algorithm: Literal["copy", "reverse", "sort", "recall", "dyck"] = Field(
        "copy", description="what is to be learnt (docs/algorithmic.md defines each)"
    )
    symbols: int = Field(16, ge=2, le=10_000, description="different symbols; dyck: half of them open, half close")
    train_lengths: Range = Field("5-20", description="symbols of a training input, each length equally often")
    dev_lengths: Range = Field("5-20", description="the same for dev")
    test_lengths: Names = Field(("21-30", "31-40", "41-60"), description="a test set for each range, with its name")
    set_pairs: int = Field(200, ge=1, le=100_000, description="pairs of dev and of each test set, all different")
    distance: int = Field(
        0, ge=0, description="recall: the value stands so many pairs before the query, 1 the nearest; 0: any"
    )
    corpus_seed: int = Field(1, ge=0, description="seed of the pairs; the training's own seed does not change them")

    @property
    def sized_by_text(self) -> bool:
        return True

    @model_validator(mode="after")
    def _possible(self) -> Self:
        for each in self.test_lengths:
            try:
                _range(each)
            except ValueError as error:
                raise ValueError(f"test_lengths: {error}") from None
        if len({_range(each) for each in self.test_lengths}) < len(self.test_lengths):
            raise ValueError(f"test_lengths names a range twice: {', '.join(self.test_lengths)}")
        if self.algorithm == "recall":
            least = 3 if not self.distance else 2 * self.distance + 1
            for each in (self.train_lengths, self.dev_lengths, *self.test_lengths):
                if bounds(each)[0] < least:
                    raise ValueError(
                        f"recall over distance {self.distance or 'any'} needs inputs of {least} symbols or more (keys, "
                        f"values, the query), and a range is {each}: start it at {least}, or set data.distance to less"
                    )
        elif self.distance:
            raise ValueError(
                f'distance is read by algorithm = "recall", and algorithm is "{self.algorithm}": leave it out'
            )
        return self
