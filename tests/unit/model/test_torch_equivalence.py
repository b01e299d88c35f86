"""A whole encoder–decoder against torch's own layers with copied weights, both norm placements."""

import pytest
import torch
from torch import nn

from model.attention import CrossAttention, SelfAttention
from model.layers import DecoderLayer, EncoderLayer
from model.positional import sinusoids

SIZES = {"d_model": 8, "nhead": 2, "dim_feedforward": 12, "dropout": 0.0, "layer_norm_eps": 1e-6}


def copy_self(ours: SelfAttention, theirs: nn.MultiheadAttention) -> None:
    """Ours is head by head, each with q, k, v; torch's is all of q, then k, then v."""
    theirs.in_proj_weight.copy_(ours.qkv.weight.view(2, 3, 4, 8).transpose(0, 1).reshape(24, 8))
    theirs.in_proj_bias.copy_(ours.qkv.bias.view(2, 3, 4).transpose(0, 1).reshape(24))
    theirs.out_proj.load_state_dict(ours.output.state_dict())


def copy_cross(ours: CrossAttention, theirs: nn.MultiheadAttention) -> None:
    key_value = ours.key_value.weight.view(2, 2, 4, 8).transpose(0, 1).reshape(16, 8)
    bias = ours.key_value.bias.view(2, 2, 4).transpose(0, 1).reshape(16)
    theirs.in_proj_weight.copy_(torch.cat([ours.query.weight, key_value]))
    theirs.in_proj_bias.copy_(torch.cat([ours.query.bias, bias]))
    theirs.out_proj.load_state_dict(ours.output.state_dict())


def copy_feed_forward(ours, theirs) -> None:
    theirs.linear1.load_state_dict(ours.inner.state_dict())
    theirs.linear2.load_state_dict(ours.outer.state_dict())


@torch.no_grad()
def torch_encoder_layer(ours: EncoderLayer, norm: str) -> nn.TransformerEncoderLayer:
    theirs = nn.TransformerEncoderLayer(**SIZES, batch_first=True, norm_first=norm == "pre", dtype=torch.float64)
    copy_self(ours.self_attention, theirs.self_attn)
    copy_feed_forward(ours.feed_forward, theirs)
    theirs.norm1.load_state_dict(ours.self_attention_residual.norm.state_dict())
    theirs.norm2.load_state_dict(ours.feed_forward_residual.norm.state_dict())
    return theirs.train()  # torch's fast path in eval mode is another code; without dropout the numbers are one


@torch.no_grad()
def torch_decoder_layer(ours: DecoderLayer, norm: str) -> nn.TransformerDecoderLayer:
    theirs = nn.TransformerDecoderLayer(**SIZES, batch_first=True, norm_first=norm == "pre", dtype=torch.float64)
    copy_self(ours.self_attention, theirs.self_attn)
    copy_cross(ours.cross_attention, theirs.multihead_attn)
    copy_feed_forward(ours.feed_forward, theirs)
    theirs.norm1.load_state_dict(ours.self_attention_residual.norm.state_dict())
    theirs.norm2.load_state_dict(ours.cross_attention_residual.norm.state_dict())
    theirs.norm3.load_state_dict(ours.feed_forward_residual.norm.state_dict())
    return theirs


@pytest.mark.parametrize("kernel", ["plain", "sdpa"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_encoder_and_decoder_against_torch(small_model, norm, kernel):
    model = small_model(norm=norm)
    model.set_attention_kernel(kernel)
    source, target = torch.randint(20, (3, 6)), torch.randint(20, (3, 5))
    mask_BS = torch.arange(6) < torch.tensor([[6], [4], [1]])
    weight, scale = model.output_weight, 8**0.5

    memory = weight[source] * scale + sinusoids(6, 8).double()
    for layer in model.encoder.layers:
        memory = torch_encoder_layer(layer, norm)(memory, src_key_padding_mask=~mask_BS)
    memory = model.encoder.final_norm(memory)
    torch.testing.assert_close(model.encode(source, mask_BS), memory)

    hidden = weight[target] * scale + sinusoids(5, 8).double()
    causal = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    for layer in model.decoder.layers:
        hidden = torch_decoder_layer(layer, norm)(hidden, memory, tgt_mask=causal, memory_key_padding_mask=~mask_BS)
    hidden = model.decoder.final_norm(hidden)
    torch.testing.assert_close(model(source, mask_BS, target), hidden)


def test_only_pre_norm_ends_in_a_norm(small_model):
    assert not any("final_norm" in name for name in small_model(norm="post").state_dict())
    assert sum("final_norm" in name for name in small_model(norm="pre").state_dict()) == 4
