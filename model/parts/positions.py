"""Positions that are added to the embeddings (section 3.5, row (E)).

Shapes: B sentences, T positions, D d_model. distances.py has the position encodings inside self-attention.
"""

import torch
from torch import Tensor, nn

from model.settings import ModelSettings


def sinusoids(length: int, d_model: int) -> Tensor:
    """Return PE(pos, 2i) = sin(a), PE(pos, 2i+1) = cos(a) with a = pos / 10000^(2i / d_model), (length, D) in fp32.

    The angles are computed in fp64, because fp32 angles of late positions are wrong in the third digit. tensor2tensor
    puts all sines before all cosines and divides by d_model/2 − 1. Its columns are almost a permutation of the columns
    here.
    """
    position_T1 = torch.arange(length, dtype=torch.float64).unsqueeze(1)
    exponent = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
    angle = position_T1 / 10000.0**exponent
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1).to(torch.float32)


class SinusoidalPositions(nn.Module):
    """Fixed sinusoids for inputs of any length. Sinusoids beyond `max_length` are computed when they are needed."""

    def __init__(self, config: ModelSettings) -> None:
        super().__init__()
        self.table_TD: Tensor
        self.register_buffer("table_TD", sinusoids(config.max_length, config.d_model), persistent=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return x (B, T, D) plus the vectors of positions 0, 1, …"""
        end = x_BTD.shape[1]
        table_TD = self.table_TD
        if end > table_TD.shape[0]:
            table_TD = sinusoids(end, x_BTD.shape[2]).to(x_BTD)
        return x_BTD + table_TD[:end]


class LearnedPositions(nn.Module):
    """A trained vector per position, as in ConvS2S, which the paper cites for row (E).

    The vectors are initialised and scaled like the piece embeddings, so that both terms of the sum start with equal
    weight.
    """

    def __init__(self, config: ModelSettings) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.max_length, config.d_model))
        self.scale = config.d_model**0.5

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return x (B, T, D) plus the vectors of positions 0, 1, …

        Raises ValueError for a sequence that is longer than the table.
        """
        end, rows = x_BTD.shape[1], self.weight.shape[0]
        if end > rows:
            raise ValueError(
                f"a sequence has {end} pieces, but the learned position table has max_length = {rows} rows: "
                f"train with model.max_length = {end} or more, leave out longer sequences, or use "
                'positions = "sinusoidal"'
            )
        positioned_BTD: Tensor = x_BTD + self.weight[:end] * self.scale
        return positioned_BTD


class NoPositions(nn.Module):
    """Return the embeddings unchanged.

    If attention does not use positions either, the encoder sees a bag of words, and the decoder can infer the order
    only from the causal mask.
    """

    def __init__(self, config: ModelSettings) -> None:
        super().__init__()

    def forward(self, x_BTD: Tensor) -> Tensor:
        return x_BTD


POSITIONAL: dict[str, type[nn.Module]] = {
    "sinusoidal": SinusoidalPositions,
    "learned": LearnedPositions,
    "none": NoPositions,
    "relative": NoPositions,
    "bias": NoPositions,
    "alibi": NoPositions,
    "rotary": NoPositions,
}
