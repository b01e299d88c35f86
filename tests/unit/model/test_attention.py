"""Equation 1 and figure 2 equal a formula computed head by head and torch's own module."""

import math

import pytest
import torch

from model.layers.attention import kernels
from model.layers.attention.kernels import KERNELS, attend
from model.layers.attention.multi_head import CrossAttention, SelfAttention
from model.layers.contract import Inputs
from model.layers.masks import blocking_bias
from model.layers.spec import Spec
from model.protocol import Network


def heads(batch=3, num_heads=2, queries=5, memory=7, d_k=4, d_v=6):
    torch.manual_seed(0)
    return (
        torch.randn(batch, num_heads, queries, d_k, dtype=torch.float64),
        torch.randn(batch, num_heads, memory, d_k, dtype=torch.float64),
        torch.randn(batch, num_heads, memory, d_v, dtype=torch.float64),
    )


def equation_1(q_QK, k_MK, v_MV, mask_QM):
    scores = (q_QK @ k_MK.T / math.sqrt(q_QK.shape[1])).exp() * mask_QM
    return scores / scores.sum(1, keepdim=True) @ v_MV


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_are_equation_1(kernel):
    q, k, v = heads()
    mask_BM = torch.rand(3, 7) < 0.7
    mask_BM[:, 0] = True
    ours = attend(q, k, v, blocking_bias(mask_BM[:, None, None], torch.float64), kernel=kernel)
    for b in range(3):
        for h in range(2):
            torch.testing.assert_close(ours[b, h], equation_1(q[b, h], k[b, h], v[b, h], mask_BM[b]))


@pytest.mark.parametrize("kernel", KERNELS)
def test_causal_kernels_see_no_later_position(kernel):
    q, k, v = heads(queries=6, memory=6)
    ours = attend(q, k, v, causal=True, kernel=kernel)
    mask_QM = torch.ones(6, 6, dtype=torch.bool).tril()
    torch.testing.assert_close(ours[1, 1], equation_1(q[1, 1], k[1, 1], v[1, 1], mask_QM))


@pytest.mark.parametrize("precision", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_row_that_may_attend_to_nothing_is_finite(kernel, precision):
    q, k, v = (x.to(precision).requires_grad_() for x in heads())
    mask_BM = torch.ones(3, 7, dtype=torch.bool)
    mask_BM[1] = False
    attended = attend(q, k, v, blocking_bias(mask_BM[:, None, None], precision), kernel=kernel)
    attended.sum().backward()
    assert all(x.isfinite().all() for x in (attended, q.grad, k.grad, v.grad))
    torch.testing.assert_close(attended[1], v[1].mean(1, keepdim=True).expand_as(attended[1]))


@pytest.mark.parametrize("causal", [False, True])
def test_kernels_agree_on_gradients(causal):
    grads = {}
    for kernel in KERNELS:
        inputs = [x.requires_grad_() for x in heads(queries=7)]
        out = attend(*inputs, causal=causal, kernel=kernel)
        grads[kernel] = torch.autograd.grad(out.square().sum(), inputs)
    for plain, sdpa in zip(grads["plain"], grads["sdpa"], strict=True):
        torch.testing.assert_close(plain, sdpa)


@pytest.mark.parametrize("kernel", KERNELS)
def test_dropout_on_weights_keeps_the_mean(kernel):
    torch.manual_seed(1)
    q, k, v = (x[:1].expand(4000, -1, -1, -1) for x in heads())
    whole = attend(q[:1], k[:1], v[:1], kernel=kernel)[0]
    dropped = attend(q, k, v, dropout=0.3, kernel=kernel)
    assert not torch.equal(dropped[0], dropped[1])
    torch.testing.assert_close(dropped.mean(0), whole, atol=0.06, rtol=0)


def test_free_d_k_and_d_v(small_config):
    """MultiHead(Q, K, V) = Concat(head_1, …) W^O with widths that do not divide d_model (row (B))."""
    attention = SelfAttention(small_config(num_heads=3, d_k=5, d_v=2), Spec()).double()
    x_TD = torch.randn(4, 8, dtype=torch.float64)
    outputs = []
    for weight, bias in zip(attention.qkv.weight.chunk(3), attention.qkv.bias.chunk(3), strict=True):
        q, k, v = (x_TD @ weight.T + bias).split([5, 5, 2], dim=1)
        outputs.append(equation_1(q, k, v, torch.ones(4, 4)))
    expected = torch.cat(outputs, dim=1) @ attention.output.weight.T + attention.output.bias
    torch.testing.assert_close(attention(x_TD[None], Inputs.encoder(None, x_TD.dtype))[0], expected)


def test_cross_attention_against_torch(small_config):
    torch.manual_seed(2)
    ours = CrossAttention(small_config(), Spec()).double()
    theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    key, value = ours.key_value.weight.view(2, 2, 4, 8).transpose(0, 1).reshape(2, 8, 8)
    key_bias, value_bias = ours.key_value.bias.view(2, 2, 4).transpose(0, 1).reshape(2, 8)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.query.weight, key, value]))
        theirs.in_proj_bias.copy_(torch.cat([ours.query.bias, key_bias, value_bias]))
        theirs.out_proj.load_state_dict(ours.output.state_dict())
    x, memory = torch.randn(2, 5, 8, dtype=torch.float64), torch.randn(2, 6, 8, dtype=torch.float64)
    mask_BS = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    expected, _ = theirs(x, memory, memory, key_padding_mask=~mask_BS, need_weights=False)
    actual = ours(x, Inputs.decoder(memory, mask_BS, torch.float64))
    torch.testing.assert_close(actual, expected)


