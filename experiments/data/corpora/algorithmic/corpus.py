"""The algorithmic corpus: its sets and what identifies them. Imports no torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from experiments.data.corpora.algorithmic.generate import VERSION, generate
from experiments.data.corpora.algorithmic.settings import AlgorithmicData
from experiments.errors import UserError
from experiments.identity import digest


@dataclass(frozen=True)
class AlgorithmicCorpus:
    """Generated pairs; every test set has the name of its lengths, "21-30"."""

    data: AlgorithmicData
    source: str = "input"
    target: str = "output"

    @property
    def name(self) -> str:
        """The algorithm's name."""
        return self.data.algorithm

    @property
    def sets(self) -> tuple[str, ...]:
        """The sets that can be evaluated: "dev", then the test sets."""
        return ("dev", *self.data.test_lengths)

    def pinned(self, cache_dir: Path | None = None) -> Self:
        """Itself: it has no files."""
        return self

    def read_pairs(self, set_name: str) -> Iterator[tuple[str, str]]:
        """The (source, target) lines of "train", "dev" or a test set. Raises UserError where there are too few."""
        return generate(self.data, set_name)

    def check(self, cache_dir: Path | None = None) -> dict[str, int]:
        """The number of pairs of each set."""
        return {"train": self.data.builtin_pairs, **dict.fromkeys(self.sets, self.data.set_pairs)}

    def training_digest(self, cache_dir: Path | None = None) -> str:
        """16 hex digits of the recipe of train and dev; test sets do not change it."""
        return digest(
            {
                **self._recipe,
                "train": [self.data.train_lengths, self.data.builtin_pairs],
                "dev": [self.data.dev_lengths, self.data.set_pairs],
            }
        )

    def set_digest(self, set_name: str, cache_dir: Path | None = None) -> str:
        """16 hex digits of the recipe of one evaluated set."""
        lengths = self.data.dev_lengths if set_name == "dev" else set_name
        return digest({**self._recipe, "set": ["dev" if set_name == "dev" else "test", lengths, self.data.set_pairs]})

    @property
    def _recipe(self) -> dict[str, object]:
        data = self.data
        return {
            "algorithmic": VERSION,
            "algorithm": data.algorithm,
            "symbols": data.symbols,
            "distance": data.distance,
            "seed": data.corpus_seed,
        }


def resolve(data: AlgorithmicData) -> AlgorithmicCorpus:
    """The corpus of a configuration. Raises UserError for settings of corpora in files."""
    if data.source or data.target or data.train or data.dev or data.test:
        raise UserError(
            "data.source, data.target, data.train, data.dev and data.test name languages and files; an algorithmic "
            "corpus is generated: data.train_lengths, data.dev_lengths and data.test_lengths say its sets. Leave them "
            "out."
        )
    return AlgorithmicCorpus(data)
