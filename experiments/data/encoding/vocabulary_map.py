"""Which target pieces a source sentence may produce: a vocabulary map, or shortlist (Jean et al. 2015, arXiv 1412.2007,
section 3.3). Learnt from the training pairs, once per encoded corpus, and kept beside them:

<root>/<digest>/vocabulary-map-<format>/best.npy        a row per source piece: target pieces, most probable first
                                       /frequent.npy    the most frequent target pieces
                                       /facts.json      sizes and hashes of both

It depends on no setting, so evaluations with maps of different sizes read the same files. Imports no torch.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.config import ALWAYS_MAPPED, MOST_MAPPED
from experiments.data.encoding import model1
from experiments.data.encoding.encoded import EncodedCorpus, check_files
from experiments.data.encoding.pairs import piece_dtype
from experiments.data.encoding.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from experiments.errors import Damaged, explain_os_errors
from experiments.store.durable import make_once
from experiments.store.sealed import describe_files, read_json, write_json

NAME = "vocabulary-map-1"  # with the format of the files, and of how they are learnt
SPECIAL = sorted((PAD_ID, BOS_ID, EOS_ID, UNK_ID))


class VocabularyMap(NamedTuple):
    """The target pieces of each source piece (sources, size), and those of every sentence."""

    best: NDArray[np.integer[Any]]
    frequent: NDArray[np.integer[Any]]

    def pieces(self, source: Sequence[int]) -> NDArray[np.int64]:
        """The pieces that a sentence's translation may contain, ascending, special symbols among them."""
        found = np.concatenate([SPECIAL, self.frequent, self.best[np.asarray(source, np.int64)].ravel()])
        return np.unique(found).astype(np.int64)


def stored_map(encoded: EncodedCorpus) -> Path:
    """The folder of the corpus's map, which is learnt if that was not done yet.

    May be interrupted, and called by several processes at once. Raises UserError for a full or read-only disk.
    """
    folder = encoded.folder / NAME
    with explain_os_errors(f"store the vocabulary map of {encoded.folder}"):
        make_once(folder, lambda made: _learn(encoded, made))
    return folder


def read_map(folder: Path, size: int) -> VocabularyMap:
    """The stored map, with `size` target pieces for each source piece. Raises Damaged."""
    redo = f"Delete {folder}: the next use creates it again."
    facts = read_json(folder / "facts.json")
    if facts is None:
        raise Damaged(f"{folder} has no facts.json. {redo}")
    check_files(folder, facts["files"], redo)
    best, frequent = (np.load(folder / f"{name}.npy") for name in ("best", "frequent"))
    return VocabularyMap(best[:, :size], frequent)


def _learn(encoded: EncodedCorpus, folder: Path) -> None:
    sizes = encoded.facts["vocab_size"]
    dtype = piece_dtype(sizes["target"])
    best = model1.learn(encoded.train, sizes["target"]).best(MOST_MAPPED, sizes["source"], EOS_ID)
    counts = np.bincount(encoded.train.target.pieces, minlength=sizes["target"])
    frequent = np.argsort(-counts, kind="stable")[:ALWAYS_MAPPED]
    np.save(folder / "best.npy", best.astype(dtype), allow_pickle=False)
    np.save(folder / "frequent.npy", frequent.astype(dtype), allow_pickle=False)
    write_json(folder / "facts.json", {"files": describe_files(folder)})
