"""The softmax over the memory's positions equals torch's, in value and gradient."""

import pytest
import torch

from model.layers.attention.kernels import AT_A_TIME, softmax_over_memory
from model.layers.masks import BLOCKED

TOLERANCE = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 4e-3}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("memory", "queries"), [(1, 1), (2, 3), (7, 5), (24, 24), (33, 17), (5, AT_A_TIME)])
def test_equals_torchs(dtype, memory, queries):
    torch.manual_seed(memory)
    scores = (5 * torch.randn(3, 2, memory, queries)).to(dtype)
    scores[0, 0, memory // 2 :] += BLOCKED  # padding
    scores[1, 1] += BLOCKED  # a query that may attend to nothing
    gradient = torch.randn_like(scores)
    results = []
    for softmax in (softmax_over_memory, lambda x: x.softmax(dim=-2)):
        x = scores.clone().requires_grad_()
        weights = softmax(x)
        weights.backward(gradient)
        results.append((weights.detach(), x.grad))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_very_large_scores_do_not_overflow():
    scores = torch.tensor([[1e4, -1e4], [1e4 - 1, 1e4]])
    expected = torch.tensor([[1 / (1 + 0.36787944), 0.0], [0.36787944 / (1 + 0.36787944), 1.0]])
    torch.testing.assert_close(softmax_over_memory(scores), expected)


def test_the_gradient_is_the_derivative():
    torch.manual_seed(0)
    scores = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(softmax_over_memory, (scores,))
