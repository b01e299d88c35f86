"""Residual connections, which surround every sub-layer (sections 3.1 and 5.4), and their norms.

Shapes: see model/stack.py.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from model.architecture import deepnorm
from model.parts.dropout import Dropout
from model.settings import ModelSettings
from model.specs import Side


class Residual(nn.Module):
    """Common part: dropout on the sub-layer's output, and the sum. `forward` is for training, `step` for a search.

    A sub-layer is called as sublayer(x, inputs), or as sublayer.step(x, state, now). `residual_scale`: a factor on the
    sum, as ConvS2S's √0.5 (Gehring 2017, arXiv 1705.03122, section 3.5); "deepnorm": α·x + f(x); "rezero": x + a·f(x)
    with a trained a, 0 at first (Bachlechner 2020, arXiv 2003.04887); "fast_forward": W [x; f(x)] (Zhou 2016, arXiv
    1606.04199, section 3.1, where f's first product takes the place of x).
    """

    def __init__(self, config: ModelSettings, side: Side) -> None:
        super().__init__()
        if config.norm != "none":
            self.norm = make_norm(config)
        self.dropout = Dropout(config.dropout)
        self.residual, self.factor = config.residual, config.residual_scale
        if self.factor == "deepnorm":
            self.alpha, _ = deepnorm(config, side)
        if self.factor == "rezero" and self.residual:
            self.gate = nn.Parameter(torch.zeros(()))
        if self.factor == "fast_forward" and self.residual:
            self.join = nn.Linear(2 * config.d_model, config.d_model, bias=False)

    def add(self, x: Tensor, output: Tensor) -> Tensor:
        """The sum of a sub-layer's input and its output."""
        output = self.dropout(output)
        if not self.residual:
            return output
        if self.factor == 1:
            return x + output
        if self.factor == "deepnorm":
            return x * self.alpha + output
        if self.factor == "rezero":
            return x + self.gate * output
        if self.factor == "fast_forward":
            joined: Tensor = self.join(torch.cat([x, output], -1))
            return joined
        scaled: Tensor = (x + output) * self.factor
        return scaled

    def around(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """The sub-layer's input → the next one's."""
        return self.add(x, sublayer(x))

    def forward(self, x: Tensor, sublayer: Callable[[Tensor, Any], Tensor], inputs: Any) -> Tensor:
        return self.around(x, lambda y: sublayer(y, inputs))

    def step(self, x_RD: Tensor, sublayer: Any, state: Any, now: Any) -> Tensor:
        return self.around(x_RD, lambda y: sublayer.step(y, state, now))


class PostNorm(Residual):
    """Norm(x + Dropout(Sublayer(x))), as in the paper (sections 3.1 and 5.4)."""

    def around(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        output: Tensor = self.norm(self.add(x, sublayer(x)))
        return output


class PreNorm(Residual):
    """x + Dropout(Sublayer(Norm(x))), as in later Transformers; each stack then ends in a norm."""

    def around(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return self.add(x, sublayer(self.norm(x)))


class SandwichNorm(Residual):
    """x + Dropout(Norm(Sublayer(Norm(x)))) (Ding 2021, CogView, arXiv 2105.13290, section 2.4)."""

    def __init__(self, config: ModelSettings, side: Side) -> None:
        super().__init__(config, side)
        self.norm_after = make_norm(config)

    def around(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return self.add(x, self.norm_after(sublayer(self.norm(x))))


RESIDUAL: dict[str, type[Residual]] = {"post": PostNorm, "pre": PreNorm, "sandwich": SandwichNorm, "none": Residual}


# --- Norms over the width of the residual stream


NORM_EPSILON = 1e-6  # tensor2tensor's; the paper gives none


class ScaleNorm(nn.Module):
    """g · x / ‖x‖ with one trained g, √d_model at first (Nguyen & Salazar 2019, arXiv 1910.05895, section 2.3)."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(d_model**0.5))

    def forward(self, x: Tensor) -> Tensor:
        scaled: Tensor = x * (self.weight / x.norm(dim=-1, keepdim=True).clamp(min=NORM_EPSILON))
        return scaled


def make_norm(config: ModelSettings) -> nn.Module:
    """The norm that `norm_kind` names: LayerNorm, RMSNorm (Zhang & Sennrich 2019, arXiv 1910.07467) or ScaleNorm."""
    if config.norm_kind == "rms":
        return nn.RMSNorm(config.d_model, eps=NORM_EPSILON)
    if config.norm_kind == "scale":
        return ScaleNorm(config.d_model)
    return nn.LayerNorm(config.d_model, eps=NORM_EPSILON)
