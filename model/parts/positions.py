"""What tells positions apart (section 3.5, row (E)). Shapes: B sentences, T positions, D d_model."""

import torch
from torch import Tensor, nn

from model.config import ModelConfig


def sinusoids(length: int, d_model: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i+1) = cos(the same); (length, D) in fp32.

    Computed in fp64, as fp32 angles of late positions are off in the third digit. tensor2tensor puts all sines
    before all cosines, over d_model/2 − 1: a permutation of the columns, nearly.
    """
    position_T1 = torch.arange(length, dtype=torch.float64).unsqueeze(1)
    exponent = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
    angle = position_T1 / 10000.0**exponent
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1).to(torch.float32)


class SinusoidalPositions(nn.Module):
    """Fixed sinusoids; input of any length, as those beyond `max_length` are computed when they come."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.table_TD: Tensor
        self.register_buffer("table_TD", sinusoids(config.max_length, config.d_model), persistent=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """x plus the positions 0, 1 …"""
        end = x_BTD.shape[1]
        table_TD = self.table_TD
        if end > table_TD.shape[0]:
            table_TD = sinusoids(end, x_BTD.shape[2]).to(x_BTD)
        return x_BTD + table_TD[:end]


class LearnedPositions(nn.Module):
    """A trained vector per position, as in ConvS2S, which the paper cites for row (E).

    Drawn and scaled like the word embeddings, so that word and position start equally strong.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.max_length, config.d_model))
        self.scale = config.d_model**0.5

    def forward(self, x_BTD: Tensor) -> Tensor:
        """x plus the positions 0, 1 …; raises ValueError beyond the table."""
        end, rows = x_BTD.shape[1], self.weight.shape[0]
        if end > rows:
            raise ValueError(
                f"a sequence of {end} pieces, and the learned position table has max_length = {rows} rows: "
                f"train with model.max_length = {end} or more, leave longer sequences out, or take "
                'positions = "sinusoidal"'
            )
        positioned_BTD: Tensor = x_BTD + self.weight[:end] * self.scale
        return positioned_BTD


class NoPositions(nn.Module):
    """Nothing added: the encoder sees a bag of words, the decoder only what its causal mask betrays."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()

    def forward(self, x_BTD: Tensor) -> Tensor:
        return x_BTD


POSITIONAL: dict[str, type[nn.Module]] = {
    "sinusoidal": SinusoidalPositions,
    "learned": LearnedPositions,
    "none": NoPositions,
}
