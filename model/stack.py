"""Layers of the encoder and the decoder (section 3.1, figure 1).

Shapes: B sentences, S source, T target, D d_model.
"""

from collections.abc import Callable

from torch import Tensor, nn

from model.config import ModelConfig
from model.parts.dropout import Dropout
from model.sublayers.attention import CrossAttention, SelfAttention
from model.sublayers.feed_forward import FeedForward

NORM_EPSILON = 1e-6  # tensor2tensor's; the paper gives none
Sublayer = Callable[[Tensor], Tensor]


class PostNorm(nn.Module):
    """LayerNorm(x + Dropout(Sublayer(x))), as in the paper (sections 3.1 and 5.4)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.d_model, eps=NORM_EPSILON)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        output: Tensor = self.norm(x + self.dropout(sublayer(x)))
        return output


class PreNorm(nn.Module):
    """x + Dropout(Sublayer(LayerNorm(x))), as in later Transformers; each stack then ends in a LayerNorm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.d_model, eps=NORM_EPSILON)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        output: Tensor = x + self.dropout(sublayer(self.norm(x)))
        return output


RESIDUAL: dict[str, type[nn.Module]] = {"post": PostNorm, "pre": PreNorm}


def final_norm(config: ModelConfig) -> nn.Module:
    """The end of a stack: LayerNorm for norm = "pre"; nothing for "post", where every layer ends in one."""
    return nn.LayerNorm(config.d_model, eps=NORM_EPSILON) if config.norm == "pre" else nn.Identity()


class EncoderLayer(nn.Module):
    """Self-attention, then the feed-forward network."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        residual = RESIDUAL[config.norm]
        self.self_attention = SelfAttention(config)
        self.feed_forward = FeedForward(config)
        self.self_attention_residual = residual(config)
        self.feed_forward_residual = residual(config)

    def forward(self, x_BSD: Tensor, source_bias: Tensor | None) -> Tensor:
        x_BSD = self.self_attention_residual(x_BSD, lambda x: self.self_attention(x, source_bias))
        x_BSD = self.feed_forward_residual(x_BSD, self.feed_forward)
        return x_BSD  # noqa: RET504 - one line per residual


class DecoderLayer(nn.Module):
    """Causal self-attention, attention over the encoder's output, feed-forward network."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        residual = RESIDUAL[config.norm]
        self.self_attention = SelfAttention(config)
        self.cross_attention = CrossAttention(config)
        self.feed_forward = FeedForward(config)
        self.self_attention_residual = residual(config)
        self.cross_attention_residual = residual(config)
        self.feed_forward_residual = residual(config)

    def forward(self, x_BTD: Tensor, memory_BSD: Tensor, source_bias: Tensor | None) -> Tensor:
        """Compute all target positions at once: (B, T, D) → (B, T, D)."""
        keys_values = self.cross_attention.keys_values(memory_BSD)
        return self._sublayers(
            x_BTD,
            lambda x: self.self_attention(x, causal=True),
            lambda x: self.cross_attention(x, keys_values, source_bias),
        )

    def _sublayers(self, x: Tensor, self_attention: Sublayer, cross_attention: Sublayer) -> Tensor:
        x = self.self_attention_residual(x, self_attention)
        x = self.cross_attention_residual(x, cross_attention)
        x = self.feed_forward_residual(x, self.feed_forward)
        return x  # noqa: RET504
