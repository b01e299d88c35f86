"""The smoothed loss equals its definition, and its chunked gradient equals autograd's."""

import contextlib
import math

import pytest
import torch
from torch.nn import functional as F

from experiments.training.loss import logsumexp_of, smoothed_loss


def reference_loss(hidden, weight, target, pieces, smoothing):
    """Compute the sums of loss and nll by the formula, differentiated by autograd."""
    z = hidden @ weight[:pieces].T
    lse = z.logsumexp(1)
    right = z.gather(1, target[:, None])[:, 0]
    loss = lse - (1 - smoothing) * right - smoothing / (pieces - 1) * (z.sum(1) - right)
    return loss.sum(), (lse - right).sum().detach()


def _case(tokens=23, width=8, pieces=11, rows=16, dtype=torch.float64, scale=1.0):
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(tokens, width, generator=generator, dtype=dtype) * scale
    weight = torch.randn(rows, width, generator=generator, dtype=dtype)
    target = torch.randint(0, pieces, (tokens,), generator=generator)
    return hidden.requires_grad_(), weight.requires_grad_(), target, pieces


def _naive(hidden, weight, target, pieces, smoothing):
    """Compute the cross-entropy with the target distribution, token by token and piece by piece."""
    loss = nll = 0.0
    for row, right in zip(hidden.detach(), target.tolist(), strict=True):
        log_p = F.log_softmax(weight.detach()[:pieces] @ row, 0).tolist()
        for piece in range(pieces):
            q = 1 - smoothing if piece == right else smoothing / (pieces - 1)
            loss -= q * log_p[piece]
        nll -= log_p[right]
    return loss, nll


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("function", [reference_loss, smoothed_loss])
def test_both_forms_equal_the_definition(function, smoothing):
    case = _case()
    loss, nll = function(*case, smoothing)
    assert (loss.item(), nll.item()) == pytest.approx(_naive(*case, smoothing), rel=1e-12)


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-12), (torch.bfloat16, 2**-8)])
def test_the_sum_of_exponentials_follows_from_the_softmax(dtype, error):
    """This also holds for logits whose other probabilities round to 0."""
    z = torch.cat((torch.randn(50, 300) * 3, torch.zeros(1, 300), torch.eye(300)[:1] * 1e4)).to(dtype)
    found = logsumexp_of(z, z.softmax(1), torch.float64)
    torch.testing.assert_close(found, z.double().logsumexp(1), atol=error, rtol=0)


def test_the_loss_on_a_gpu_asks_for_no_number(monkeypatch):
    """Tensors on the meta device have no values, so any operation that would synchronize with a GPU raises here."""
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: False)  # that device has none
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    hidden, weight, target, pieces = (x.to("meta") if isinstance(x, torch.Tensor) else x for x in _case())
    loss, nll = smoothed_loss(hidden.detach().requires_grad_(), weight.detach().requires_grad_(), target, pieces, 0.1)
    loss.backward()
    assert loss.shape == nll.shape == ()


def test_without_smoothing_the_loss_is_the_nll_and_torchs_cross_entropy():
    hidden, weight, target, pieces = _case()
    loss, nll = smoothed_loss(hidden, weight, target, pieces, 0.0)
    expected = F.cross_entropy(hidden @ weight[:pieces].T, target, reduction="sum")
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(nll, expected)


def test_the_smoothed_loss_is_not_torchs_but_its_rescaled_epsilon():
    # torch gives each of the V pieces ε/V: 1 − ε' + ε'/V on the right one
    hidden, weight, target, pieces = _case()
    epsilon = 0.2 * pieces / (pieces - 1)
    torchs = F.cross_entropy(hidden @ weight[:pieces].T, target, reduction="sum", label_smoothing=epsilon)
    torch.testing.assert_close(smoothed_loss(hidden, weight, target, pieces, 0.2)[0], torchs)


