"""The settings of a network. This module checks each setting alone; config.py checks combinations. Imports no torch."""

import math
from typing import Literal

from pydantic import Field

from model.strict import StrictModel

Side = Literal["encoder", "decoder"]
SIDES: tuple[Side, ...] = ("encoder", "decoder")


class ModelSettings(StrictModel):
    """The columns of Table 3 and further settings, each with its default and meaning.

    Every default is the value of the base model of "Attention Is All You Need" (section 3, Table 3).
    """

    num_layers: int = Field(6, ge=1, description="layers of the encoder and of the decoder (N)")
    d_model: int = Field(512, ge=1, description="width of the residual stream (d_model)")
    d_ff: int = Field(2048, ge=1, description="inner width of the feed-forward network (d_ff)")
    num_heads: int = Field(8, ge=1, description="attention heads (h)")
    d_k: int = Field(64, ge=1, description="width of a query and a key, per head (d_k)")
    d_v: int = Field(64, ge=1, description="width of a value, per head (d_v)")
    dropout: float = Field(
        0.1, ge=0, lt=1, description="dropout rate of sub-layer outputs and of embedding + position (P_drop)"
    )
    attention_dropout: float = Field(
        0.0, ge=0, lt=1, description="dropout rate of attention weights; the paper's base has none"
    )
    activation_dropout: float = Field(
        0.0, ge=0, lt=1, description="dropout rate after the activation; the paper has none"
    )
    positions: Literal["sinusoidal", "learned", "none", "relative", "bias", "alibi", "rotary"] = Field(
        "sinusoidal", description="encoding of positions (section 3.5; sources in model/parts)"
    )
    max_length: int = Field(
        1024, ge=1, le=10_000_000, description="rows of the table of learned positions; longer input is refused"
    )
    norm: Literal["post", "pre", "sandwich", "none"] = Field(
        "post",
        description="place of the norms: after the residual sum, before the sub-layer, on both sides of it, or nowhere",
    )
    shared_vocabulary: bool = Field(
        True, description="one matrix for source, target and softmax; if false, target and softmax share one"
    )
    # Add new settings at the end: records and listings use this order.
    encoder: str = Field("N * (self_attention, feed_forward)", description="layers of the encoder; N is num_layers")
    decoder: str = Field(
        "N * (self_attention, cross_attention, feed_forward)", description="layers of the decoder; N is num_layers"
    )
    encoder_layers: int | None = Field(None, ge=1, description="N of the encoder alone; num_layers if unset")
    decoder_layers: int | None = Field(None, ge=1, description="N of the decoder alone; num_layers if unset")
    compatibility: Literal["scaled_dot", "dot", "additive", "bilinear"] = Field(
        "scaled_dot", description="how a query is compared with a key (section 3.2.1)"
    )
    window: int | None = Field(
        None,
        ge=1,
        description="self-attention reads window / 2 positions on either side (section 4); all positions if unset",
    )
    kv_heads: int | None = Field(
        None, ge=1, description="number of heads of keys and values, shared by heads of queries; num_heads if unset"
    )
    qk_norm: bool = Field(False, description="RMSNorm on queries and keys")
    attention_gate: bool = Field(False, description="a sigmoid gate on the output of each head")
    bias: bool = Field(True, description="biases in the matrices of sub-layers")
    position_clip: int = Field(16, ge=0, description="relative positions: distances are clipped to this (k)")
    position_keys: bool = Field(True, description="relative positions in the keys")
    position_values: bool = Field(True, description="relative positions in the values")
    position_buckets: int = Field(32, ge=2, description="position bias: number of buckets of distances")
    position_distance: int = Field(128, ge=1, description="position bias: larger distances share one bucket")
    position_shared: bool = Field(True, description="position bias: one table for all layers of a stack")
    rotary_share: float = Field(1.0, gt=0, le=1, description="share of a head's width that rotary positions rotate")
    activation: Literal[
        "relu",
        "gelu",
        "swish",
        "relu2",
        "elu",
        "selu",
        "sigmoid",
        "softplus",
        "glu",
        "bilinear",
        "reglu",
        "geglu",
        "swiglu",
    ] = Field(
        "relu", description="activation of the feed-forward network; the last five are gated and have a third matrix"
    )
    norm_kind: Literal["layer", "rms", "scale"] = Field(
        "layer", description="kind of norm: LayerNorm, RMSNorm or ScaleNorm"
    )
    fixnorm: bool = Field(False, description="embeddings of length 1, in the look-up and in the softmax")
    residual: bool = Field(True, description="residual connections around the sub-layers")
    residual_scale: float | Literal["deepnorm", "rezero", "fast_forward"] = Field(
        1.0, description="factor on the residual sum, or a rule that weights its two terms"
    )
    embedding_norm: bool = Field(False, description="a norm on embedding + position")
    embedding_scale: float | None = Field(
        None, gt=0, description="factor on the embeddings; the square root of their width if unset"
    )
    tying: Literal["all", "decoder", "inputs", "none"] = Field(
        "all",
        description="which share one matrix: all (source, target, softmax); decoder (target, softmax); inputs (source, "
        "target); none",
    )
    embedding_size: int | None = Field(
        None,
        ge=1,
        description="width of factorised embeddings; d_model if unset. With tying = inputs, the softmax has d_model",
    )
    layer_groups: int | None = Field(
        None,
        ge=1,
        description="number of groups of layers that share weights, per stack; 1: all layers; no sharing if unset",
    )
    layer_drop: float = Field(0.0, ge=0, lt=1, description="probability that a training step leaves out a layer")

    memory_embeddings: bool = Field(False, description="the decoder reads the encoder's output plus its input")
    layer_groups_in: Literal["both", "encoder", "decoder"] = Field(
        "both", description="stacks whose layers share weights within layer_groups"
    )
    softmax: Literal["full", "sampled", "hierarchical"] = Field(
        "full",
        description="softmax in training: over all pieces, over drawn pieces, or by classes; exact in evaluation",
    )
    softmax_samples: int = Field(1024, ge=2, description="pieces drawn for a micro-batch (softmax = sampled)")

    @property
    def longest(self) -> int | None:
        """The length of the longest sequence that the network accepts, including EOS; None if there is no limit."""
        return self.max_length if self.positions == "learned" else None

    def layers_of(self, side: Side) -> int:
        """Return the value of N in the line of the encoder or the decoder."""
        own = self.encoder_layers if side == "encoder" else self.decoder_layers
        return own or self.num_layers


def class_sizes(vocab_size: int) -> tuple[int, int]:
    """Return the number of pieces per class and the number of classes of a hierarchical softmax.

    Both numbers are about √vocab_size. No class is empty.
    """
    size = math.isqrt(max(0, vocab_size - 1)) + 1
    return size, -(-vocab_size // size)
