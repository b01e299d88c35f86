"""Options of attention (comparison, window, kv_heads, norms, gate, biases) equal plain formulas."""

import math

import numpy
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from model.config import ModelConfig
from model.cost import activation_bytes, forward_flops, num_params
from model.layers.attention.attention_spec import blocked
from model.layers.attention.multi_head import CrossAttention, SelfAttention
from model.layers.contract import CacheShape, Inputs, StepContext
from model.layers.masks import blocking_bias
from model.layers.spec import Spec
from model.network import build_model
from model.parts.compatibility import COMPATIBILITY
from tests.kept import keeping
from tests.slow import mostly_slow
from tests.unit.model.test_attention import equation_1

# Each knob alone: it is counted, and its weights are shown.
KNOBS = [
    {"compatibility": "dot"},
    {"compatibility": "additive"},
    {"compatibility": "bilinear"},
    {"window": 4},
    {"kv_heads": 1},
    {"num_heads": 4, "kv_heads": 2},
    {"qk_norm": True},
    {"attention_gate": True},
    {"bias": False},
    {"positions": "relative", "position_clip": 3},
    {"positions": "relative", "position_clip": 3, "position_values": False},
    {"positions": "relative", "position_clip": 3, "position_keys": False},
    {"positions": "bias", "position_buckets": 6, "position_distance": 5},
    {"positions": "alibi"},
    {"positions": "rotary"},
    {"positions": "relative", "compatibility": "additive"},
    {"positions": "rotary", "qk_norm": True, "kv_heads": 1, "attention_gate": True},
]


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("kind", COMPATIBILITY)
@torch.no_grad()
def test_scores_are_the_formulas(small_config, kind):
    torch.manual_seed(0)
    compare = COMPATIBILITY[kind](small_config(compatibility=kind)).double()
    compare.initialise()
    q, k = randn(1, 2, 3, 4), randn(1, 2, 5, 4)
    scores = compare(q, k)
    for h in range(2):
        for i in range(3):
            for j in range(5):
                a, b = q[0, h, i], k[0, h, j]
                expected = {
                    "scaled_dot": lambda a=a, b=b: a @ b / 2,
                    "dot": lambda a=a, b=b: a @ b,
                    "additive": lambda a=a, b=b, h=h: compare.weight[h] @ (a + b).tanh(),
                    "bilinear": lambda a=a, b=b, h=h: a @ compare.weight[h] @ b,
                }[kind]()
                torch.testing.assert_close(scores[0, h, i, j], expected)


@pytest.mark.parametrize("d_k", [16, 64, 256])
@torch.no_grad()
def test_products_vary_by_d_k_at_the_start_unless_scaled(d_k):
    """Footnote 4: for components of variance 1 the product q·k has mean 0 and variance d_k."""
    torch.manual_seed(1)
    model = build_model(ModelConfig(num_layers=1, num_heads=2, d_k=d_k), 100)
    attention = model.encoder.layers[0].self_attention
    q, k, _ = attention.project(torch.randn(4, 400, 512), 0, 400)
    products = (q / q.std()) @ (k / k.std()).mT
    assert products.var().item() == pytest.approx(d_k, rel=0.15)
    assert attention.compare(q / q.std(), k / k.std()).var().item() == pytest.approx(1, rel=0.15)


@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_a_window_hides_what_is_farther_than_half_of_it(small_config, causal):
    torch.manual_seed(0)
    attention = SelfAttention(small_config(num_heads=1, window=5), Spec()).double()
    x_TD = randn(9, 8)
    q, k, v = (x_TD @ attention.qkv.weight.T + attention.qkv.bias).split(4, dim=1)
    near = (torch.arange(9)[:, None] - torch.arange(9)).abs() <= 2
    expected = equation_1(q, k, v, near.tril() if causal else near) @ attention.output.weight.T + attention.output.bias
    torch.testing.assert_close(attention(x_TD[None], Inputs(causal))[0], expected)


WINDOWED = [
    {"window": 1}, {"window": 4}, {"window": 7}, {"window": 16}, {"window": 24, "num_heads": 4, "kv_heads": 2},
    {"window": 8, "positions": "relative", "position_clip": 3}, {"window": 8, "compatibility": "additive"},
    {"window": 8, "positions": "bias", "position_buckets": 6, "position_distance": 5},
    {"window": 8, "positions": "alibi"}, {"window": 8, "positions": "rotary", "qk_norm": True, "attention_gate": True},
    {"window": 40, "d_v": 3},
]  # fmt: skip


