"""Repacked matrices give the results of F.linear and follow changes of their weights."""

import pytest
import torch
import torch.nn.functional as F

from model.config import ModelConfig
from model.network import build_model
from model.search.packed_linear import MANY_ROWS, NARROW_FROM, PACK_BESIDE_FROM, PACK_FROM, PackedLinear, packing_works


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("rows", [1, 4, 37, MANY_ROWS])
@pytest.mark.parametrize("outputs", [24, PACK_BESIDE_FROM // 64 + 5, PACK_FROM // 64 + 5])
@torch.inference_mode()
def test_equals_linear_in_fp32(outputs, rows, relu):
    torch.manual_seed(0)
    weight, bias, x = torch.randn(outputs, 64), torch.randn(outputs), torch.randn(rows, 64)
    projection = PackedLinear(weight, bias, torch.float32, relu=relu)
    expected = F.linear(x, weight, bias)
    torch.testing.assert_close(projection(x), expected.relu() if relu else expected, atol=1e-4, rtol=1e-5)
    assert (projection.packed is not None) == (weight.numel() >= PACK_BESIDE_FROM and packing_works(torch.float32))
    assert hasattr(projection, "weight_FD") == (weight.numel() < PACK_FROM or not packing_works(torch.float32))


@torch.inference_mode()
def test_double_is_not_packed_and_bf16_is_where_it_pays():
    weight, x = torch.randn(NARROW_FROM // 64, 64), torch.randn(3, 64)
    assert torch.equal(
        PackedLinear(weight.double(), None, torch.float64)(x.double()), F.linear(x.double(), weight.double())
    )
    narrow = PackedLinear(weight, None, torch.bfloat16)(x)
    assert narrow.dtype == torch.bfloat16
    torch.testing.assert_close(narrow.float(), F.linear(x, weight), atol=0.2, rtol=0.02)
    assert PackedLinear(weight[:8], None, torch.bfloat16)(x).dtype == torch.float32


def test_steps_follow_a_weight_that_changes():
    with torch.inference_mode(False):  # weights that may change
        model = (
            build_model(ModelConfig(num_layers=1, d_model=8, d_ff=16, num_heads=2, d_k=4, d_v=4), 20).double().eval()
        )
    source, token = torch.tensor([[4, 5, 6]]), torch.tensor([[1]])

    @torch.inference_mode()
    def first_hidden():
        memory = model.encode(source)
        return model.decode_step(token, model.start_decoding(memory, None, 1, 3))

    before = first_hidden()
    assert torch.equal(first_hidden(), before)
    with torch.no_grad():
        model.decoder.layers[0].feed_forward.inner.weight.mul_(2)
    after = first_hidden()
    assert not torch.equal(after, before)
    with torch.inference_mode():
        torch.testing.assert_close(after, model.decode(token, model.encode(source)), atol=1e-10, rtol=0)
