"""Experts equal the feed-forward network and a plain sum, and the layer `average` equals a plain mean."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from model.config import ModelConfig
from model.layers.attention.average import Average
from model.layers.attention.average_spec import AverageSpec
from model.layers.auxiliary_losses import collecting
from model.layers.contract import Inputs
from model.layers.position_wise.experts import Experts
from model.layers.position_wise.experts_spec import ExpertsSpec
from model.layers.position_wise.feed_forward import FeedForward
from model.layers.position_wise.feed_forward_spec import FeedForwardSpec

B, T, D = 3, 9, 8
CONFIG = ModelConfig(d_model=D, d_ff=12)
INPUTS = Inputs(True)


def built(config: ModelConfig = CONFIG, **options: int) -> Experts:
    return Experts(config, ExpertsSpec(**options)).double()


@pytest.mark.parametrize("activation", ["relu", "swish", "swiglu"])
def test_one_expert_equals_feed_forward(activation):
    config = CONFIG.model_copy(update={"activation": activation})
    ours, network = built(config, count=1), FeedForward(config, FeedForwardSpec()).double()
    network.load_state_dict(ours.experts[0].state_dict())
    x_BTD = torch.randn(B, T, D, dtype=torch.float64)
    torch.testing.assert_close(ours(x_BTD, INPUTS), network(x_BTD, INPUTS), atol=0, rtol=0)
    cost, one = (kind.cost(config, T, T, "encoder") for kind in (ExpertsSpec(count=1), FeedForwardSpec()))
    assert cost.params == cost.active == one.params + D


@pytest.mark.parametrize("count, active", [(4, 1), (4, 2), (3, 3)])
def test_each_position_is_the_weighted_sum_of_its_likeliest_experts(count, active):
    ours, x_BTD = built(count=count, active=active), torch.randn(B, T, D, dtype=torch.float64)
    found_BTD = ours(x_BTD, INPUTS)
    for x_D, found_D in zip(x_BTD.flatten(0, 1), found_BTD.flatten(0, 1), strict=True):
        odds = (ours.router.weight @ x_D).exp()
        shares = {e: odds[e] / odds.sum() for e in range(count)}
        best = sorted(shares, key=lambda e: -shares[e])[:active]
        expected_D = sum(shares[e] * ours.experts[e](x_D, INPUTS) for e in best)
        torch.testing.assert_close(found_D, expected_D, atol=1e-12, rtol=0)


@pytest.mark.parametrize("activation, matrices", [("relu", 2), ("geglu", 3)])
@pytest.mark.parametrize("count, active", [(4, 1), (4, 2)])
def test_operations_and_active_weights(count, active, activation, matrices):
    config = CONFIG.model_copy(update={"activation": activation})
    ours, x_BTD = built(config, count=count, active=active), torch.randn(B, T, D, dtype=torch.float64)
    with FlopCounterMode(display=False) as counted:
        ours(x_BTD, INPUTS)
    cost = ExpertsSpec(count=count, active=active).cost(config, T, T, "encoder")
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
    options = AverageSpec(feed_forward=feed_forward, gated=gated)
    ours, x_BTD = Average(CONFIG, options).double(), torch.randn(B, T, D, dtype=torch.float64)
    with FlopCounterMode(display=False) as counted:
        found_BTD = ours(x_BTD, INPUTS)
    for t in range(T):
        y_BD, g_BD = x_BTD[:, t], x_BTD[:, : t + 1].mean(1)
        g_BD = ours.feed_forward(g_BD, INPUTS) if feed_forward else g_BD
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


def noisy(**options: object) -> Experts:
    """Return the layer in float64 with random matrices."""
    ours = built(**{"count": 5, "active": 2, "gate": "noisy_top_k", **options})
    for parameter in (ours.router.weight, ours.noise.weight):
        torch.nn.init.normal_(parameter)
    return ours


@pytest.mark.parametrize("training", [True, False])
def test_noisy_gates_add_up_to_one_over_the_chosen(training):
    ours = noisy().train(training)
    weights_NA, chosen_NA = ours.gates(torch.randn(50, D, dtype=torch.float64))
    torch.testing.assert_close(weights_NA.sum(1), torch.ones(50, dtype=torch.float64))
    assert bool((weights_NA > 0).all()) and all(len(set(row)) == 2 for row in chosen_NA.tolist())


def test_noise_is_drawn_in_training_alone():
    ours, x_ND = noisy(), torch.randn(50, D, dtype=torch.float64)
    assert not torch.equal(ours.gates(x_ND)[0], ours.gates(x_ND)[0])
    ours.eval()
    torch.testing.assert_close(ours.gates(x_ND)[0], ours.gates(x_ND)[0], atol=0, rtol=0)


def test_the_losses_equal_their_formulas():
    """The predicted load probabilities equal frequencies under fresh noise of one expert (equation 8)."""
    ours, x_ND = noisy(importance=0.3, load=0.7), torch.randn(6, D, dtype=torch.float64)
    with collecting() as found, torch.random.fork_rng():
        torch.manual_seed(5)
        weights_NA, chosen_NA = ours.gates(x_ND)
    clean_NE, scale_NE = ours.router(x_ND), torch.nn.functional.softplus(ours.noise(x_ND))
    torch.manual_seed(5)
    noisy_NE = clean_NE + torch.randn(clean_NE.shape, dtype=torch.float64) * scale_NE
    chances_NE = torch.empty(6, 5, dtype=torch.float64)
    for n in range(6):
        for e in range(5):
            others = sorted((noisy_NE[n, o].item() for o in range(5) if o != e), reverse=True)
            normal = torch.distributions.Normal(clean_NE[n, e], scale_NE[n, e])
            chances_NE[n, e] = 1 - normal.cdf(torch.tensor(others[1], dtype=torch.float64))
    gates_NE = torch.zeros(6, 5, dtype=torch.float64).scatter(1, chosen_NA, weights_NA)
    for weight, sums_E, loss in zip((0.7, 0.3), (chances_NE.sum(0), gates_NE.sum(0)), found, strict=True):
        expected = weight * sums_E.var(correction=0) / sums_E.mean() ** 2
        torch.testing.assert_close(loss, expected, atol=1e-8, rtol=1e-8)


def test_the_load_loss_balances_a_router_that_starts_skewed():
    torch.manual_seed(0)
    ours = noisy(count=4, active=1, load=1.0, importance=1.0).train()
    x_ND = torch.randn(400, D, dtype=torch.float64)
    x_ND[:, 0] = 1.0
    with torch.no_grad():
        ours.router.weight[0, 0] += 5  # every position prefers the first expert

    def largest_share() -> float:
        return torch.bincount(ours.gates(x_ND)[1][:, 0], minlength=4).max().item() / 400

    before, adam = largest_share(), torch.optim.Adam(ours.parameters(), lr=0.05)
    for _ in range(60):
        with collecting() as losses:
            ours(x_ND[None], INPUTS)
        adam.zero_grad()
        torch.stack(losses).sum().backward()
        adam.step()
    assert before > 0.7 and largest_share() < 0.4


def test_a_full_expert_adds_nothing_in_training():
    ours, x_BTD = built(count=1, capacity=0.5), torch.randn(2, 4, D, dtype=torch.float64)
    limited_BTD, whole_BTD = ours.train()(x_BTD, INPUTS), ours.eval()(x_BTD, INPUTS)
    torch.testing.assert_close(limited_BTD.flatten(0, 1)[:4], whole_BTD.flatten(0, 1)[:4], atol=0, rtol=0)
    assert not limited_BTD.flatten(0, 1)[4:].any()


def test_the_load_needs_noise():
    with pytest.raises(ValueError, match=r"load=0.1 needs the noise of gate=noisy_top_k"):
        ModelConfig(encoder="experts(load=0.1)")


@pytest.mark.parametrize("count, active, capacity", [(4, 1, 1.0), (4, 2, 1.5), (3, 2, 0.4), (5, 1, 0.01)])
def test_padded_experts_equal_the_sorted_ones(count, active, capacity):
    """Gradients are equal too. A GPU uses this form because it needs no synchronization."""
    ours = built(count=count, active=active, capacity=capacity).train()
    x_ND = torch.randn(30, D, dtype=torch.float64, requires_grad=True)
    results = []
    for compute in (lambda: ours._mixed(x_ND, INPUTS), lambda: _padded(ours, x_ND)):
        output_ND = compute()
        results.append((output_ND, *torch.autograd.grad(output_ND.square().sum(), [x_ND, *ours.parameters()])))
    for sorted_, padded in zip(*results, strict=True):
        torch.testing.assert_close(padded, sorted_, atol=1e-12, rtol=1e-12)


def _padded(ours: Experts, x_ND: torch.Tensor) -> torch.Tensor:
    weights_NA, chosen_NA = ours.gates(x_ND)
    expert_M = chosen_NA.flatten()
    each_MD = x_ND.repeat_interleave(ours.active, 0)
    found = ours.padded(each_MD, expert_M, expert_M.argsort(stable=True), ours._limit(len(expert_M)), INPUTS)
    return (found.view(*chosen_NA.shape, -1) * weights_NA.unsqueeze(-1)).sum(1)


def test_padded_experts_ask_for_no_number():
    """Tensors on the meta device have no values, so any operation that would synchronize with a GPU raises here."""
    ours = built(count=4, active=2, capacity=1.25, gate="noisy_top_k", importance=0.1, load=0.1).train().to("meta")
    with collecting():
        assert _padded(ours, torch.empty(30, D, dtype=torch.float64, device="meta")).shape == (30, D)
