"""rnn, gru, lstm against torch's modules, their counts, and the line's options."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from model import architecture
from model.config import ModelConfig
from model.layers import recurrent
from model.layers.contract import Inputs
from model.recurrent_specs import GRUSpec, LSTMSpec, RecurrentSpec, RNNSpec

TORCH = {RNNSpec: nn.RNN, GRUSpec: nn.GRU, LSTMSpec: nn.LSTM}
CELLS = {RNNSpec: nn.RNNCell, GRUSpec: nn.GRUCell, LSTMSpec: nn.LSTMCell}
COUNTS = {RNNSpec: 525_312, GRUSpec: 1_575_936, LSTMSpec: 2_101_248}
B, T, D = 3, 6, 8


def built(options: RecurrentSpec, **settings: object) -> recurrent.Recurrent:
    config = ModelConfig(d_model=D, **settings)  # type: ignore[arg-type]
    return recurrent.Recurrent(config, options).double()


@pytest.mark.parametrize("kind", TORCH)
@pytest.mark.parametrize("bias", [True, False])
def test_one_direction_equals_torch(kind, bias):
    ours, theirs = built(kind(), bias=bias), TORCH[kind](D, D, bias=bias, batch_first=True).double()
    theirs.load_state_dict(ours.ahead.state_dict())
    x_BTD = torch.randn(B, T, D, dtype=torch.float64)
    torch.testing.assert_close(ours(x_BTD, Inputs(causal=True)), theirs(x_BTD)[0], atol=0, rtol=0)


@pytest.mark.parametrize("kind", TORCH)
def test_two_directions_are_the_halves_of_torch_added_for_sentences_of_any_length(kind):
    ours, theirs = built(kind(bidirectional=True)), TORCH[kind](D, D, batch_first=True, bidirectional=True).double()
    back = {f"{name}_reverse": weight for name, weight in ours.back.state_dict().items()}
    theirs.load_state_dict(ours.ahead.state_dict() | back)
    x_BTD, lengths = torch.randn(B, T, D, dtype=torch.float64), torch.tensor([6, 4, 1])
    packed = nn.utils.rnn.pack_padded_sequence(x_BTD, lengths, batch_first=True)
    expected_BTD = nn.utils.rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True)[0].unflatten(-1, (2, D)).sum(2)
    keep_BT = torch.arange(T) < lengths[:, None]
    found_BTD = ours(x_BTD, Inputs(causal=False, keep_BT=keep_BT))
    torch.testing.assert_close(found_BTD[keep_BT], expected_BTD[keep_BT], atol=1e-12, rtol=0)
    unpadded = ours(x_BTD[:1], Inputs(causal=False))
    torch.testing.assert_close(unpadded, found_BTD[:1], atol=1e-12, rtol=0)


@pytest.mark.parametrize("kind", COUNTS)
def test_counts_from_512_to_512(kind):
    for options, times in ((kind(), 1), (kind(bidirectional=True), 2)):
        cost = options.cost(ModelConfig(), 1, 1, "encoder")
        assert cost.params == times * COUNTS[kind]
        with torch.device("meta"):
            module = recurrent.Recurrent(ModelConfig(), options)
        assert sum(parameter.numel() for parameter in module.parameters()) == cost.params


@pytest.mark.parametrize("kind", CELLS)
def test_operations_equal_those_of_cells_one_after_the_other(kind):
    cell, x_BTD = CELLS[kind](D, D), torch.randn(B, T, D)
    with FlopCounterMode(display=False) as counted:
        state = None
        for t in range(T):
            state = cell(x_BTD[:, t], state)
    cost = kind().cost(ModelConfig(d_model=D), T, T, "decoder")
    assert counted.get_total_flops() == B * cost.flops
    assert kind(bidirectional=True).cost(ModelConfig(d_model=D), T, T, "encoder").flops == 2 * cost.flops


@pytest.mark.parametrize("name", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("option", ["bidirectional", "backward"])
def test_a_decoder_reads_forward_alone(name, option):
    with pytest.raises(ValueError, match=rf"model.decoder = .*column 1: {option}=true .* only an encoder"):
        ModelConfig(decoder=f"{name}({option}=true), cross_attention")


def test_an_option_that_it_lacks_is_named():
    with pytest.raises(ValueError, match="lstm has no option d_ff; nearest: backward, bias, bidirectional"):
        ModelConfig(encoder="lstm(d_ff=3)")


def test_what_the_row_does_not_read_is_known():
    read = architecture.settings_read(ModelConfig(encoder="lstm", decoder="lstm, cross_attention"))
    assert "bias" in read and "d_ff" not in read
