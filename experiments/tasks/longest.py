"""The longest sentences of a corpus in pieces, without a prepared corpus. Imports no torch.

Text bounds its pieces: a piece has at least one character or byte, and a BPE can contain at least every short word. If
these bounds are not enough, a corpus of up to LOOKED_AT pairs is prepared in a temporary folder, which is exact and
takes seconds. For a larger one `prepare` itself decides, before anything is queued.
"""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import ClassVar

from experiments.config import DataConfig
from experiments.data.corpora.pair_corpus import PairCorpus
from experiments.data.encoding.encoded import EncodedCorpus, encoded_digest, open_encoded
from experiments.data.encoding.prepare import prepare
from experiments.errors import UserError
from experiments.identity import digest
from experiments.store.user_cache import UserCache

LOOKED_AT = 200_000  # pairs
WORD = 15  # letters: SentencePiece's longest piece has 16 signs, one of them for the space


@dataclass(frozen=True)
class Lengths:
    """Pieces of the longest sentence, EOS counted: exact, or bounds from above."""

    longest_pair: int
    longest_of: Mapping[str, int]  # by evaluated set


class Longest:
    """Measures of a corpus, remembered by content: the rows of a table share them.

    target_symbols: as in `prepare`; 0: the target is text. root: the folder of prepared corpora.
    """

    _known: ClassVar[dict[tuple[object, ...], Lengths | UserError | None]] = {}

    def __init__(self, corpus: PairCorpus, data: DataConfig, shared: bool, target_symbols: int, root: Path) -> None:
        self._corpus, self._data, self._shared, self._symbols, self._root = corpus, data, shared, target_symbols, root
        self._name = encoded_digest(corpus.training_digest(root), data, shared, target_symbols)
        self._digests = {each: corpus.set_digest(each, root) for each in corpus.sets}

    def lengths(self, tokens: int, positions: int | None) -> Lengths:
        """Longest sentences, exact or bounded within `tokens` and `positions`. Raises UserError as `prepare` does."""
        if self._is_prepared() and (prepared := self._once(self._prepared)) is not None:
            return prepared
        bounds = self._once(self._bounds)
        if bounds is not None and bounds.longest_pair <= tokens:
            longest = max(bounds.longest_pair, *bounds.longest_of.values())
            if positions is None or longest <= positions:
                return bounds
        return self._once(self._exact) or Lengths(0, dict.fromkeys(self._digests, 0))

    def _once(self, look: Callable[[], Lengths | None]) -> Lengths | None:
        key = (look.__name__, self._root, self._name, *self._digests.items())
        if key not in self._known:
            try:
                self._known[key] = look() if look == self._prepared else self._looked_up(look)
            except UserError as error:
                self._known[key] = error
        known = self._known[key]
        if isinstance(known, UserError):
            raise known
        return known

    def _looked_up(self, look: Callable[[], Lengths | None]) -> Lengths | None:
        """From the user's cache, because a tokenizer or the generated corpus takes half a second."""
        key = digest([look.__name__, self._name, sorted(self._digests.items()), metadata.version("sentencepiece")])
        with UserCache("lengths-1") as cache:
            match cache.get(key):
                case [int(longest_pair), dict(longest_of)]:
                    return Lengths(longest_pair, longest_of)
                case []:
                    return None
            found = look()
            cache.put(key, [] if found is None else [found.longest_pair, dict(found.longest_of)])
        return found

    def _is_prepared(self) -> bool:
        """Whether the store already has the corpus and its sets."""
        folder = self._root / self._name
        sets = (folder / "sets" / f"{name}-{digest}" for name, digest in self._digests.items())
        return (folder / "facts.json").exists() and all(place.is_dir() for place in sets)

    def _prepared(self) -> Lengths:
        return self._lengths(open_encoded(self._root, self._name))

    def _exact(self) -> Lengths | None:
        """By preparing the corpus in a temporary folder; None if it is too large for that."""
        if self._corpus.check(self._root)["train"] > LOOKED_AT:
            return None
        with tempfile.TemporaryDirectory(prefix="ablations-corpus-") as folder:
            arguments = (self._corpus, self._data, self._shared, Path(folder), lambda *_: None)
            return self._lengths(prepare(*arguments, target_symbols=self._symbols))

    def _lengths(self, encoded: EncodedCorpus) -> Lengths:
        sets = {name: encoded.longest(name, digest) for name, digest in self._digests.items()}
        return Lengths(encoded.longest("train"), sets)

    def _bounds(self) -> Lengths | None:
        """Bounds from the text; None if it may not give `data.vocab_size` pieces, or no pair may be left."""
        size, most = self._data.vocab_size, self._data.max_pieces
        if self._data.units in ("unigram", "word") and not self._data.sized_by_text:
            return None  # which strings repeat, and how many words are unknown, only the tokenizer counts
        words: tuple[set[str], set[str]] = (set(), set())
        signs: tuple[set[str], set[str]] = (set(), set())
        longest, fits = 0, False
        for pair in islice(self._corpus.read_pairs("train"), LOOKED_AT):
            for side, text in enumerate(pair):
                signs[side].update(text)
                if len(words[side]) < size:
                    words[side].update(filter(_one_piece, text.split(" ")))
            length = self._most_pieces(*pair)
            longest = max(longest, min(length, most))
            fits = fits or (length <= most and all(text.strip() for text in pair))
        if self._shared:
            words, signs = (words[0] | words[1],) * 2, (signs[0] | signs[1],) * 2
        for side in () if self._data.sized_by_text else (0,) if self._shared or self._symbols else (0, 1):
            fits = fits and len(words[side]) >= size > len(signs[side]) + 5  # special symbols, the space
        sets = (
            max((self._most_pieces(*p) for p in self._corpus.read_pairs(name)), default=0) for name in self._digests
        )
        return Lengths(longest, dict(zip(self._digests, sets, strict=True))) if fits else None

    def _most_pieces(self, *texts: str) -> int:
        """A sign for the space before the text, a piece for each character or byte, and EOS."""
        if self._data.units == "byte":
            return max(len(text.encode("utf-8", "replace")) for text in texts) + 2
        return max(map(len, texts)) + 2


def _one_piece(word: str) -> bool:
    """Letters of one script (those with upper and lower case are not mixed within words)."""
    return len(word) <= WORD and word.isalpha() and word.lower() != word.upper()