@pytest.mark.parametrize("length", [57, 80, 131, 200])
@pytest.mark.parametrize("padded", [None, False, True], ids=["causal", "encoder", "padded"])
@pytest.mark.parametrize("changes", WINDOWED, ids=str)
def test_blocks_of_a_window_equal_the_mask_with_their_gradients(small_config, changes, padded, length):
    torch.manual_seed(0)
    attention = SelfAttention(small_config(**changes), Spec()).double()
    attention.initialise()
    keep = torch.arange(length) < torch.tensor([[length], [length // 3], [1]])
    inputs = Inputs(True) if padded is None else Inputs.encoder(keep if padded else None, torch.float64)
    used = (keep if padded else torch.ones_like(keep)).unsqueeze(-1)
    x_BTD, found = randn(3, length, 8).requires_grad_(), []
    factor = randn(3, length, 8)
    masked = attention.combine(x_BTD, *attention.project(x_BTD, 0, length), attention._mask(x_BTD, inputs))
    for output in (attention(x_BTD, inputs), masked):
        gradients = torch.autograd.grad((output * factor * used).sum(), [x_BTD, *attention.parameters()])
        found.append([output * used, *gradients])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("beams", [1, 3])
@torch.inference_mode()
def test_steps_of_a_window_keep_no_more_than_it_sees(small_config, beams):
    attention = SelfAttention(small_config(window=6, positions="relative"), Spec()).double()
    attention.initialise()
    x_BTD, shape = randn(beams * 2, 70, 8), CacheShape(2, beams, 70)
    state = attention.start(Inputs(True), shape)
    expected = attention(x_BTD, Inputs(True))
    own = torch.eye(beams, dtype=torch.bool)
    for time in range(70):
        bias = None if beams == 1 else blocking_bias(own.repeat(1, time + 1).expand(2, 1, -1, -1), torch.float64)
        step_RD = attention.step(x_BTD[:, time], state, StepContext(time, beams, None, bias, Inputs(True)))
        torch.testing.assert_close(step_RD, expected[:, time])
    assert {tensor.shape[2] for tensor in state.tensors.values()} == {4}


@pytest.mark.parametrize(("changes", "lengths"), [
    ({"window": 4}, (90, 100)), ({"window": 16}, (96, 80)), ({"window": 50}, (250, 130)),
    ({"window": 8, "positions": "relative"}, (90, 100)), ({"window": 8, "compatibility": "additive"}, (90, 100)),
    ({"window": 8, "kv_heads": 1, "compatibility": "bilinear"}, (96, 96)),
])  # fmt: skip
def test_blocks_are_counted_as_they_are_computed(changes, lengths):
    check_counts(changes, 8, *lengths)


def test_work_of_a_window_grows_with_the_length():
    for side in ("encoder", "decoder"):
        pairs, stored = zip(*(blocked(16, length, side) for length in (1024, 4096, 16384)), strict=True)
        assert pairs[1] == 4 * pairs[0] and pairs[2] == 4 * pairs[1] and stored[2] == 16 * stored[0]
        lengths = numpy.array([5, 20, 300])
        assert [list(one) for one in blocked(16, lengths, side)] == [
            list(one) for one in zip(*(blocked(16, int(n), side) for n in lengths), strict=True)
        ]


@pytest.mark.parametrize("kernel", ["auto", "plain", "sdpa"])
def test_a_window_of_twice_the_length_is_full_attention_bit_for_bit(small_model, kernel):
    full, wide = small_model(), small_model(window=14)
    for model in (full, wide):
        model.set_attention_kernel(kernel)
    source, target = torch.randint(20, (2, 7)), torch.randint(20, (2, 7))
    mask_BS = torch.tensor([[True] * 7, [True] * 3 + [False] * 4])
    assert torch.equal(full(source, mask_BS, target), wide(source, mask_BS, target))
    assert not torch.equal(full(source, mask_BS, target), small_model(window=4)(source, mask_BS, target))


def test_as_many_heads_of_keys_and_values_are_the_papers(small_model):
    ours, same = small_model(), small_model(kv_heads=2)
    assert [(n, p.shape) for n, p in ours.named_parameters()] == [(n, p.shape) for n, p in same.named_parameters()]
    source = torch.randint(20, (2, 5))
    assert torch.equal(ours(source, None, source), same(source, None, source))


@pytest.mark.parametrize("kv_heads", [1, 2])
@torch.no_grad()
def test_a_head_of_keys_and_values_serves_several_queries(small_config, kv_heads):
    torch.manual_seed(0)
    attention = SelfAttention(small_config(num_heads=4, d_v=3, kv_heads=kv_heads), Spec()).double()
    x_TD, heads = randn(6, 8), []
    groups = zip(attention.qkv.weight.chunk(kv_heads), attention.qkv.bias.chunk(kv_heads), strict=True)
    for weight, bias in groups:
        *queries, k, v = (x_TD @ weight.T + bias).split([4] * (4 // kv_heads) + [4, 3], dim=1)
        heads += [equation_1(q, k, v, torch.ones(6, 6)) for q in queries]
    expected = torch.cat(heads, dim=1) @ attention.output.weight.T + attention.output.bias
    torch.testing.assert_close(attention(x_TD[None], Inputs(False))[0], expected)


@torch.no_grad()
def test_norms_and_gate_are_their_formulas(small_config):
    torch.manual_seed(0)
    attention = CrossAttention(small_config(num_heads=1, qk_norm=True, attention_gate=True), Spec()).double()
    torch.nn.init.normal_(attention.query_norm.weight)
    x, memory = randn(5, 8), randn(6, 8)
    q = x @ attention.query.weight.T + attention.query.bias
    k, v = (memory @ attention.key_value.weight.T + attention.key_value.bias).split(4, dim=1)
    q, k = (z / ((z**2).mean(1, keepdim=True) + 1e-6).sqrt() for z in (q, k))
    heads = equation_1(q * attention.query_norm.weight, k, v, torch.ones(5, 6))
    gate = 1 / (1 + (-(x @ attention.gate.weight.T + attention.gate.bias)).exp())
    expected = (gate * heads) @ attention.output.weight.T + attention.output.bias
    inputs = Inputs.decoder(memory[None], None, torch.float64)
    torch.testing.assert_close(attention(x[None], inputs)[0], expected)


def test_no_biases_in_sublayers(small_model):
    names = [name for name, _ in small_model(bias=False).named_parameters() if name.endswith("bias")]
    assert names and all("norm" in name for name in names)


@pytest.mark.parametrize("changes", KNOBS, ids=str)
@torch.no_grad()
def test_weights_are_those_of_the_forward_pass(small_model, changes):
    """If value m is changed alone, row t of the output changes by weight (t, m) times the change."""
    model = small_model(**changes, encoder="self_attention", num_layers=1)
    attention = model.encoder.layers[0].self_attention
    attention.gate = None
    if "positions" in changes and changes["positions"] == "relative" and attention.distances.value_weight is not None:
        attention.distances.value_weight.zero_()  # it adds to the average besides the values
    x_BTD, H, V = randn(1, 6, 8), attention.num_heads, attention.d_v
    attention.output = torch.nn.Linear(H * V, H * V).double()
    attention.output.weight.copy_(torch.eye(H * V))
    attention.output.bias.zero_()
    for inputs in (Inputs(True), Inputs.encoder(torch.tensor([[True] * 4 + [False] * 2]), torch.float64)):
        weights = attention.weights(x_BTD, inputs)
        values = attention._per_query(attention.project(x_BTD, 0, 6)[2])
        heads = attention(x_BTD, inputs).view(1, 6, H, V).transpose(1, 2)
        torch.testing.assert_close(weights @ values, heads, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("changes", KNOBS, ids=str)
def test_counts_against_torchs_counter_and_autograd(changes):
    check_counts(changes, 60, 21, 17)


def check_counts(changes, B, S, T):
    config = ModelConfig(
        **{"num_layers": 2, "d_model": 32, "d_ff": 16, "num_heads": 2, "d_k": 16, "d_v": 16, **changes}
    )
    model = build_model(config, 64)
    assert num_params(config, 64) == sum(p.numel() for p in model.parameters())
    model.set_attention_kernel("plain")
    source, target = torch.randint(64, (B, S)), torch.randint(64, (B, T))
    with keeping(model) as kept, FlopCounterMode(display=False) as counter:
        hidden = model(source, None, target)
    assert counter.get_total_flops() + 2 * B * T * 32 * 64 == B * forward_flops(config, 64, S, T)
    assert activation_bytes(config, B, S, T) == pytest.approx(kept.nbytes, rel=0.04)
    assert hidden.isfinite().all()


@pytest.mark.parametrize("changes", KNOBS, ids=str)
@torch.no_grad()
def test_torchs_kernels_agree_also_in_half_the_width(small_model, changes):
    model = small_model(**changes).float()
    source, target = torch.randint(20, (2, 7)), torch.randint(20, (2, 5))
    mask_BS = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    found = {}
    for kernel in ("plain", "sdpa"):
        model.set_attention_kernel(kernel)
        found[kernel] = model(source, mask_BS, target)
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(model(source, mask_BS, target), found[kernel], atol=0.2, rtol=0.1)
    torch.testing.assert_close(found["sdpa"], found["plain"], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("changes", mostly_slow(KNOBS, 0), ids=str)
def test_layers_are_one_graph_each(small_model, changes):
    torch.compiler.reset()  # the networks of other tests count towards the limit of graphs
    model = small_model(dropout=0.0, **changes).train()
    source, target = torch.randint(20, (2, 5)), torch.randint(20, (2, 5))
    expected = model(source, None, target)
    expected.sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    for layer in model.layers():
        layer.compile(dynamic=True, fullgraph=True, backend="eager")
    model.zero_grad()
    compiled = model(source, None, target)
    compiled.sum().backward()
    torch.testing.assert_close(compiled, expected)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_heads_that_cannot_be_divided_and_empty_windows_are_refused():
    with pytest.raises(ValueError, match=r"kv_heads = 3 does not divide num_heads = 8.*1, 2, 4, 8"):
        ModelConfig(kv_heads=3)
    with pytest.raises(ValueError, match=r"self_attention\(window=0\).*greater than or equal to 1"):
        ModelConfig(encoder="self_attention(window=0)")
    with pytest.raises(ValueError, match="window"):
        ModelConfig(window=0)


def test_options_of_positions_are_read_with_their_kind_alone():
    reads = {kind: ModelConfig(positions=kind).settings_read() for kind in ("sinusoidal", "relative")}
    assert reads["relative"] - reads["sinusoidal"] == {"position_clip", "position_keys", "position_values"}
    assert math.isclose(1.0, ModelConfig().rotary_share) and "rotary_share" not in reads["relative"]
