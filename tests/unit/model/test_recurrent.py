"""rnn, gru and lstm equal torch's modules, their counts are right, and their options work."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from model import cost
from model.config import ModelConfig
from model.layers.contract import CacheShape, Inputs, StepContext
from model.layers.recurrence.recurrent import Recurrent
from model.layers.recurrence.recurrent_spec import GRUSpec, LSTMSpec, RecurrentSpec, RNNSpec
from model.network import build_model

TORCH = {RNNSpec: nn.RNN, GRUSpec: nn.GRU, LSTMSpec: nn.LSTM}
CELLS = {RNNSpec: nn.RNNCell, GRUSpec: nn.GRUCell, LSTMSpec: nn.LSTMCell}
COUNTS = {RNNSpec: 525_312, GRUSpec: 1_575_936, LSTMSpec: 2_101_248}
B, T, D = 3, 6, 8


def built(options: RecurrentSpec, **settings: object) -> Recurrent:
    config = ModelConfig(d_model=D, **settings)  # type: ignore[arg-type]
    return Recurrent(config, options).double()


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


@pytest.mark.parametrize("kind", TORCH)
def test_a_gain_multiplies_the_states_initial_matrices_alone(kind):
    drawn = []
    for gain in (1.0, 3.0):
        torch.manual_seed(0)
        made = built(kind(bidirectional=True, gain=gain))
        made.initialise()
        drawn.append(made.state_dict())
    usual, changed = drawn
    for name, weight in usual.items():
        assert torch.equal(changed[name], weight * (3.0 if "weight_hh" in name else 1.0)), name


@pytest.mark.parametrize("kind", COUNTS)
def test_counts_from_512_to_512(kind):
    for options, times in ((kind(), 1), (kind(bidirectional=True), 2)):
        cost = options.cost(ModelConfig(), 1, 1, "encoder")
        assert cost.params == times * COUNTS[kind]
        with torch.device("meta"):
            module = Recurrent(ModelConfig(), options)
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
    with pytest.raises(ValueError, match=rf"model.decoder = .*column 1: {option}=true .* only in an encoder"):
        ModelConfig(decoder=f"{name}({option}=true), cross_attention")


def test_an_option_that_it_lacks_is_named():
    with pytest.raises(ValueError, match="lstm has no option d_ff; nearest: backward, bias, bidirectional"):
        ModelConfig(encoder="lstm(d_ff=3)")


def test_what_the_row_does_not_read_is_known():
    read = ModelConfig(encoder="lstm", decoder="lstm, cross_attention").settings_read()
    assert "bias" in read and "d_ff" not in read


# --- A state wider than its output, two columns, and layers of other widths


@pytest.mark.parametrize("bias", [True, False])
def test_units_are_torchs_projection_in_a_pass_and_step_by_step(bias):
    ours = built(LSTMSpec(units=11), bias=bias)
    theirs = nn.LSTM(D, 11, bias=bias, batch_first=True, proj_size=D).double()
    theirs.load_state_dict(ours.ahead.state_dict())
    x_BTD = torch.randn(B, T, D, dtype=torch.float64)
    expected_BTD = theirs(x_BTD)[0]
    torch.testing.assert_close(ours(x_BTD, Inputs(causal=True)), expected_BTD, atol=0, rtol=0)
    state = ours.start(Inputs(causal=True), CacheShape(B, 1, T))
    steps = [ours.step(x_BTD[:, t], state, StepContext(t, 1, None, None, Inputs(causal=True))) for t in range(T)]
    torch.testing.assert_close(torch.stack(steps, 1), expected_BTD, atol=1e-12, rtol=0)


@pytest.mark.parametrize("options", [LSTMSpec(units=11), LSTMSpec(units=11, bidirectional=True), GRUSpec(columns=True)])
def test_counts_with_units_and_columns(options):
    cost = options.cost(ModelConfig(d_model=D), T, T, "encoder")
    assert sum(parameter.numel() for parameter in built(options).parameters()) == cost.params
    projected = nn.LSTM(512, 2048, proj_size=512)  # one of MoE's layers
    params = sum(parameter.numel() for parameter in projected.parameters())
    assert LSTMSpec(units=2048).cost(ModelConfig(), 1, 1, "decoder").params == params


@pytest.mark.parametrize("backward", [False, True])
def test_columns_are_two_networks_that_read_in_opposite_directions(backward):
    ours = built(LSTMSpec(columns=True, backward=backward))
    x_BTD = torch.randn(B, T, D, dtype=torch.float64)
    first, second = x_BTD.chunk(2, -1)
    ahead, back = lambda x: ours.ahead(x)[0], lambda x: ours.back(x)[0]
    turned = lambda run, x: run(x.flip(1)).flip(1)  # noqa: E731
    halves = (turned(ahead, first), back(second)) if backward else (ahead(first), turned(back, second))
    found = ours(x_BTD, Inputs(causal=False))
    torch.testing.assert_close(found, torch.cat(halves, -1), atol=1e-12, rtol=0)


def test_a_projection_sets_the_width_of_the_layers_after_it_and_attention_reads_the_memory():
    config = ModelConfig(
        d_model=8, num_heads=1, d_k=4, d_v=4, norm="none", memory_embeddings=True,
        encoder="convolution, projection(width=12), 2 * convolution, projection(width=8)",
        decoder="2 * (convolution, cross_attention), projection(width=12), (convolution, cross_attention), "
        "projection(width=8)",
    )  # fmt: skip
    widths = [part.config.d_model for layer in config.layers("encoder") for part in layer]
    assert widths == [8, 12, 12, 12, 8]
    model = build_model(config, 64)
    wide = model.decoder.layers[3].cross_attention
    assert (wide.query.in_features, wide.key_value.in_features, wide.output.out_features) == (12, 8, 12)
    assert sum(p.numel() for p in model.parameters()) == cost.num_params(config, 64)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"encoder": "projection"}, "projection needs width: write projection.width=…."),
        ({"encoder": "projection(width=4), lstm"}, "ends with the width 4: close it with projection.width=512."),
        ({"encoder": "projection(width=4), lstm, projection(width=512)", "layer_drop": 0.1}, "leave out a projection"),
        ({"decoder": "projection(width=4), last_state, projection(width=512)"}, "has the width 512, not 4"),
        ({"encoder": "projection(width=4, norm=none), projection(width=512)"}, "projection has no option norm"),
        ({"encoder": "lstm(units=512)"}, "units=512 are projected"),
        ({"encoder": "lstm(columns=true, bidirectional=true)"}, "choose one of them"),
        ({"decoder": "lstm(columns=true), cross_attention"}, "only in an encoder"),
    ],
)
def test_widths_that_fit_nothing_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        ModelConfig(**settings)
