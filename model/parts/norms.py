"""Norms over the width of the residual stream: LayerNorm, RMSNorm, ScaleNorm."""

import torch
from torch import Tensor, nn

from model.settings import ModelSettings

NORM_EPSILON = 1e-6  # the value of tensor2tensor; the paper gives none


class ScaleNorm(nn.Module):
    """g · x / ‖x‖ with one trained g, initially √d_model (Nguyen & Salazar 2019, arXiv 1910.05895, section 2.3)."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(d_model**0.5))

    def forward(self, x: Tensor) -> Tensor:
        scaled: Tensor = x * (self.weight / x.norm(dim=-1, keepdim=True).clamp(min=NORM_EPSILON))
        return scaled


def make_norm(config: ModelSettings) -> nn.Module:
    """Return the norm named by `norm_kind`: LayerNorm, RMSNorm (Zhang & Sennrich 2019, arXiv 1910.07467), ScaleNorm."""
    if config.norm_kind == "rms":
        return nn.RMSNorm(config.d_model, eps=NORM_EPSILON)
    if config.norm_kind == "scale":
        return ScaleNorm(config.d_model)
    return nn.LayerNorm(config.d_model, eps=NORM_EPSILON)
