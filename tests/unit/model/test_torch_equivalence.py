"""A whole encoder–decoder equals torch's own layers with copied weights, for both norm placements."""

import pytest
import torch
from torch import nn

from model.parts.positions import sinusoids
from tests.torch_layers import torch_decoder_layer, torch_encoder_layer


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
