"""Products in 8 bits: the formula, independence of the batch, and searches of every architecture."""

import pytest
import torch
from torch import nn

from model.ensemble import Ensemble
from model.layers.experts import Experts
from model.products import Int8Linear, Int8Product, int8_works, to_int8
from tests.slow import OF_SEEDS, mostly_slow
from tests.unit.model.test_any_architecture import LANGUAGE_MODELS, check_alone, check_steps, network

pytestmark = pytest.mark.skipif(not int8_works(), reason="this torch has no exact product of 8-bit matrices")
SEEDS = [
    *mostly_slow(range(100), 12, OF_SEEDS),
    *mostly_slow(range(LANGUAGE_MODELS, LANGUAGE_MODELS + 30), 4, OF_SEEDS),
]

NO_EXPERTS = 2  # a seed: a router's choice may change


def plain(x, weight, bias, relu):
    """Quantise, multiply integers, scale back: one number at a time."""

    def quantised(row):
        largest = max(abs(value) for value in row)
        return [round(value * (127 / largest)) for value in row] if largest else [0] * len(row), largest / 127

    result = []
    for row in x.tolist():
        q, scale = quantised(row)
        outputs = []
        for f, weights in enumerate(weight.tolist()):
            w, its_scale = quantised(weights)
            value = sum(a * b for a, b in zip(q, w, strict=True)) * scale * its_scale + (
                bias[f].item() if len(bias) else 0
            )
            outputs.append(max(0.0, value) if relu else value)
        result.append(outputs)
    return torch.tensor(result, dtype=torch.float64)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 7])
@torch.inference_mode()
def test_a_product_equals_the_formula(rows, biased, relu):
    torch.manual_seed(rows)
    x, weight = torch.randn(rows, 8).double(), torch.randn(5, 8).double()
    weight[3] = 0  # a piece that was never seen
    bias = torch.randn(5).double() if biased else torch.zeros(0)
    found = Int8Product(weight, bias if biased else None, relu=relu)(x)
    torch.testing.assert_close(found, plain(x, weight, bias, relu), atol=1e-12, rtol=1e-12)
    exact = x @ weight.T + (bias if biased else 0)
    exact = exact.relu() if relu else exact
    assert 1e-6 < (found - exact).abs().max() < 0.1  # 8 bits, and not more


@torch.inference_mode()
def test_a_large_product_in_fp32_equals_that_of_fp64():
    """Integers become floats in their own memory, in parts by several threads."""
    torch.manual_seed(0)
    weight, bias, x = torch.randn(8000, 128), torch.randn(8000), torch.randn(90, 128)
    rows, largest = (x * (127 / x.abs().amax(1, keepdim=True))).round(), x.abs().amax(1, keepdim=True)
    its_rows, its_largest = (weight * (127 / weight.abs().amax(1, keepdim=True))).round(), weight.abs().amax(1)
    sums = rows.double() @ its_rows.double().T
    expected = sums * (largest.double() / 127) * (its_largest.double() / 127) + bias
    torch.testing.assert_close(Int8Product(weight, bias)(x).double(), expected, atol=1e-4, rtol=1e-6)


@torch.inference_mode()
def test_a_row_does_not_depend_on_the_rows_beside_it():
    torch.manual_seed(0)
    product = Int8Product(torch.randn(300, 128), torch.randn(300))
    x = torch.randn(70, 128) * torch.logspace(-3, 3, 70)[:, None]
    together = product(x)
    for rows in (range(1), range(5, 9), range(69, -1, -1)):
        assert torch.equal(product(x[list(rows)]), together[list(rows)])
    assert torch.equal(product(x.view(7, 10, 128)), together.view(7, 10, 300))
    assert product(x[:0]).shape == (0, 300)


@torch.inference_mode()
def test_rows_of_zeros_and_rows_that_are_no_numbers():
    product = Int8Product(torch.randn(5, 8), torch.arange(5.0))
    x = torch.ones(4, 8)
    x[0], x[1, 2], x[2, 2] = 0, torch.nan, torch.inf
    found = product(x)
    assert torch.equal(found[0], torch.arange(5.0))
    assert found[1].isnan().all() and found[2].isnan().all()  # the search reports them
    assert found[3].isfinite().all()


def quantised(seed, *, quick=False):
    model = network(seed)
    model.quick = model.quick and quick
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    products = sum(type(module) is nn.Linear for module in model.modules())  # none in a stack of torch's RNNs
    to_int8(model)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert sum(isinstance(module, Int8Linear) for module in model.modules()) == products
    return model


@pytest.mark.parametrize("seed", SEEDS)
@torch.inference_mode()
def test_every_architecture_searches_as_it_reads(seed):
    check_steps(quantised(seed))


@pytest.mark.parametrize("seed", SEEDS)
@torch.inference_mode()
def test_a_sentence_alone_is_the_same_as_in_a_batch_with_padding(seed):
    check_alone(quantised(seed))


@pytest.mark.parametrize("changes", [{}, {"norm": "pre"}, {"d_k": 3, "d_v": 5}, {"shared_vocabulary": False}], ids=str)
@torch.inference_mode()
def test_the_quick_form_searches_as_it_reads(small_model, changes):
    model = small_model(**changes)
    to_int8(model)
    assert model.quick
    check_steps(model)
    one = model.encode(torch.tensor([[4, 5, 6]]))
    state = model.start_decoding(one, None, 1, 3)
    step = model.decode_step(torch.tensor([[1]]), state)
    torch.testing.assert_close(step, model.decode(torch.tensor([[1]]), one), atol=1e-10, rtol=0)


@torch.inference_mode()
def test_scores_are_near_those_of_full_precision_and_not_the_same():
    exact, model = network(NO_EXPERTS), quantised(NO_EXPERTS)
    assert not any(isinstance(module, Experts) for module in model.modules())
    source, target = torch.randint(20, (8, 6)), torch.randint(20, (8, 7))
    expected = exact.logits(exact(source, None, target))
    found = model.logits(model(source, None, target))
    difference = (found - expected).abs().max() / expected.abs().max()
    assert 1e-6 < difference < 0.2


@torch.inference_mode()
def test_an_ensemble_of_quantised_members():
    members = [quantised(seed) for seed in (1, 1)]
    source, target = torch.randint(20, (2, 6)), torch.randint(20, (2, 7))
    both, one = Ensemble(members), members[0]
    found = both.logits(both(source, None, target))
    expected = one.logits(one(source, None, target)).log_softmax(-1)
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)
