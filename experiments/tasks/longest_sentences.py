"""The lengths, in word pieces, of a corpus's longest sentences.

`ablations plan` needs these lengths before the store has the prepared corpus. A corpus of at most LOOKED_AT pairs is
prepared in a temporary folder. This gives exact lengths and takes seconds. The result is cached for the user. For a
larger corpus, this module returns zeros, and `Task.prepare` checks the lengths later.
"""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from experiments.config.data import DataConfig
from experiments.data.corpora.corpus import Corpus
from experiments.data.encoding.encoded import EncodedCorpus, encoded_digest, open_encoded
from experiments.data.encoding.prepare import prepare
from experiments.errors import UserError
from experiments.identity import digest
from experiments.store.user_cache import UserCache

LOOKED_AT = 50_000  # largest corpus, in training pairs, that is prepared only to measure its lengths


@dataclass(frozen=True)
class Lengths:
    """The lengths of the longest sentences in word pieces, including the end-of-sentence symbol."""

    longest_pair: int  # length of the longest sentence (source or target) in the training set
    longest_of: Mapping[str, int]  # evaluated set → length


_known: dict[tuple[object, ...], Lengths | UserError] = {}  # cache of this process, which the rows of a table share


def longest(corpus: Corpus, data: DataConfig, shared: bool, root: Path) -> Lengths:
    """Return the lengths of a corpus's longest sentences; zeros if the corpus is large and not prepared yet.

    root: the folder of prepared corpora.

    Raises UserError as `prepare` does.
    """
    name = encoded_digest(corpus.training_digest(root), data, shared)
    digests = {each: corpus.set_digest(each, root) for each in corpus.sets}

    def lengths_of(encoded: EncodedCorpus) -> Lengths:
        sets = {each: encoded.longest(each, its_digest) for each, its_digest in digests.items()}
        return Lengths(encoded.longest("train"), sets)

    def measured() -> Lengths:
        """Prepare the corpus in a temporary folder and return its lengths. Return zeros if the corpus is large."""
        if corpus.check(root)["train"] > LOOKED_AT:
            return Lengths(0, dict.fromkeys(digests, 0))
        with tempfile.TemporaryDirectory(prefix="ablations-corpus-") as folder:
            return lengths_of(prepare(corpus, data, shared, Path(folder), lambda *_: None))

    sets = (root / name / "sets" / f"{each}-{its_digest}" for each, its_digest in digests.items())
    prepared = (root / name / "facts.json").exists() and all(place.is_dir() for place in sets)
    key = (prepared, root, name, *digests.items())
    if key not in _known:
        try:
            _known[key] = lengths_of(open_encoded(root, name)) if prepared else _looked_up(name, digests, measured)
        except UserError as error:
            _known[key] = error
    known = _known[key]
    if isinstance(known, UserError):
        raise known
    return known


def _looked_up(name: str, digests: Mapping[str, str], measure: Callable[[], Lengths]) -> Lengths:
    """Return the lengths from the user's cache, or measure and cache them.

    They are cached because a measurement learns a tokenizer, which takes half a second.
    """
    key = digest([name, sorted(digests.items()), metadata.version("sentencepiece")])
    with UserCache("lengths-2") as cache:
        found = cache.get(key)
        if found is None:
            found = asdict(measure())
            cache.put(key, found)
    return Lengths(**found)
