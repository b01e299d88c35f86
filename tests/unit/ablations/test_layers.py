"""Table 1 as a command: the paper's terms, and paths."""

import math

import pytest

from ablations.service.layers import Sizes, crossings, layer_types


def test_leading_terms_and_paths_of_the_papers_sizes():
    types = {one.name: one for one in layer_types(Sizes())}
    assert [one.leading for one in types.values()] == [
        2_508_800,
        18_350_080,
        55_050_240,
        55_050_240,
        18_457_600,
        573_440,
    ]
    assert [one.operations for one in types.values()] == [1, 70, 1, 1, 1, 1]
    assert [one.exact for one in types.values()] == [1, 70, 35, 4, 35, 9]
    assert types["self-attention"].counted == 70 * 512 * (4 * 512 + 2 * 70)
    assert types["recurrent"].counted == 70 * 2 * 512**2


@pytest.mark.parametrize(("n", "k"), [(16, 2), (17, 2), (81, 3), (82, 3), (2, 5)])
def test_stacks_connect_all_positions_in_the_fewest_layers(n, k):
    types = {one.name: one for one in layer_types(Sizes(n=n, d=7, k=k))}
    assert types["convolutional, contiguous"].exact == math.ceil((n - 1) / (k - 1))
    dilated = types["convolutional, dilated"]
    assert k ** (dilated.layers - 1) < n <= k**dilated.layers
    assert dilated.exact == max(_digits(distance, k) for distance in range(n))


def _digits(number, base):
    """Digits that are not 0: the layers in which the shortest path leaves its position."""
    return 0 if number == 0 else (number % base != 0) + _digits(number // base, base)


def test_a_neighbourhood_of_one_connects_nothing():
    assert layer_types(Sizes(r=1))[-1].exact is None


@pytest.mark.parametrize("wrong", [Sizes(n=0), Sizes(k=1), Sizes(d=-3), Sizes(r=0), Sizes(n=10**9)])
def test_sizes_without_a_meaning(wrong, mistake):
    assert "--" in mistake(layer_types, wrong)


def test_crossings_lie_between_the_lengths_measured():
    recurrent = {n: float(n) for n in (1, 10, 100)}
    attention = {n: n * n / 20 for n in (1, 10, 100)}
    assert crossings(attention, recurrent) == [(1.0, True), (pytest.approx(20), False)]
    assert crossings(recurrent, attention) == [(1.0, False), (pytest.approx(20), True)]
    assert crossings(attention, attention) == [(1.0, False)]
