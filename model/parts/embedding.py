"""Embeddings, tied with the softmax (section 3.4). Shapes: B sentences, T positions, D d_model, W vocabulary."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROW_MULTIPLE = 64  # matrix kernels are faster for multiples of it


class Embedding(nn.Module):
    """A vector per piece, times √d_model at look-up. Rows beyond `vocab_size` pad the matrix to ROW_MULTIPLE.

    Padding rows are zero and never looked up. `logits` leaves out their columns, so they get no gradient.
    """

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        rows = -(-vocab_size // ROW_MULTIPLE) * ROW_MULTIPLE
        self.vocab_size = vocab_size
        self.scale = d_model**0.5
        self.weight = nn.Parameter(torch.empty(rows, d_model))

    def forward(self, pieces_BT: Tensor) -> Tensor:
        """(B, T) piece ids → (B, T, D)."""
        embedded_BTD: Tensor = F.embedding(pieces_BT, self.weight) * self.scale
        return embedded_BTD

    def at(self, pieces_R: Tensor, position_D: Tensor) -> Tensor:
        """(R,) piece ids → (R, D), with `position_D` added: for one step of a search, in two operations."""
        return torch.add(position_D, F.embedding(pieces_R, self.weight), alpha=self.scale)

    def logits(self, hidden_D: Tensor) -> Tensor:
        """(…, D) → (…, W) over exactly vocab_size pieces: the pre-softmax product with the same matrix, no bias."""
        return F.linear(hidden_D, self.weight)[..., : self.vocab_size]
