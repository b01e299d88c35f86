"""Tests of last_state, same_position and attentional_lstm, by which a decoder reads the source without attention."""

import pytest
import torch
from torch import nn

from model.config import ModelConfig
from model.layers.contract import Inputs, Sublayer
from model.layers.recurrence.attentional_lstm import AttentionalLSTM
from model.network import build_model
from tests.lines import SIZES

B, T, S, D = 3, 5, 4, 8
LENGTHS = torch.tensor([4, 2, 1])
KEEP_BS = torch.arange(S) < LENGTHS[:, None]


def built(line: str) -> Sublayer:
    config = ModelConfig(**{**SIZES, "decoder": line})
    found = next(build_model(config, 20).double().decoder.layers[0].children())
    assert isinstance(found, Sublayer)
    return found


def inputs(memory_BSD: torch.Tensor) -> Inputs:
    return Inputs.decoder(memory_BSD, KEEP_BS, torch.float64)


def drawn() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(B, T, D, dtype=torch.float64), torch.randn(B, S, D, dtype=torch.float64)


@pytest.mark.parametrize(
    ("line", "position_B"), [("last_state", LENGTHS - 1), ("last_state(backward=true)", LENGTHS * 0)]
)
def test_one_position_is_the_only_context(line, position_B):
    x_BTD, memory_BSD = drawn()
    sublayer = built(line)
    expected_BD = torch.stack([sublayer.project(memory_BSD[b, position]) for b, position in enumerate(position_B)])
    found_BTD = sublayer(x_BTD, inputs(memory_BSD))
    torch.testing.assert_close(found_BTD, expected_BD[:, None].expand(B, T, D), atol=1e-12, rtol=0)


def test_a_stacked_decoder_reads_its_own_position_and_nothing_beyond_the_end():
    x_BTD, memory_BSD = drawn()
    sublayer = built("same_position")
    found_BTD = sublayer(x_BTD, inputs(memory_BSD))
    for b in range(B):
        for t in range(T):
            expected_D = sublayer.project(memory_BSD[b, t]) if t < LENGTHS[b] else torch.zeros(D, dtype=torch.float64)
            torch.testing.assert_close(found_BTD[b, t], expected_D, atol=1e-12, rtol=0)


@pytest.mark.parametrize("compatibility", ["dot", "bilinear", "additive"])
def test_input_feeding_equals_a_loop_over_torch_cells(compatibility):
    x_BTD, memory_BSD = drawn()
    ours = built(f"attentional_lstm(compatibility={compatibility})")
    assert isinstance(ours, AttentionalLSTM)
    cell = nn.LSTMCell(2 * D, D).double()  # its input is [x; h̃]
    with torch.no_grad():
        cell.weight_ih.copy_(torch.cat([ours.input.weight, ours.recurrent.weight[:, :D]], 1))
        cell.weight_hh.copy_(ours.recurrent.weight[:, D:])
        cell.bias_ih.copy_(ours.input.bias)
        cell.bias_hh.zero_()
    found_BTD = ours(x_BTD, inputs(memory_BSD))
    for b in range(B):
        memory_SD = memory_BSD[b, : LENGTHS[b]]
        fed_D, state = x_BTD.new_zeros(D), (x_BTD.new_zeros(1, D), x_BTD.new_zeros(1, D))
        for t in range(T):
            state = cell(torch.cat([x_BTD[b, t], fed_D])[None], state)
            h_D = state[0][0]
            if compatibility == "additive":
                matrix_D2D = torch.cat([ours.query.weight, ours.key.weight], 1)  # of [h; m]
                pairs_S2D = torch.cat([h_D.expand_as(memory_SD), memory_SD], 1)
                scores_S = (pairs_S2D @ matrix_D2D.T).tanh() @ ours.compare.weight[0]
            else:
                scores_S = memory_SD @ (h_D if compatibility == "dot" else h_D @ ours.compare.weight[0])
            context_D = scores_S.softmax(0) @ memory_SD
            fed_D = (ours.output.weight @ torch.cat([context_D, h_D])).tanh()
            torch.testing.assert_close(found_BTD[b, t], fed_D, atol=1e-12, rtol=0)


def test_a_backward_encoder_equals_a_forward_one_on_the_reversed_source():
    config = {**SIZES, "positions": "none", "decoder": "last_state, lstm"}
    torch.manual_seed(0)
    forward = build_model(ModelConfig(**config, encoder="lstm"), 20).double().eval()
    settings = config | {"decoder": "last_state(backward=true), lstm"}
    backward = build_model(ModelConfig(**settings, encoder="lstm(backward=true)"), 20).double().eval()
    backward.load_state_dict(forward.state_dict())
    source_BS, target_BT = torch.randint(20, (B, S)), torch.randint(20, (B, T))
    reversed_BS = source_BS.clone()
    for b, length in enumerate(LENGTHS):
        reversed_BS[b, :length] = source_BS[b, :length].flip(0)
    expected = forward(reversed_BS, KEEP_BS, target_BT)
    torch.testing.assert_close(backward(source_BS, KEEP_BS, target_BT), expected, atol=1e-12, rtol=0)


def test_the_memory_may_contain_the_embeddings():
    config = ModelConfig(**SIZES)
    torch.manual_seed(0)
    plain = build_model(config, 20).double().eval()
    both = build_model(config.model_copy(update={"memory_embeddings": True}), 20).double().eval()
    both.load_state_dict(plain.state_dict())
    source_BS = torch.randint(20, (B, S))
    embedded_BSD = plain.encoder.positions(plain.target_embedding(source_BS))
    torch.testing.assert_close(both.encode(source_BS), plain.encode(source_BS) + embedded_BSD, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decoder": "last_state, lstm", "residual": False}, "last_state.*residual = false would discard"),
        ({"decoder": "same_position, lstm", "norm": "pre"}, r"same_position.*write \(norm=none\)"),
        ({"encoder": "lstm(bidirectional=true, backward=true)"}, "reads in both directions"),
        ({"encoder": "last_state"}, "last_state cannot be in the encoder, only in the decoder"),
    ],
)
def test_what_cannot_be_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig(**settings)


def test_what_surrounds_a_sublayer_may_be_in_its_brackets():
    config = ModelConfig(**SIZES, encoder="lstm(residual=false, norm=none), lstm", decoder="last_state, lstm")
    first, second = build_model(config, 20).encoder.layers
    names = [{name for name, _ in layer.named_parameters() if "residual" in name} for layer in (first, second)]
    assert names == [set(), {"lstm_residual.norm.weight", "lstm_residual.norm.bias"}]
    assert "residual" in config.settings_read()
