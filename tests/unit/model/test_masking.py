"""Masked positions and the other sentences of a batch have no influence."""

import pytest
import torch

VARIANTS = [{}, {"norm": "pre"}, {"positions": "learned"}, {"positions": "none"}, {"d_k": 3, "d_v": 5}]


@pytest.fixture(params=["plain", "sdpa"])
def kernel(request):
    return request.param


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_padded_source_has_no_influence(small_model, kernel, changes):
    model = small_model(**changes)
    model.set_attention_kernel(kernel)
    source, target = torch.randint(20, (3, 7)), torch.randint(20, (3, 5))
    mask_BS = torch.arange(7) < torch.tensor([[7], [4], [2]])
    other = torch.where(mask_BS, source, (source + 3) % 20)
    assert torch.equal(model(source, mask_BS, target), model(other, mask_BS, target))
    assert not torch.equal(model(source, None, target), model(other, None, target))


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_future_target_has_no_influence(small_model, kernel, changes):
    model = small_model(**changes)
    model.set_attention_kernel(kernel)
    source, target = torch.randint(20, (3, 7)), torch.randint(20, (3, 6))
    other = target.clone()
    other[:, 4:] = (other[:, 4:] + 1) % 20
    before, after = model(source, None, target), model(source, None, other)
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.equal(before[:, 4:], after[:, 4:])


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_batch_of_one_is_batch_of_many(small_model, kernel, changes):
    model = small_model(**changes)
    model.set_attention_kernel(kernel)
    lengths = [7, 4, 1]
    source, target = torch.randint(20, (3, 7)), torch.randint(20, (3, 6))
    mask_BS = torch.arange(7) < torch.tensor(lengths)[:, None]
    together = model(source, mask_BS, target)
    for i, length in enumerate(lengths):
        alone = model(source[i : i + 1, :length], None, target[i : i + 1, : length - 1 or 1])
        torch.testing.assert_close(alone[0], together[i, : alone.shape[1]], atol=1e-12, rtol=0)


def test_a_mask_that_blocks_nothing_is_no_mask(small_model, kernel):
    model = small_model()
    model.set_attention_kernel(kernel)
    source, target = torch.randint(20, (2, 7)), torch.randint(20, (2, 6))
    everything = torch.ones(2, 7, dtype=torch.bool)
    torch.testing.assert_close(model(source, everything, target), model(source, None, target))


def test_a_source_of_padding_alone_is_finite(small_model, kernel):
    model = small_model()
    model.set_attention_kernel(kernel)
    source = torch.randint(20, (2, 4))
    mask_BS = torch.tensor([[True] * 4, [False] * 4])
    assert model(source, mask_BS, source).isfinite().all()


def test_order_matters_only_with_positions(small_model):
    source = torch.tensor([[4, 5, 6, 7]])
    backwards = source.flip(1)
    bag = small_model(positions="none")
    torch.testing.assert_close(bag.encode(source), bag.encode(backwards).flip(1))
    for positions in ("sinusoidal", "learned"):
        model = small_model(positions=positions)
        assert (model.encode(source) - model.encode(backwards).flip(1)).abs().max() > 0.01
