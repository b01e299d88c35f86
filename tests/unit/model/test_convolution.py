"""Convolutions equal torch's and a feed-forward network, and their counts are right."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from model.config import ModelConfig
from model.layers.contract import Inputs
from model.layers.convolutions.convolution import Convolution
from model.layers.convolutions.convolution_spec import ConvolutionSpec
from model.layers.position_wise.feed_forward import FeedForward
from model.layers.position_wise.feed_forward_spec import FeedForwardSpec
from model.network import initialise

B, T, D = 3, 9, 8


def built(**options: object) -> Convolution:
    return Convolution(ModelConfig(d_model=D, d_ff=D), ConvolutionSpec(**options)).double()  # type: ignore[arg-type]


def torch_conv(ours: Convolution, kernel: int, dilation: int, out: int) -> nn.Conv1d:
    theirs = nn.Conv1d(D, out, kernel, dilation=dilation).double()
    with torch.no_grad():
        theirs.weight.copy_(ours.window.weight.unflatten(1, (kernel, D)).mT)
        theirs.bias.copy_(ours.window.bias)
    return theirs


@pytest.mark.parametrize("kernel, dilation", [(1, 1), (3, 1), (5, 2), (3, 4)])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_it_equals_torch(kernel, dilation, gated, causal):
    ours = built(kernel=kernel, dilation=dilation, gated=gated)
    theirs = torch_conv(ours, kernel, dilation, 2 * D if gated else D)
    x_BTD, reach = torch.randn(B, T, D, dtype=torch.float64), (kernel - 1) * dilation
    before = reach if causal else reach // 2
    expected_BCT = theirs(nn.functional.pad(x_BTD.mT, (before, reach - before)))
    expected_BTD = (nn.functional.glu(expected_BCT, 1) if gated else expected_BCT).mT
    torch.testing.assert_close(ours(x_BTD, Inputs(causal)), expected_BTD, atol=1e-12, rtol=0)


@pytest.mark.parametrize("causal", [False, True])
def test_a_rectified_one_is_the_linear_one_without_its_negative_part(causal):
    linear, rectified = built(kernel=3), built(kernel=3, rectified=True)
    rectified.load_state_dict(linear.state_dict())
    x_BTD = torch.randn(B, T, D, dtype=torch.float64)
    torch.testing.assert_close(rectified(x_BTD, Inputs(causal)), linear(x_BTD, Inputs(causal)).clamp(min=0))
    with pytest.raises(ValueError, match="a gated linear unit or a ReLU"):
        ConvolutionSpec(gated=True, rectified=True).check(ModelConfig(), "decoder")


@pytest.mark.parametrize("dilation", [1, 2])
def test_separable_equals_torchs_grouped_convolution_and_one_of_width_1(dilation):
    ours = built(kernel=3, separable=True, dilation=dilation)
    grouped = nn.Conv1d(D, D, 3, padding="same", dilation=dilation, groups=D, bias=False).double()
    grouped.load_state_dict(ours.depthwise.state_dict())
    pointwise = torch_conv(ours, 1, 1, D)
    x_BTD = torch.randn(B, T, D, dtype=torch.float64)
    torch.testing.assert_close(ours(x_BTD, Inputs(False)), pointwise(grouped(x_BTD.mT)).mT, atol=1e-12, rtol=0)


def test_feed_forward_is_two_convolutions_of_kernel_1_with_a_relu_between():
    """Section 3.3: "Another way of describing this is as two convolutions with kernel size 1"."""
    first, second = built(kernel=1), built(kernel=1)
    network = FeedForward(ModelConfig(d_model=D, d_ff=D), FeedForwardSpec()).double()
    network.inner.load_state_dict(first.window.state_dict())
    network.outer.load_state_dict(second.window.state_dict())
    x_BTD, inputs = torch.randn(B, T, D, dtype=torch.float64), Inputs(True)
    torch.testing.assert_close(second(first(x_BTD, inputs).relu(), inputs), network(x_BTD, inputs), atol=1e-12, rtol=0)


def test_counts_from_512_to_512():
    def params(**options: object) -> int:
        return ConvolutionSpec(**options).cost(ModelConfig(), 1, 1, "decoder").params  # type: ignore[arg-type]

    assert params(kernel=3, gated=True) == 1_573_888  # 3·512·1024 + 1024: one bias for each of both halves
    assert params(kernel=3) == 3 * 512**2 + 512
    assert params(kernel=3, separable=True) == 3 * 512 + 512**2 + 512


@pytest.mark.parametrize("options", [{}, {"gated": True}, {"separable": True, "kernel": 5}, {"dilation": 3}])
def test_operations_equal_those_that_torch_counts(options):
    x_BTD = torch.randn(B, T, D, dtype=torch.float64)
    with FlopCounterMode(display=False) as counted:
        built(**options)(x_BTD, Inputs(True))
    cost = ConvolutionSpec(**options).cost(ModelConfig(d_model=D), T, T, "decoder")
    assert counted.get_total_flops() == B * cost.flops


def test_weights_are_drawn_with_the_fans_of_what_one_output_reads():
    model = nn.ModuleList([Convolution(ModelConfig(), ConvolutionSpec(kernel=7, separable=True))])
    torch.manual_seed(0)
    initialise(model)
    (convolution,) = model
    for weight, bound in (
        (convolution.depthwise.weight, (3 / 7) ** 0.5),
        (convolution.window.weight, (3 / 512) ** 0.5),
    ):
        assert 0.95 * bound < weight.abs().max() <= bound


def test_an_even_kernel_is_for_decoders():
    with pytest.raises(ValueError, match=r"model.encoder = .*column 7: kernel=4 has no middle.* kernel=5"):
        ModelConfig(encoder="(gru, convolution(kernel=4))")
    ModelConfig(decoder="convolution(kernel=4), cross_attention")
