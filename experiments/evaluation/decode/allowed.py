"""The pieces that the sentences of a batch may produce, where a vocabulary map restricts them.

The model computes the scores of all pieces that any of the sentences may produce; for each sentence the others get −inf
before the softmax. So its probabilities are those of its own pieces, whatever sentences are beside it.

Shapes: B sentences, U pieces, C candidates.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.data.encoding.tokenizer import PAD_ID
from model.protocol import SearchState

COLUMNS = 512  # U is a multiple of it: oneDNN builds a kernel for every shape of a product. 5 % faster than 128

# Of one sentence: ascending. Every sentence has the special symbols, so these keep their numbers.
Pieces = NDArray[np.integer[Any]]


class Allowed:
    """The pieces of a batch, ascending; then PAD, which fills the last columns and is blocked for all."""

    def __init__(self, of_sentences: Sequence[Pieces], like: Tensor) -> None:
        pieces_U = np.unique(np.concatenate(of_sentences))
        bias_BU = np.full((len(of_sentences), -(-len(pieces_U) // COLUMNS) * COLUMNS), -np.inf, np.float32)
        for row, pieces in zip(bias_BU, of_sentences, strict=True):
            row[np.searchsorted(pieces_U, pieces)] = 0
        pieces_U = np.pad(pieces_U, (0, bias_BU.shape[1] - len(pieces_U)), constant_values=PAD_ID)
        self.pieces_U = torch.from_numpy(pieces_U).to(like.device)
        self.bias_BU = torch.from_numpy(bias_BU).to(like)

    def restrict(self, state: SearchState) -> None:
        state.restrict(self.pieces_U, self.bias_BU)

    def pieces(self, token_BC: Tensor) -> Tensor:
        """Candidates by their place among these pieces → by their number in the vocabulary."""
        return self.pieces_U[token_BC]
