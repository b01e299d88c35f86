"""Relative and absolute positions in attention equal their formulas, computed pair by pair."""

import math

import pytest
import torch

from model.config import ModelConfig
from model.layers.attention.multi_head import SelfAttention
from model.layers.contract import Inputs
from model.layers.spec import Spec
from model.network import build_model
from model.parts.distances import Alibi, DistanceBias, buckets, slopes

T, D, K, V, H = 9, 8, 4, 6, 2


def attention(**changes) -> SelfAttention:
    torch.manual_seed(3)
    config = ModelConfig(**{"d_model": D, "num_heads": H, "d_k": K, "d_v": V, "max_length": 5, **changes})
    built = SelfAttention(config, Spec()).double()
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return built


def inputs(causal) -> Inputs:
    return Inputs(causal) if causal else Inputs.encoder(None, torch.float64)


def by_pairs(module, x_TD, causal, score, value=lambda weight, i, j, v: weight * v):
    """Compute attention with loops over heads, queries and keys. score(h, i, j, q, k) returns a number."""
    outputs = []
    for h, (weight, bias) in enumerate(zip(module.qkv.weight.chunk(H), module.qkv.bias.chunk(H), strict=True)):
        q, k, v = (x_TD @ weight.T + bias).split([K, K, V], dim=1)
        rows = []
        for i in range(T):
            keys = range(i + 1 if causal else T)
            powers = [math.exp(score(h, i, j, q[i], k[j])) for j in keys]
            rows.append(sum(value(p / sum(powers), i, j, v[j]) for j, p in zip(keys, powers, strict=True)))
        outputs.append(torch.stack(rows))
    return torch.cat(outputs, dim=1) @ module.output.weight.T + module.output.bias


def compare(module, causal, score, value=lambda weight, i, j, v: weight * v, **tolerance):
    x_TD = torch.randn(T, D, dtype=torch.float64)
    expected = by_pairs(module, x_TD, causal, score, value)
    torch.testing.assert_close(module(x_TD[None], inputs(causal))[0], expected, **tolerance)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("keys", "values"), [(True, True), (True, False), (False, True)])
@torch.no_grad()
def test_relative_positions_are_equations_3_and_4_of_shaw(causal, keys, values):
    module = attention(positions="relative", position_clip=2, position_keys=keys, position_values=values)
    table = module.distances

    def row(i, j):
        return max(-2, min(2, j - i)) + 2

    def score(h, i, j, q, k):
        return float(q @ (k + table.key_weight[row(i, j)] if keys else k)) / math.sqrt(K)

    def value(weight, i, j, v):
        return weight * (v + table.value_weight[row(i, j)] if values else v)

    compare(module, causal, score, value)


@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_rotary_positions_turn_pairs_as_complex_numbers(causal, share):
    module = attention(positions="rotary", rotary_share=share)  # max_length = 5 < T: the rest is computed on demand
    pairs = round(K * share) // 2

    def score(h, i, j, q, k):
        total = float(q[2 * pairs :] @ k[2 * pairs :])
        for p in range(pairs):
            turn = complex(0, (i - j) * 10000 ** (-2 * p / (2 * pairs)))  # of the distance alone
            a, b = (complex(float(x[2 * p]), float(x[2 * p + 1])) for x in (q, k))
            total += (a * b.conjugate() * complex(math.cos(turn.imag), math.sin(turn.imag))).real
        return total / math.sqrt(K)

    compare(module, causal, score, atol=1e-6, rtol=1e-6)  # the table of angles is in fp32


@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_alibi_subtracts_a_slope_times_the_distance(causal):
    module = attention(positions="alibi")
    compare(module, causal, lambda h, i, j, q, k: float(q @ k) / math.sqrt(K) - [1 / 16, 1 / 256][h] * abs(i - j))


def test_the_slopes_of_the_paper_and_of_its_authors_code():
    assert slopes(8) == [0.5**i for i in range(1, 9)]
    assert slopes(16) == pytest.approx([2 ** (-i / 2) for i in range(1, 17)])
    assert slopes(12) == pytest.approx([*slopes(8), *slopes(16)[0::2][:4]])
    assert slopes(1) == [2**-8]
    assert all(len(slopes(n)) == n for n in range(1, 40))


