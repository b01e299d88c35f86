"""The feed-forward network equals scalar formulas for every activation (Shazeer 2020, equations 1 to 6)."""

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from model.config import ModelConfig
from model.cost import activation_bytes, forward_flops, num_params
from model.layers.contract import Inputs
from model.layers.position_wise.activations import GATED, PLAIN
from model.layers.position_wise.feed_forward import FeedForward
from model.layers.spec import Spec
from model.network import build_model
from tests.kept import keeping


def relu(x):
    return max(0.0, x)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def gelu(x):
    return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))


FORMULAS = {
    "relu": relu,
    "gelu": gelu,
    "swish": lambda x: x * sigmoid(x),
    "relu2": lambda x: relu(x) ** 2,
    "elu": lambda x: x if x > 0 else math.exp(x) - 1,
    "selu": lambda x: 1.0507009873554805 * (x if x > 0 else 1.6732632423543772 * (math.exp(x) - 1)),
    "sigmoid": sigmoid,
    "softplus": lambda x: math.log(1 + math.exp(x)),
    "glu": sigmoid,
    "bilinear": lambda x: x,
    "reglu": relu,
    "geglu": gelu,
    "swiglu": lambda x: x * sigmoid(x),
}


@pytest.mark.parametrize("name", [*PLAIN, *GATED])
@torch.no_grad()
def test_activations_are_their_formulas(small_config, name):
    torch.manual_seed(0)
    built = FeedForward(small_config(activation=name), Spec()).double()
    x_D = torch.randn(8, dtype=torch.float64)
    inner = [FORMULAS[name](float(z)) for z in built.inner.weight @ x_D + built.inner.bias]
    if name in GATED:
        inner = [a * float(v) for a, v in zip(inner, built.value.weight @ x_D + built.value.bias, strict=True)]
    expected = built.outer.weight @ torch.tensor(inner, dtype=torch.float64) + built.outer.bias
    torch.testing.assert_close(built(x_D[None, None], Inputs(False))[0, 0], expected)


@pytest.mark.parametrize("name", [*PLAIN, *GATED])
def test_counts_against_torch(name):
    config = ModelConfig(num_layers=1, d_model=32, d_ff=256, num_heads=1, d_k=8, d_v=8, activation=name)
    model = build_model(config, 64)
    model.set_attention_kernel("plain")
    assert num_params(config, 64) == sum(p.numel() for p in model.parameters())
    source, target = torch.randint(64, (40, 11)), torch.randint(64, (40, 9))
    with keeping(model) as kept, FlopCounterMode(display=False) as counter:
        model(source, None, target)
    assert counter.get_total_flops() + 2 * 40 * 9 * 32 * 64 == 40 * forward_flops(config, 64, 11, 9)
    assert activation_bytes(config, 40, 11, 9) == pytest.approx(kept.nbytes, rel=0.03)
