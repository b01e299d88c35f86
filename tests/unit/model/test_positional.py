"""Tests of positional encodings (section 3.5)."""

import math

import pytest
import torch

from model.config import IN_ATTENTION, ModelConfig
from model.parts.positions import POSITIONAL, sinusoids


def test_sinusoids_are_the_papers_equation():
    table = sinusoids(600, 12)
    for position in (0, 1, 17, 599):
        for i in range(6):
            angle = position / 10000 ** (2 * i / 12)
            assert table[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-7)
            assert table[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-7)


def test_a_shift_is_a_rotation():
    """ "For any fixed offset k, PE(pos+k) can be represented as a linear function of PE(pos)"."""
    table = sinusoids(200, 8).double()
    shift = torch.linalg.lstsq(table[:100], table[30:130]).solution
    torch.testing.assert_close(table[:170] @ shift, table[30:], atol=1e-4, rtol=0)


def test_a_shift_turns_each_pair_by_its_own_angle():
    """Pair i is rotated by ω_i k with ω_i = 10000^(−2i/d_model).

    A rotation by k itself is right only for the first pair.
    """
    pairs, k = sinusoids(200, 8).double().unflatten(1, (4, 2)), 5
    angles = k / 10000.0 ** (torch.arange(0, 8, 2) / 8)

    def turned(angle):
        sin, cos = pairs[:-k].unbind(-1)
        return torch.stack([sin * angle.cos() + cos * angle.sin(), cos * angle.cos() - sin * angle.sin()], dim=-1)

    torch.testing.assert_close(turned(angles), pairs[k:], atol=1e-6, rtol=0)
    error = (turned(torch.full((4,), float(k))) - pairs[k:]).abs().amax(dim=(0, 2))
    assert error[0] < 1e-6 and (error[1:] > 0.5).all()


def test_i_counts_pairs_of_dimensions():
    """The divisor of dimensions 2i and 2i + 1 is 10000^(2i/d_model); with the dimension in place of i it is squared."""
    table, d, position = sinusoids(20, 8), 8, 3
    for i in range(d // 2):
        angle = position / 10000 ** (2 * i / d)
        assert table[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
        assert table[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)
    assert abs(table[position, 2].item() - math.sin(position / 10000 ** (2 * 2 / d))) > 0.1


@pytest.mark.parametrize("kind", POSITIONAL)
def test_what_is_added_depends_on_the_position_alone(kind):
    torch.manual_seed(0)
    positions = POSITIONAL[kind](ModelConfig(d_model=8, max_length=10))
    for parameter in positions.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(2, 6, 8)
    assert torch.equal(positions(x)[:, :4], positions(x[:, :4]))
    assert torch.equal(positions(x), x) == (kind in ("none", *IN_ATTENTION))


@pytest.mark.parametrize("kind", [kind for kind in POSITIONAL if kind != "learned"])
@torch.inference_mode()
def test_all_but_learned_positions_go_on_beyond_max_length(small_model, kind):
    short, long = (small_model(positions=kind, max_length=length) for length in (4, 16))
    source = torch.randint(20, (2, 9))
    assert torch.equal(short(source, None, source), long(source, None, source))
    memory = short.encode(source)
    state = short.start_decoding(memory, None, 1, 9)
    steps = torch.cat([short.decode_step(source[:, t : t + 1], state) for t in range(9)], dim=1)
    torch.testing.assert_close(steps, short.decode(source, memory), atol=1e-10, rtol=0)


def test_learned_positions_are_scaled_like_words(small_model):
    model = small_model(positions="learned")
    x = torch.zeros(1, 3, 8, dtype=torch.float64)
    torch.testing.assert_close(model.encoder.positions(x)[0], model.encoder.positions.weight[:3] * math.sqrt(8))
    assert model.encoder.positions.weight is not model.decoder.positions.weight


def test_learned_positions_end(small_model):
    model = small_model(positions="learned", max_length=5)
    source = torch.randint(20, (2, 6))
    model(source[:, :5], None, source[:, :5])
    with pytest.raises(ValueError, match=r"a sequence has 6 pieces.*max_length = 5.*model.max_length = 6 or more"):
        model.encode(source)
    with pytest.raises(ValueError, match="a sequence has 6 pieces"):
        model.decode(source, model.encode(source[:, :5]))
