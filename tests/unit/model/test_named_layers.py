"""The factorised LSTM, the end-to-end memory network and the Extended Neural GPU equal their papers' formulas."""

import pytest
import torch

from model.layers.contract import Inputs
from model.layers.convolutions.neural_gpu import NeuralGPU
from model.layers.convolutions.neural_gpu_spec import NeuralGPUSpec
from model.layers.memory.memory_network import MemoryNetwork
from model.layers.memory.memory_network_spec import MemoryNetworkSpec
from model.layers.recurrence.factorised_lstm import FactorisedLSTM
from model.layers.recurrence.factorised_lstm_spec import FactorisedLSTMSpec
from model.paths import shortest_paths

D = 8


def drawn(module):
    for parameter in module.double().parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return module


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def test_a_factorised_lstm_is_an_lstm_whose_matrix_is_a_product(small_config):
    layer = drawn(FactorisedLSTM(small_config(), FactorisedLSTMSpec(rank=3)))
    plain = torch.nn.LSTM(D, D, batch_first=True).double()
    plain.weight_ih_l0.copy_(layer.outer.weight @ layer.input.weight)
    plain.weight_hh_l0.copy_(layer.outer.weight @ layer.recurrent.weight)
    plain.bias_ih_l0.copy_(layer.outer.bias)
    plain.bias_hh_l0.zero_()
    x_BTD = torch.randn(2, 5, D, dtype=torch.float64)
    torch.testing.assert_close(layer(x_BTD, Inputs(True)), plain(x_BTD)[0])


@pytest.mark.parametrize("hops", [1, 3])
def test_hops_of_a_memory_network(small_config, hops):
    layer = drawn(MemoryNetwork(small_config(), MemoryNetworkSpec(hops=hops)))
    x_D, memory_SD = torch.randn(D, dtype=torch.float64), torch.randn(4, D, dtype=torch.float64)
    m, c = memory_SD @ layer.key.weight.T, memory_SD @ layer.value.weight.T
    u = layer.query.weight @ x_D
    for _ in range(hops):
        p = (m @ u).exp() / (m @ u).exp().sum()
        u = layer.between.weight @ u + sum(p[i] * c[i] for i in range(4))
    inputs = Inputs.decoder(memory_SD[None], None, torch.float64)
    torch.testing.assert_close(layer(x_D[None, None], inputs)[0, 0], u)


def convolved(weight, x_LD):
    """Σ_j W_j x_{l + j − 1}, zeros outside."""
    kernel = weight.shape[1] // D
    out = torch.zeros(len(x_LD), len(weight), dtype=torch.float64)
    for place in range(len(x_LD)):
        for j in range(kernel):
            if 0 <= place + j - kernel // 2 < len(x_LD):
                out[place] += weight[:, j * D : (j + 1) * D] @ x_LD[place + j - kernel // 2]
    return out


def cgru(layer, s, p=None):
    """Compute the unit's formula with one convolution per letter."""
    of_tape = (0, 0, 0) if p is None else convolved(layer.tape.weight, p).split(D, -1)
    (g_b, r_b), b = layer.gates.bias.split(D), layer.candidate.bias
    g_s, r_s = convolved(layer.gates.weight, s).split(D, -1)
    g, r = (g_s + of_tape[0] + g_b).sigmoid(), (r_s + of_tape[1] + r_b).sigmoid()
    return g * s + (1 - g) * (convolved(layer.candidate.weight, r * s) + of_tape[2] + b).tanh()


def test_an_encoder_applies_the_unit_as_often_as_there_are_pieces(small_config):
    x_TD = torch.randn(5, D, dtype=torch.float64)
    for steps in (None, 2):
        layer = drawn(NeuralGPU(small_config(), NeuralGPUSpec(side="encoder", steps=steps)))
        s = x_TD
        for _ in range(steps or 5):
            s = cgru(layer, s)
        torch.testing.assert_close(layer(x_TD[None], Inputs(False))[0], s)


def test_a_decoder_writes_on_its_tape_and_reads_its_memory_at_its_place(small_config):
    layer = drawn(NeuralGPU(small_config(), NeuralGPUSpec(side="decoder")))
    x_TD, memory_SD = torch.randn(4, D, dtype=torch.float64), torch.randn(3, D, dtype=torch.float64)
    d, p = torch.zeros(2, 40, D, dtype=torch.float64)
    expected = []
    d[:3] = memory_SD
    for time in range(4):
        p[time] = x_TD[time]
        d = cgru(layer, d, p)  # forty places: what is behind them reaches no output
        expected.append(d[time])
    output = layer(x_TD[None], Inputs.decoder(memory_SD[None], None, torch.float64))[0]
    torch.testing.assert_close(output, torch.stack(expected))


def test_what_they_refuse_and_their_paths(small_config):
    with pytest.raises(ValueError, match="no middle"):
        small_config(encoder="neural_gpu(kernel=2)")
    with pytest.raises(ValueError, match="steps is read in an encoder alone"):
        small_config(decoder="neural_gpu(steps=2)")
    with pytest.raises(ValueError, match="has no option side"):
        small_config(encoder="neural_gpu(side=decoder)")
    with pytest.raises(ValueError, match="encoder is empty, but neural_gpu"):
        small_config(encoder="", decoder="neural_gpu")
    with pytest.raises(ValueError, match="only in the decoder"):
        small_config(encoder="memory_network")
    paths = shortest_paths(small_config(encoder="neural_gpu(steps=2, residual=false)"), "encoder", 9)
    assert paths[8, 4:].tolist() == [2, 2, 1, 1, 1] and paths[8, 3] == float("inf")
