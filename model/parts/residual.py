"""The residual connections and norms around every sub-layer (sections 3.1 and 5.4).

Shapes: R rows of a search, D d_model.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from model import grammar
from model.parts.dropout import Dropout
from model.parts.norms import make_norm
from model.settings import SIDES, ModelSettings, Side


class Residual(nn.Module):
    """x + Dropout(Sublayer(x)), without a norm, and the base class of the connections with norms.

    `forward` computes whole sequences with sublayer(x, inputs); `step` computes one position with
    sublayer.step(x, state, now). `residual_scale` is a factor on the sum, such as √0.5 in ConvS2S (Gehring 2017, arXiv
    1705.03122, section 3.5), or the name of a rule:

    - "deepnorm": α·x + f(x).
    - "rezero": x + a·f(x) with a trained a that starts at 0 (Bachlechner 2020, arXiv 2003.04887).
    - "fast_forward": W [x; f(x)] (Zhou 2016, arXiv 1606.04199, section 3.1). In the paper, the first product inside f
      takes the place of x.
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
        """Return the sum of a sub-layer's input and its output, (…, D)."""
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
        """Map the input of a sub-layer to the input of the next sub-layer: (…, D) → (…, D)."""
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


def deepnorm(config: ModelSettings, side: Side) -> tuple[float, float]:
    """Return DeepNorm's α, the factor on x, and β, the factor on the initial weights.

    The formulas for N encoder layers and M decoder layers are in figure 2 of Wang 2022, arXiv 2203.00555. `config` may
    be the settings of one sub-layer, including those that the layer line sets in brackets.
    """
    lines = [grammar.layers(grammar.parse(getattr(config, one)), config.layers_of(one)) for one in SIDES]
    encoder, decoder = (len(list(layers)) for layers in lines)
    if not encoder:
        return (2 * decoder) ** 0.25, (8 * decoder) ** -0.25
    if side == "decoder":
        return (3 * decoder) ** 0.25, (12 * decoder) ** -0.25
    depth = (encoder**4 * decoder) ** (1 / 16)
    return 0.81 * depth, 0.87 / depth
