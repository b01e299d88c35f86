"""Experts against the feed-forward network and a plain sum; the average against a plain mean."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from model.config import ModelConfig
from model.kinds import average, experts
from model.kinds.feed_forward import FeedForward as FeedForwardKind
from model.sublayers.average import Average
from model.sublayers.contract import Given
from model.sublayers.experts import Experts
from model.sublayers.feed_forward import FeedForward

B, T, D = 3, 9, 8
CONFIG = ModelConfig(d_model=D, d_ff=12)
GIVEN = Given(True)


def built(config: ModelConfig = CONFIG, **options: int) -> Experts:
    return Experts(config, experts.Experts(**options)).double()


@pytest.mark.parametrize("activation", ["relu", "swish", "swiglu"])
def test_one_expert_equals_feed_forward(activation):
    config = CONFIG.model_copy(update={"activation": activation})
    ours, network = built(config, count=1), FeedForward(config, FeedForwardKind()).double()
    network.load_state_dict(ours.experts[0].state_dict())
    x_BTD = torch.randn(B, T, D, dtype=torch.float64)
    torch.testing.assert_close(ours(x_BTD, GIVEN), network(x_BTD, GIVEN), atol=0, rtol=0)
    cost, one = (kind.cost(config, T, T, "encoder") for kind in (experts.Experts(count=1), FeedForwardKind()))
    assert cost.params == cost.active == one.params + D


@pytest.mark.parametrize("count, active", [(4, 1), (4, 2), (3, 3)])
def test_each_position_is_the_weighted_sum_of_its_likeliest_experts(count, active):
    ours, x_BTD = built(count=count, active=active), torch.randn(B, T, D, dtype=torch.float64)
    found_BTD = ours(x_BTD, GIVEN)
    for x_D, found_D in zip(x_BTD.flatten(0, 1), found_BTD.flatten(0, 1), strict=True):
        odds = (ours.router.weight @ x_D).exp()
        shares = {e: odds[e] / odds.sum() for e in range(count)}
        best = sorted(shares, key=lambda e: -shares[e])[:active]
        expected_D = sum(shares[e] * ours.experts[e](x_D, GIVEN) for e in best)
        torch.testing.assert_close(found_D, expected_D, atol=1e-12, rtol=0)


@pytest.mark.parametrize("activation, matrices", [("relu", 2), ("geglu", 3)])
@pytest.mark.parametrize("count, active", [(4, 1), (4, 2)])
def test_operations_and_active_weights(count, active, activation, matrices):
    config = CONFIG.model_copy(update={"activation": activation})
    ours, x_BTD = built(config, count=count, active=active), torch.randn(B, T, D, dtype=torch.float64)
    with FlopCounterMode(display=False) as counted:
        ours(x_BTD, GIVEN)
    cost = experts.Experts(count=count, active=active).cost(config, T, T, "encoder")
    assert counted.get_total_flops() == B * cost.flops
    of_one = sum(parameter.numel() for parameter in ours.experts[0].parameters())
    assert cost.params == sum(parameter.numel() for parameter in ours.parameters())
    assert cost.params - cost.active == (count - active) * of_one
    assert cost.flops == 2 * T * (active * matrices * D * 12 + count * D)


def test_more_active_experts_than_there_are():
    with pytest.raises(ValueError, match=r"active=5 of count=4 experts: active may be at most count"):
        ModelConfig(encoder="experts(active=5)")


@pytest.mark.parametrize("feed_forward", [False, True])
@pytest.mark.parametrize("gated", [False, True])
def test_the_average_is_the_mean_of_each_prefix(feed_forward, gated):
    options = average.Average(feed_forward=feed_forward, gated=gated)
    ours, x_BTD = Average(CONFIG, options).double(), torch.randn(B, T, D, dtype=torch.float64)
    with FlopCounterMode(display=False) as counted:
        found_BTD = ours(x_BTD, GIVEN)
    for t in range(T):
        y_BD, g_BD = x_BTD[:, t], x_BTD[:, : t + 1].mean(1)
        g_BD = ours.feed_forward(g_BD, GIVEN) if feed_forward else g_BD
        if gated:
            gates_BC = torch.sigmoid(torch.cat([y_BD, g_BD], 1) @ ours.gates.weight.T + ours.gates.bias)
            g_BD = gates_BC[:, :D] * y_BD + gates_BC[:, D:] * g_BD
        torch.testing.assert_close(found_BTD[:, t], g_BD, atol=1e-12, rtol=0)
    cost = options.cost(CONFIG, T, T, "decoder")
    assert cost.params == sum(parameter.numel() for parameter in ours.parameters())
    assert counted.get_total_flops() == B * cost.flops


def test_the_average_is_for_decoders():
    with pytest.raises(ValueError, match="average cannot be in the encoder, only in the decoder"):
        ModelConfig(encoder="average")
