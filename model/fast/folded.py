"""Cross-attention to a single sentence in three operations instead of eight.

A head's scores are (x W^Q) kᵀ = x (k W^Qᵀ)ᵀ and its part of the output is (p v) W^O = p (v W^O). Keys and values are
computed once per sentence, so W^Q and W^O can be multiplied into them at the same time. All heads are then one product.
It reads H · S rows of the model's width instead of the H · d_k rows of W^Q and W^O: fewer for a short sentence.

Shapes: R beams, H heads, S source, M = H · S, D d_model; keys and values end in their width n (d_k, d_v).
"""

import torch
from torch import Tensor

from model.sublayers.attention import CrossAttention


class FoldedAttention:
    """Equation 1 with its projections, for the keys and values (H, S, n) of one sentence: (R, D) → (R, D)."""

    def __init__(self, attention: CrossAttention, keys_HSn: Tensor, values_HSn: Tensor) -> None:
        self.heads = heads = attention.num_heads
        scale = attention.d_k**-0.5
        query_HnD = attention.query.weight.view(heads, attention.d_k, -1) * scale
        query_bias_Hn1 = attention.query.bias.view(heads, attention.d_k, 1) * scale
        output_HnD = attention.output.weight.mT.reshape(heads, attention.d_v, -1)
        self.keys_DM = torch.bmm(keys_HSn, query_HnD).flatten(0, 1).mT
        self.bias_M = torch.bmm(keys_HSn, query_bias_Hn1).flatten()
        self.values_MD = torch.bmm(values_HSn, output_HnD).flatten(0, 1)
        self.output_bias_D = attention.output.bias

    def __call__(self, x_RD: Tensor) -> Tensor:
        scores_RM = torch.addmm(self.bias_M, x_RD, self.keys_DM)
        weights_RHS = scores_RM.view(x_RD.shape[0], self.heads, -1).softmax(-1)
        return torch.addmm(self.output_bias_D, weights_RHS.flatten(1), self.values_MD)