def published_bucket(relative: int, bidirectional: bool, count: int, farthest: int) -> int:
    """Compute T5's bucket of one relative position (memory − query), as its documentation describes it."""
    offset = 0
    if bidirectional:
        count //= 2
        offset = count if relative > 0 else 0
        away = abs(relative)
    else:
        away = max(-relative, 0)
    exact = count // 2
    if away < exact:
        return offset + away
    # rounded to fp32's digits: in fp64 the edge of a bucket falls beside the published one
    grown = math.log(away / exact) / math.log(farthest / exact) * (count - exact)
    return offset + min(exact + int(round(grown, 5)), count - 1)


@pytest.mark.parametrize(("count", "farthest"), [(32, 128), (4, 5), (16, 100), (64, 1000), (2, 3)])
@pytest.mark.parametrize("causal", [False, True])
def test_buckets_are_those_of_t5(causal, count, farthest):
    if count < 4 and not causal:
        pytest.skip("an encoder needs four buckets")
    distances = torch.arange(-2 * farthest, 2 * farthest + 1)
    expected = [published_bucket(d, not causal, count, farthest) for d in distances.tolist()]
    found = buckets(distances, causal, count, farthest)
    assert found.tolist() == expected
    # all but one: an encoder's bucket "0 after the query" can never be met
    assert len(set(expected)) == count - (not causal)


@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_t5_adds_a_number_per_head_and_bucket(causal):
    module = attention(positions="bias", position_buckets=6, position_distance=5)

    def score(h, i, j, q, k):
        bucket = published_bucket(j - i, not causal, 6, 5)
        return float(q @ k) / math.sqrt(K) + float(module.distances.weight[bucket, h])

    compare(module, causal, score)


@pytest.mark.parametrize("shared", [True, False])
def test_t5_has_one_table_per_stack_or_per_layer(small_config, tmp_path, shared):
    line = "2 * (self_attention, cross_attention), self_attention(num_heads=1)"
    model = build_model(small_config(positions="bias", position_shared=shared, decoder=line), 64)
    tables = {name: p for name, p in model.named_parameters() if "distances" in name}
    assert len(tables) == (3 if shared else 5)  # another number of heads has a table of its own
    first, second = (model.decoder.layers[i].self_attention.distances for i in (0, 1))
    assert isinstance(first, DistanceBias) and isinstance(second, DistanceBias)
    assert (first.table is second.table) == shared
    assert len({id(t.untyped_storage()) for t in model.state_dict().values()}) == len(model.state_dict())


@pytest.mark.parametrize("positions", ["relative", "bias", "alibi", "rotary"])
@torch.no_grad()
def test_a_shift_changes_nothing_but_order_does(small_model, positions):
    """Attention depends only on distances: pieces after others that they cannot see are treated like the first ones."""
    model = small_model(positions=positions, encoder="self_attention(window=2)", max_length=4)
    source = torch.randint(20, (1, 12))
    whole, part = model.encode(source), model.encode(source[:, 5:])
    torch.testing.assert_close(whole[:, 6:], part[:, 1:], atol=1e-6, rtol=0)
    assert not torch.allclose(model.encode(source.flip(1)).flip(1), whole) or positions in ("alibi",)


@torch.no_grad()
def test_alibi_in_an_encoder_is_the_same_in_both_directions():
    bias = Alibi(ModelConfig(num_heads=3)).bias(torch.arange(-4, 5)[None], False)
    assert torch.equal(bias, bias.flip(2)) and bias.max() == 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"positions": "rotary", "d_k": 5}, r"d_k · rotary_share = 5 · 1 = 5 is not an even number"),
        ({"positions": "rotary", "d_k": 10, "rotary_share": 0.25}, r"10 · 0.25 = 2.5 is not an even"),
        ({"positions": "bias", "position_buckets": 3}, r"position_buckets = 3.* an even number of buckets"),
        ({"positions": "bias", "position_distance": 8}, r"larger than the 8 distances"),
        ({"positions": "relative", "position_keys": False, "position_values": False}, "neither keys nor values"),
        (
            {"positions": "alibi", "encoder": "N * feed_forward", "decoder": "cross_attention"},
            "needs self_attention, but there is none",
        ),
    ],
)
def test_impossible_positions_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        ModelConfig(**settings)