def test_the_kernel_of_a_model_can_be_set(small_model, monkeypatch):
    model: Network = small_model()
    calls = []
    monkeypatch.setitem(KERNELS, "sdpa", lambda *a: calls.append("sdpa") or KERNELS["plain"](*a))
    source = torch.randint(20, (2, 5))
    model(source, None, source)
    assert not calls  # "auto" goes by length on a CPU
    model.set_attention_kernel("sdpa")
    model(source, None, source)
    assert len(calls) == 6  # 2 layers × (encoder, decoder, cross)
    with pytest.raises(ValueError, match=r"'flash'.*auto, plain, sdpa, by_length"):
        model.set_attention_kernel("flash")


@pytest.mark.parametrize(
    ("queries", "memory", "dtype", "d_v", "dropout", "fused"),
    [
        (32, 40, torch.float32, 4, 0.0, True),
        (31, 40, torch.float32, 4, 0.0, False),
        (40, 31, torch.float32, 4, 0.0, False),
        (40, 40, torch.bfloat16, 4, 0.0, False),
        (40, 40, torch.float32, 5, 0.0, False),
        (40, 40, torch.float32, 4, 0.5, False),
    ],
)
def test_a_processor_takes_the_fused_kernel_where_it_is_quicker(
    queries, memory, dtype, d_v, dropout, fused, monkeypatch
):
    calls = []
    monkeypatch.setattr(kernels, "attend_sdpa", lambda q, k, v, *_: calls.append("sdpa") or q @ k.mT @ v)
    q, k, v = (torch.randn(2, 2, n, d).to(dtype) for n, d in ((queries, 4), (memory, 4), (memory, d_v)))
    attend(q, k, v, dropout=dropout)
    assert bool(calls) == fused


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [20, 33])
def test_by_length_equals_plain_and_so_do_its_gradients(length, causal):
    q, k, v = (torch.randn(2, 2, length, 4, requires_grad=True) for _ in range(3))
    lengths = torch.tensor([[length], [length - 7]])
    bias = None if causal else blocking_bias(torch.arange(length) < lengths, torch.float32)[:, None, None]
    found = [attend(q, k, v, bias, causal=causal, kernel=kernel) for kernel in ("by_length", "plain")]
    torch.testing.assert_close(*found, atol=1e-6, rtol=1e-5)
    gradients = [torch.autograd.grad(out.square().sum(), (q, k, v)) for out in found]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
