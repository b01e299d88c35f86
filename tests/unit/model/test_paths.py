"""Computed path lengths, sequential operations and forward arithmetic equal those of the real sub-layers."""

from functools import partial

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from model.config import ModelConfig
from model.cost import active_params, forward_flops, num_params
from model.layers.contract import Inputs
from model.layers.recurrence.recurrent import Recurrent
from model.network import build_model
from model.parts.residual import Residual
from model.paths import path_length, sequential_operations, shortest_paths
from model.settings import Side
from tests.lines import random_config
from tests.slow import OF_SEEDS, mostly_slow

T = 9


def language_model(line: str, **settings: object) -> ModelConfig:
    sizes = {"d_model": 8, "d_k": 4, "d_v": 4, "num_heads": 2, "d_ff": 8, "positions": "none"}
    return ModelConfig(**{**sizes, "encoder": "", "decoder": line, **settings})


def dependences(config: ModelConfig, side: Side, length: int) -> torch.Tensor:
    """Return [i, j]: whether output i of the stack depends on input j, by the Jacobian in float64 at four points."""
    torch.manual_seed(0)
    model = build_model(config, 20).double().eval()
    for part in model.modules():
        if isinstance(part, Residual) and hasattr(part, "gate"):
            torch.nn.init.ones_(part.gate)  # which starts at 0: nothing would pass
    memory = torch.randn(1, 4, config.d_model, dtype=torch.float64)
    inputs = Inputs(causal=side == "decoder", memory_BMD=memory)
    points = torch.randn(4, 1, length, config.d_model, dtype=torch.float64)  # a ReLU may be closed at one of them
    weight = torch.randn(config.d_model, dtype=torch.float64)  # the sum over a LayerNorm's output is constant

    def run(x_BTD: torch.Tensor) -> torch.Tensor:
        for layer in getattr(model, side):
            x_BTD = layer(x_BTD, inputs)
        return (x_BTD[0] * weight).sum(-1)

    jacobians = torch.stack([torch.autograd.functional.jacobian(run, x_BTD)[:, 0] for x_BTD in points])
    return (jacobians != 0).any(-1).any(0)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("seed", mostly_slow(range(30), 10, OF_SEEDS))
def test_a_path_is_finite_where_the_jacobian_is_not_zero(seed: int, side: Side) -> None:
    config = random_config(seed)
    if not config.layers(side):
        return
    paths = torch.from_numpy(shortest_paths(config, side, T))
    assert torch.equal(paths.isfinite(), dependences(config, side, T))


@pytest.mark.parametrize(
    ("line", "length", "path"),
    [
        ("15 * convolution(kernel=2)", 16, 15),
        ("14 * convolution(kernel=2)", 16, None),
        (", ".join(f"convolution(kernel=2, dilation={2**i})" for i in range(4)), 16, 4),
        ("4 * convolution(kernel=2)", 16, None),
        ("5 * (self_attention, feed_forward)", 16, 1),
        ("3 * feed_forward", 16, None),
        ("lstm", 16, 16),
        ("lstm, self_attention", 16, 1),
        ("average", 16, 1),
    ],
)
def test_paths_of_known_stacks(line: str, length: int, path: int | None) -> None:
    config = language_model(line)
    assert path_length(config, "decoder", length) == path
    reached = dependences(config, "decoder", length)
    assert bool((reached == torch.ones_like(reached).tril()).all()) == (path is not None)


def test_an_encoder_sees_both_sides() -> None:
    decoder = {"decoder": "cross_attention"}
    assert path_length(language_model("", encoder="lstm", **decoder), "encoder", T) is None
    assert path_length(language_model("", encoder="lstm(bidirectional=true)", **decoder), "encoder", T) == T
    assert path_length(language_model("", encoder="4 * convolution(kernel=5)", **decoder), "encoder", T) == 4


def test_without_residuals_every_operation_is_on_the_path() -> None:
    assert path_length(language_model("3 * self_attention", residual=False), "decoder", T) == 3


def test_sequential_operations_add_up() -> None:
    config = language_model("2 * (lstm, feed_forward), self_attention, convolution(kernel=3)")
    assert sequential_operations(config, "decoder", 70) == 2 * 70 + 1 + 1


@pytest.mark.parametrize("seed", mostly_slow(range(200), 40, OF_SEEDS))
@torch.inference_mode()
def test_arithmetic_equals_what_torch_counts(seed: int) -> None:
    config = random_config(seed)
    model = build_model(config, 64).eval()
    model.set_attention_kernel("plain")  # torch does not count its fused kernel on a processor
    for part in model.modules():
        if isinstance(part, Recurrent):  # nor its fused recurrent networks: the same, cell by cell
            for network in filter(None, (part.ahead, part.back)):
                network.forward = partial(unrolled, part, network)
    source, target = torch.randint(64, (1, 6)), torch.randint(64, (1, 5))
    with FlopCounterMode(display=False) as counter:
        model.logits(model(source, None, target))
    assert forward_flops(config, 64, 6, 5) == counter.get_total_flops()


def unrolled(part: Recurrent, network: torch.nn.RNNBase, x_BTD: torch.Tensor) -> tuple[torch.Tensor]:
    zeros_BD, cell_BU = torch.zeros_like(x_BTD[:, 0]), x_BTD.new_zeros(len(x_BTD), network.hidden_size)
    states: list[tuple[torch.Tensor, ...]] = [(zeros_BD, cell_BU)[: len(part.kept)]]
    for x_BD in x_BTD.unbind(1):
        states.append(part.one(x_BD, states[-1], network.all_weights[0]))
    return (torch.stack([state[0] for state in states[1:]], 1),)


@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
@torch.inference_mode()
def test_arithmetic_of_recurrent_cells_equals_the_cells_unrolled(kind: str) -> None:
    config = language_model(kind)
    (part,) = config.layers("decoder")[0]
    cell = getattr(torch.nn, {"rnn": "RNNCell", "gru": "GRUCell", "lstm": "LSTMCell"}[kind])(8, 8)
    state = None
    with FlopCounterMode(display=False) as counter:
        for _ in range(T):
            state = cell(torch.randn(1, 8), state)
    assert part.options.cost(config, T, 0, "decoder").flops == counter.get_total_flops()


def test_active_parameters_leave_out_the_other_experts() -> None:
    dense, sparse = language_model("feed_forward"), language_model("experts(count=6, active=2)")
    router, one = 6 * 8, 2 * 8 * 8 + 8 + 8
    assert num_params(sparse, 20) - num_params(dense, 20) == 5 * one + router
    assert active_params(sparse, 20) - active_params(dense, 20) == one + router
