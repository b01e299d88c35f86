"""The command for Table 1 prints the paper's terms and path lengths."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablations.cli.compare_layers import _as_json, _times, _verdict
from ablations.service.layers import Sizes, Times, crossing, layer_types


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
    """Return the number of digits that are not 0: the layers in which the shortest path leaves its position."""
    return 0 if number == 0 else (number % base != 0) + _digits(number // base, base)


def test_a_neighbourhood_of_one_connects_nothing():
    assert layer_types(Sizes(r=1))[-1].exact is None


@pytest.mark.parametrize("wrong", [Sizes(n=0), Sizes(k=1), Sizes(d=-3), Sizes(r=0), Sizes(n=10**9)])
def test_sizes_without_a_meaning(wrong, mistake):
    assert "--" in mistake(layer_types, wrong)


def rounds(times, noise=0.01):
    """Return seven rounds of measurements around each time."""
    return {n: [seconds * (1 + noise * (i - 3)) for i in range(7)] for n, seconds in times.items()}


def test_crossings_lie_between_the_lengths_measured():
    recurrent = rounds({n: float(n) for n in (1, 10, 100)})
    attention = rounds({n: n * n / 20 for n in (1, 10, 100)})
    assert crossing(attention, recurrent) == (True, pytest.approx(20))
    assert crossing(recurrent, attention) == (False, pytest.approx(20))
    assert crossing(attention, rounds({n: n for n in (1, 10)} | {100: 1000})) == (True, None)
    assert crossing(attention, attention) is None


def test_lengths_whose_rounds_disagree_are_no_crossing():
    """These measurements were once printed as "slower from 16, faster from 45, slower from 1016"."""
    one = rounds({16: 1.0, 64: 1.0, 256: 2.0, 1024: 4.0, 4096: 8.0})
    other = rounds({16: 1.01, 64: 0.99, 256: 3.0, 1024: 5.0, 4096: 6.0})
    factors = (1.2, 0.8, 1.2, 0.8, 1.2, 0.8, 1)
    noisy = {n: [seconds * f for seconds, f in zip(one[n], factors, strict=True)] for n in (16, 64)}
    assert crossing(one | noisy, other) == (True, pytest.approx(1876, rel=0.01))
    assert crossing(rounds({1: 2, 10: 1, 100: 2}), rounds({1: 1, 10: 2, 100: 1})) is None  # two changes


@given(st.lists(st.tuples(*[st.floats(0.1, 10)] * 6), min_size=1, max_size=6))
def test_no_times_whatever_give_more_than_one_crossing(times):
    first = {2**i: seconds[:3] for i, seconds in enumerate(times)}
    second = {2**i: seconds[3:] for i, seconds in enumerate(times)}
    found = crossing(first, second)
    text = _verdict(first, second)
    assert text.count("faster") + text.count("slower") == (0 if found is None else 1 if found[1] is None else 2)
    assert found is None or found[1] is None or 1 <= found[1] <= 2 ** (len(times) - 1)


def test_a_loaded_machine_concludes_nothing():
    times = {name: {8: rounds({1: 1.0, 10: t})} for name, t in (("self_attention", 1.0), ("rnn", 3.0))}
    idle, busy = (_times(Times(times, load, 2)) for load in (0.9, 3.25))
    assert any("against rnn: faster" in line for line in idle)
    assert not any("against" in line for line in busy) and "3.2 of 2 processors" in busy[-1]
    assert _as_json(Sizes(), [], Times(times, 3.25, 2))["crossings"] is None
