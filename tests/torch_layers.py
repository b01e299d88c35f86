"""Build torch's own encoder and decoder layers with our weights, as a reference for our layers."""

import torch
from torch import Tensor, nn

from model.layers.attention.multi_head import CrossAttention, SelfAttention
from model.parts.norms import NORM_EPSILON
from model.stack import Layer


@torch.no_grad()
def torch_encoder_layer(ours: Layer, norm: str = "post") -> nn.TransformerEncoderLayer:
    """Return torch's encoder layer with our weights, in training mode.

    In eval mode, torch uses a fast path with different code. Without dropout, both modes give the same numbers.
    """
    theirs = nn.TransformerEncoderLayer(**_sizes(ours, norm))
    _copy_self(ours.self_attention, theirs.self_attn)
    _copy_feed_forward(ours.feed_forward, theirs)
    theirs.norm1.load_state_dict(ours.self_attention_residual.norm.state_dict())
    theirs.norm2.load_state_dict(ours.feed_forward_residual.norm.state_dict())
    return theirs.train()


@torch.no_grad()
def torch_decoder_layer(ours: Layer, norm: str = "post") -> nn.TransformerDecoderLayer:
    theirs = nn.TransformerDecoderLayer(**_sizes(ours, norm))
    _copy_self(ours.self_attention, theirs.self_attn)
    _copy_cross(ours.cross_attention, theirs.multihead_attn)
    _copy_feed_forward(ours.feed_forward, theirs)
    theirs.norm1.load_state_dict(ours.self_attention_residual.norm.state_dict())
    theirs.norm2.load_state_dict(ours.cross_attention_residual.norm.state_dict())
    theirs.norm3.load_state_dict(ours.feed_forward_residual.norm.state_dict())
    return theirs


def _sizes(ours: Layer, norm: str) -> dict[str, object]:
    inner = ours.feed_forward.inner
    return {
        "d_model": inner.in_features,
        "nhead": ours.self_attention.num_heads,
        "dim_feedforward": inner.out_features,
        "dropout": 0.0,
        "layer_norm_eps": NORM_EPSILON,
        "batch_first": True,
        "norm_first": norm == "pre",
        "dtype": inner.weight.dtype,
    }


def _apart(joined: Tensor, heads: int, parts: int) -> Tensor:
    """Convert joined projections from our order (q, k, v of each head) to torch's order (all of q, then k, then v)."""
    return joined.view(heads, parts, -1, *joined.shape[1:]).transpose(0, 1).reshape(joined.shape)


def _copy_self(ours: SelfAttention, theirs: nn.MultiheadAttention) -> None:
    theirs.in_proj_weight.copy_(_apart(ours.qkv.weight, ours.num_heads, 3))
    theirs.in_proj_bias.copy_(_apart(ours.qkv.bias, ours.num_heads, 3))
    theirs.out_proj.load_state_dict(ours.output.state_dict())


def _copy_cross(ours: CrossAttention, theirs: nn.MultiheadAttention) -> None:
    theirs.in_proj_weight.copy_(torch.cat([ours.query.weight, _apart(ours.key_value.weight, ours.num_heads, 2)]))
    theirs.in_proj_bias.copy_(torch.cat([ours.query.bias, _apart(ours.key_value.bias, ours.num_heads, 2)]))
    theirs.out_proj.load_state_dict(ours.output.state_dict())


def _copy_feed_forward(ours: nn.Module, theirs: nn.Module) -> None:
    theirs.linear1.load_state_dict(ours.inner.state_dict())
    theirs.linear2.load_state_dict(ours.outer.state_dict())
