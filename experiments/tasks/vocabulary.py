"""The sizes of vocabularies that the text decides, without a prepared corpus. Imports no torch.

They count what SentencePiece takes as pieces: the tests compare the two.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from experiments.config import DataConfig
from experiments.data.corpora.pair_corpus import PairCorpus
from experiments.data.corpora.text.corpus import TextCorpus
from experiments.data.corpora.text.settings import TextData
from experiments.data.encoding import utf8
from experiments.data.encoding.text import learn_pieces
from experiments.data.encoding.tokenizer import RUNNING_TEXT, in_sample
from experiments.identity import digest
from experiments.store.user_cache import UserCache

# What SentencePiece keeps for itself: these are never pieces; a line with "▅" is not learnt from; "▁" is a space.
_NEVER = set("\x00\x1f")
_SKIPPED = "▅"
_known: dict[str, tuple[int, int]] = {}  # in this process


def sizes_by_text(corpus: PairCorpus, data: DataConfig, shared: bool) -> tuple[int, int]:
    """Pieces of source and target, the special symbols counted. Reads the training text once; its digest names it."""
    if data.units == "byte":
        return utf8.SIZE, utf8.SIZE
    key = digest([corpus.training_digest(), data.units, shared])
    if key not in _known:
        _known[key] = _remembered(key, corpus, data, shared)
    return _known[key]


def size_by_text(corpus: TextCorpus, data: TextData) -> int:
    """Pieces of running text, the special symbols and the bytes counted."""
    if data.units == "byte":
        return utf8.SIZE
    key = digest([corpus.training_digest(), data.units, RUNNING_TEXT])
    if key not in _known:
        with UserCache("vocabularies-1") as cache:
            size = cache.get(key)
            if not isinstance(size, int):
                with tempfile.TemporaryDirectory(prefix="ablations-text-") as folder:
                    size = learn_pieces(corpus, data, Path(folder, "model")).vocab_size
                cache.put(key, size)
        _known[key] = size, size
    return _known[key][0]


def _remembered(key: str, corpus: PairCorpus, data: DataConfig, shared: bool) -> tuple[int, int]:
    with UserCache("vocabularies-1") as cache:
        match cache.get(key):
            case [int(source), int(target)]:
                return source, target
        found = _count(corpus, data, shared)
        cache.put(key, list(found))
    return found


def _count(corpus: PairCorpus, data: DataConfig, shared: bool) -> tuple[int, int]:
    units: tuple[set[str], set[str]] = (set(), set())
    for pair in _sampled(corpus):
        for found, text in zip(units, pair, strict=True):
            if _SKIPPED not in text:
                found.update(text.split(" ") if data.units == "word" else text.replace("▁", " "))
    source, target = (units[0] | units[1],) * 2 if shared else units
    return len(source - _NEVER) + utf8.SPECIAL, len(target - _NEVER) + utf8.SPECIAL


def _sampled(corpus: PairCorpus) -> Iterator[tuple[str, str]]:
    pairs = corpus.check()["train"]
    return (pair for index, pair in enumerate(corpus.read_pairs("train")) if in_sample(index, pairs))
