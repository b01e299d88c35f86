"""Embeddings, tied with the softmax (section 3.4).

Shapes: B sentences, T positions, R rows of a search, D width, W vocabulary, C classes of a hierarchical softmax, n
pieces of a class.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.settings import class_sizes

ROW_MULTIPLE = 64  # matrix kernels are faster if the number of rows is a multiple of 64


class Embedding(nn.Module):
    """A matrix with one vector per word piece. A look-up multiplies the vectors by `scale` (default: √width).

    Rows beyond `vocab_size` pad the matrix to a multiple of ROW_MULTIPLE. These rows are zero and are never looked up.
    `logits` leaves out the logits of these rows, so the rows get no gradient. With fixnorm, vectors have length 1 in
    the look-up and in the softmax (Nguyen & Chiang 2018; Nguyen & Salazar 2019, arXiv 1910.05895, section 2.3).
    """

    def __init__(self, vocab_size: int, width: int, scale: float | None = None, *, fixnorm: bool = False) -> None:
        super().__init__()
        rows = -(-vocab_size // ROW_MULTIPLE) * ROW_MULTIPLE
        self.vocab_size = vocab_size
        self.scale = width**0.5 if scale is None else scale
        self.fixnorm = fixnorm
        self.weight = nn.Parameter(torch.empty(rows, width))

    def forward(self, pieces_BT: Tensor) -> Tensor:
        """Look up the vectors of piece ids: (B, T) → (B, T, D)."""
        embedded_BTD = F.embedding(pieces_BT, self.weight)
        if self.fixnorm:
            embedded_BTD = F.normalize(embedded_BTD, dim=-1)
        scaled_BTD: Tensor = embedded_BTD * self.scale
        return scaled_BTD

    def at(self, pieces_R: Tensor, position_D: Tensor) -> Tensor:
        """Look up the vectors of piece ids and add `position_D`: (R,) → (R, D).

        The quick search calls this method, because it takes only two operations. The method does not apply fixnorm.
        """
        return torch.add(position_D, F.embedding(pieces_R, self.weight), alpha=self.scale)

    @property
    def matrix(self) -> Tensor:
        """The softmax's matrix (rows, D)."""
        return F.normalize(self.weight, dim=-1) if self.fixnorm else self.weight

    def logits(self, hidden_D: Tensor) -> Tensor:
        """Return the logits of the vocab_size pieces: (…, D) → (…, W).

        The logits are the product of the hidden states with the embedding matrix, without a bias.
        """
        return F.linear(hidden_D, self.matrix)[..., : self.vocab_size]

    def initialise(self) -> None:
        """Draw the vectors from N(0, 1/√width), and set the padding rows to 0.

        With fixnorm, draw the vectors from U(±0.01), as in the authors' code.
        """
        rows = self.weight[: self.vocab_size]
        if self.fixnorm:
            nn.init.uniform_(rows, -0.01, 0.01)
        else:
            nn.init.normal_(rows, std=self.weight.shape[1] ** -0.5)
        nn.init.zeros_(self.weight[self.vocab_size :])


class Classes(nn.Module):
    """A hierarchical softmax of two levels: P(piece) = P(class) · P(piece | class), with √W classes of √W pieces.

    Word classes were proposed by Goodman (2001, arXiv cs/0108006); Morin & Bengio (2005) use a binary tree. Each class
    holds consecutive pieces of the vocabulary. The vocabulary lists pieces in the order in which the tokenizer learned
    them. P(piece | class) uses the vectors of the full softmax.
    """

    def __init__(self, width: int, vocab_size: int) -> None:
        super().__init__()
        self.size, count = class_sizes(vocab_size)
        self.output = nn.Linear(width, count, bias=False)

    def log_probs(self, hidden_D: Tensor, logits_W: Tensor) -> Tensor:
        """Return log P of every piece, (…, W). logits_W: products of the hidden states with the pieces' vectors."""
        wide = torch.promote_types(logits_W.dtype, torch.float32)
        classes_C = self.output(hidden_D).log_softmax(-1, dtype=wide)
        places = classes_C.shape[-1] * self.size
        padded = F.pad(logits_W.to(wide), (0, places - logits_W.shape[-1]), value=-math.inf)
        inside_Cn = torch.unflatten(padded, -1, (-1, self.size)).log_softmax(-1)
        log_prob_W: Tensor = (classes_C.unsqueeze(-1) + inside_Cn).flatten(-2)[..., : logits_W.shape[-1]]
        return log_prob_W