@pytest.mark.parametrize("chunk", [1, 4, 23, 100])
def test_gradients_equal_autograds_for_every_chunk_size(chunk):
    hidden, weight, target, pieces = _case()
    expected = torch.autograd.grad(reference_loss(hidden, weight, target, pieces, 0.1)[0] * 0.3, (hidden, weight))
    got = torch.autograd.grad(smoothed_loss(hidden, weight, target, pieces, 0.1, chunk)[0] * 0.3, (hidden, weight))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)
    assert not got[1][pieces:].any(), "padding rows are no pieces"


def test_gradcheck():
    hidden, weight, target, pieces = _case(tokens=5, width=3)
    assert torch.autograd.gradcheck(
        lambda h, w: smoothed_loss(h, w, target, pieces, 0.1, chunk=2)[0], (hidden, weight), eps=1e-6, atol=1e-8
    )


def test_many_groups_of_chunks_add_up():
    hidden, weight, target, pieces = _case(tokens=61)  # 3 tokens × 2 chunks a group: 10 groups and a rest
    expected = torch.autograd.grad(reference_loss(hidden, weight, target, pieces, 0.1)[0], (hidden, weight))
    got = torch.autograd.grad(smoothed_loss(hidden, weight, target, pieces, 0.1, 3)[0], (hidden, weight))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("dtype", "off"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_a_large_vocabulary_is_no_other_kernel(dtype, off):
    """The softmax overwrites its logits, and torch's kernel processes a row of this length in blocks."""
    hidden, weight, target, pieces = _case(tokens=40, pieces=36_990, rows=36_992, dtype=torch.float32, scale=2.0)
    expected = torch.autograd.grad(reference_loss(hidden, weight, target, pieces, 0.1)[0], (hidden, weight))
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        loss, nll = smoothed_loss(hidden, weight, target, pieces, 0.1, chunk=16)
    for a, b in zip(torch.autograd.grad(loss, (hidden, weight)), expected, strict=True):
        assert (a - b).norm() / b.norm() < off
    torch.testing.assert_close(nll, reference_loss(hidden, weight, target, pieces, 0.1)[1], rtol=off, atol=0)


def test_improbable_targets_keep_a_finite_exact_nll():
    hidden, weight, target, pieces = _case(dtype=torch.float32, scale=300.0)
    loss, nll = smoothed_loss(hidden, weight, target, pieces, 0.1)
    exact = reference_loss(hidden.double(), weight.double(), target, pieces, 0.1)
    assert math.isfinite(loss.item())
    torch.testing.assert_close(torch.stack([loss, nll]).double(), torch.stack(exact), rtol=1e-5, atol=0)


def test_no_gradient_is_computed_where_none_is_wanted():
    hidden, weight, target, pieces = _case()
    with torch.no_grad():
        loss, nll = smoothed_loss(hidden, weight, target, pieces, 0.1)
    assert not loss.requires_grad
    torch.testing.assert_close(nll, reference_loss(hidden, weight, target, pieces, 0.1)[1])


def test_no_tokens_at_all():
    hidden, weight, target, pieces = _case(tokens=0)
    loss, nll = smoothed_loss(hidden, weight, target, pieces, 0.1)
    loss.backward()
    assert (loss.item(), nll.item()) == (0.0, 0.0)
    assert not weight.grad.any()


def test_under_autocast_products_are_bf16_and_sums_fp32():
    hidden, weight, target, pieces = _case(dtype=torch.float32)
    exact = torch.autograd.grad(reference_loss(hidden, weight, target, pieces, 0.1)[0], (hidden, weight))
    with torch.autocast("cpu", torch.bfloat16):
        loss, nll = smoothed_loss(hidden, weight, target, pieces, 0.1)
    assert loss.dtype == nll.dtype == torch.float32
    for a, b in zip(torch.autograd.grad(loss, (hidden, weight)), exact, strict=True):
        assert a.dtype == torch.float32
        assert 0 < (a - b).norm() / b.norm() < 1e-2
