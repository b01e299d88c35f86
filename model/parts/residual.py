"""Residual connections: what surrounds every sub-layer (sections 3.1 and 5.4). Shapes: see stack.py."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from model.config import ModelConfig
from model.parts.dropout import Dropout

NORM_EPSILON = 1e-6  # tensor2tensor's; the paper gives none


def make_norm(config: ModelConfig) -> nn.Module:
    """A norm over the width of the residual stream."""
    return nn.LayerNorm(config.d_model, eps=NORM_EPSILON)


class Residual(nn.Module):
    """Common part: dropout on the sub-layer's output, and the sum. `forward` is for training, `step` for a search.

    A sub-layer is called as sublayer(x, given), or as sublayer.step(x, state, now).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = make_norm(config)
        self.dropout = Dropout(config.dropout)

    def around(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor, sublayer: Callable[[Tensor, Any], Tensor], given: Any) -> Tensor:
        return self.around(x, lambda y: sublayer(y, given))

    def step(self, x_RD: Tensor, sublayer: Any, state: Any, now: Any) -> Tensor:
        return self.around(x_RD, lambda y: sublayer.step(y, state, now))


class PostNorm(Residual):
    """LayerNorm(x + Dropout(Sublayer(x))), as in the paper (sections 3.1 and 5.4)."""

    def around(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        output: Tensor = self.norm(x + self.dropout(sublayer(x)))
        return output


class PreNorm(Residual):
    """x + Dropout(Sublayer(LayerNorm(x))), as in later Transformers; each stack then ends in a LayerNorm."""

    def around(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        output: Tensor = x + self.dropout(sublayer(self.norm(x)))
        return output


RESIDUAL: dict[str, type[Residual]] = {"post": PostNorm, "pre": PreNorm}
