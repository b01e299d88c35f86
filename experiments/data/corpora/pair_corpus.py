"""What can be encoded and trained on: pairs of lines in named sets. Imports no torch.

Parallel text (corpus.py) and trees over sentences (trees/corpus.py) are such corpora.
"""

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, Self

from experiments.errors import UserError


class PairCorpus(Protocol):
    """`source` and `target` say in a word what the sides are: languages, or "words" and "trees"."""

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> str: ...

    @property
    def target(self) -> str: ...

    @property
    def sets(self) -> tuple[str, ...]:
        """What can be evaluated: "dev", then the test sets."""

    def pinned(self, cache_dir: Path | None = None) -> Self:
        """This corpus with the content that its files have now: reading other content from them raises UserError.

        So that what a digest names is what is encoded, also while somebody edits the files.
        """

    def read_pairs(self, set_name: str) -> Iterator[tuple[str, str]]:
        """The (source, target) lines of "train", "dev" or a test set, one at a time."""

    def check(self, cache_dir: Path | None = None) -> dict[str, int]:
        """Read every file once and check it; pairs by set. Raises UserError for what cannot be trained on."""

    def training_digest(self, cache_dir: Path | None = None) -> str:
        """16 hex digits: the content of all that training reads. Names and places of files do not enter."""

    def set_digest(self, set_name: str, cache_dir: Path | None = None) -> str:
        """16 hex digits: the content of one evaluated set."""


def select_sets(corpus: PairCorpus, names: Sequence[str]) -> tuple[str, ...]:
    """Resolve `evaluation.sets`: "dev", names of test sets, "test" for all of them; each once, in this order.

    Raises UserError for a name that the corpus does not have, nearest names first.
    """
    chosen: list[str] = []
    for name in names:
        tests = corpus.sets[1:]
        if name == "test" and tests:
            chosen += tests
        elif name in corpus.sets:
            chosen.append(name)
        else:
            known = difflib.get_close_matches(name, corpus.sets, n=3, cutoff=0.4) or corpus.sets
            raise UserError(
                f'evaluation.sets names "{name}", and the corpus {corpus.name} has no such set. '
                f"It has: {', '.join([*known, *(s for s in corpus.sets if s not in known)])}."
            )
    return tuple(dict.fromkeys(chosen))
