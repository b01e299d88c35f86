"""Compatibility functions, which compare a query with a key.

Section 3.2.1 describes "the two most commonly used attention functions": additive and dot-product attention.

Shapes: B sentences, H heads, Q queries, M memory positions, P = Q·M pairs, K d_k.
"""

import torch
from torch import Tensor, nn

from model.settings import ModelSettings


class ScaledDot(nn.Module):
    """q·k / √d_k (equation 1), and the base class of the other compatibility functions.

    Relative positions are vectors added to the keys: a_QMK for query Q and key M (Shaw 2018, equation 4).
    """

    fused = True  # whether torch's kernels can compute the scores from `prepared` queries

    def __init__(self, config: ModelSettings) -> None:
        super().__init__()

    def prepared(self, q_BHQK: Tensor) -> Tensor:
        """Return transformed queries. Their product with the keys, divided by √d_k, is the score."""
        return q_BHQK

    def forward(self, q_BHQK: Tensor, k_BHMK: Tensor, a_QMK: Tensor | None = None) -> Tensor:
        """Return the scores (B, H, Q, M)."""
        q_BHQK = self.prepared(q_BHQK)
        scores_BHQM = q_BHQK @ k_BHMK.mT
        if a_QMK is not None:
            scores_BHQM = scores_BHQM + torch.einsum("bhqk,qmk->bhqm", q_BHQK, a_QMK.to(q_BHQK.dtype))
        scaled_BHQM: Tensor = scores_BHQM * q_BHQK.shape[-1] ** -0.5
        return scaled_BHQM

    def initialise(self) -> None:
        """Draw the weights, if the class has any."""


class Dot(ScaledDot):
    """q·k without scaling.

    The variance of q·k grows with d_k, which pushes the softmax "into regions where it has extremely small gradients".
    The queries are multiplied by √d_k, because the kernels divide by √d_k. For d_k = 16, 64, 256 this is exact.
    """

    def prepared(self, q_BHQK: Tensor) -> Tensor:
        prepared_BHQK: Tensor = q_BHQK * q_BHQK.shape[-1] ** 0.5
        return prepared_BHQK


class Bilinear(ScaledDot):
    """qᵀ W k with a matrix per head, without scaling: "general" of Luong 2015 (arXiv 1508.04025, section 3.1)."""

    def __init__(self, config: ModelSettings) -> None:
        super().__init__(config)
        self.weight = nn.Parameter(torch.empty(config.num_heads, config.d_k, config.d_k))

    def prepared(self, q_BHQK: Tensor) -> Tensor:
        prepared_BHQK: Tensor = (q_BHQK @ self.weight) * q_BHQK.shape[-1] ** 0.5
        return prepared_BHQK

    def initialise(self) -> None:
        """Draw each head's matrix from the Glorot uniform distribution."""
        for weight_KK in self.weight:
            nn.init.xavier_uniform_(weight_KK)


class Additive(ScaledDot):
    """vᵀ tanh(W x_q + U x_k) with a vector v per head (Bahdanau 2015, arXiv 1409.0473, appendix A.1.2).

    W and U are the projections to queries and keys. The tanh of every pair is stored, so memory grows with Q·M·d_k.
    """

    fused = False

    def __init__(self, config: ModelSettings) -> None:
        super().__init__(config)
        self.weight = nn.Parameter(torch.empty(config.num_heads, config.d_k))

    def forward(self, q_BHQK: Tensor, k_BHMK: Tensor, a_QMK: Tensor | None = None) -> Tensor:
        """Return the scores (B, H, Q, M)."""
        # Make both contiguous, so that the matrix product does not copy the largest tensor.
        q_BHQ1K, k_BHQMK = q_BHQK.contiguous().unsqueeze(3), k_BHMK.contiguous().unsqueeze(2)
        if a_QMK is not None:
            k_BHQMK = k_BHQMK + a_QMK.to(k_BHMK.dtype)
        hidden_BHQMK = (q_BHQ1K + k_BHQMK).tanh()
        scores_BHP1 = hidden_BHQMK.flatten(2, 3) @ self.weight.unsqueeze(2)
        return scores_BHP1.view(hidden_BHQMK.shape[:4])

    def initialise(self) -> None:
        """Draw each head's vector from the Glorot uniform distribution with fan_in = d_k and fan_out = 1."""
        bound = (6 / (self.weight.shape[1] + 1)) ** 0.5
        nn.init.uniform_(self.weight, -bound, bound)


COMPATIBILITY: dict[str, type[ScaledDot]] = {
    "scaled_dot": ScaledDot,
    "dot": Dot,
    "additive": Additive,
    "bilinear": Bilinear,
}
