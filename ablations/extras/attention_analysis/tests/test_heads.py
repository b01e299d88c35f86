"""What heads do, in numbers: constructed heads with known answers, a trained one, and a run's."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ablations.extras.attention_analysis.heads import (
    MEASURES,
    Heads,
    Sentence,
    TextPair,
    _within,
    positional_heads,
    roles,
)
from model.config import ModelConfig
from model.network import build_model


def measured(weights, causal=False, **options):
    """The measures of the single head with these weights, one (Q, M) for each sentence."""
    heads = Heads(causal)
    for one in weights:
        heads.add(np.asarray(one, dtype=float)[None], **options)
    (found,) = heads.measures()
    assert tuple(found) == MEASURES
    return found


def shifted(n, offset):
    """Each position attends to the one at this offset, at the ends to itself."""
    return np.eye(n)[[i + offset if 0 <= i + offset < n else i for i in range(n)]]


@pytest.mark.parametrize("causal", [False, True])
def test_a_head_that_attends_to_the_previous_position(causal):
    found = measured([shifted(n, -1) for n in (4, 9, 6)], causal)
    assert found == {
        "offset": -1, "entropy": 0, "previous": 1, "next": 0, "same": 0, "first": pytest.approx(3 / 13), "relative": 1,
        "positional": 1, "brackets": None,
    }  # fmt: skip


@pytest.mark.parametrize(("offset", "name"), [(1, "next"), (0, "same")])
def test_heads_that_attend_to_the_next_position_and_to_their_own(offset, name):
    found = measured([shifted(n, offset) for n in (4, 9)])
    assert (found["offset"], found[name], found["relative"], found["entropy"]) == (offset, 1, 1, 0)


def test_a_positional_head_has_nine_tenths_of_its_largest_weights_at_one_offset():
    """Voita et al. 2019, section 5.1. The weights need not be large."""
    weak = 0.1 * shifted(22, -1) + 0.9 / 22  # 20 queries have both neighbours
    assert measured([weak])["positional"] == 1
    rows = []
    for others in (2, 3):
        weights = weak.copy()
        weights[5 : 5 + others] = np.eye(22)[0]
        (row,) = [{"kind": "encoder", "weights": "trained", **measured([weights])}]
        assert row["positional"] == 1 - others / 20
        rows.append(row)
    random = {"kind": "encoder", "weights": "random", **measured([np.full((22, 22), 1 / 22)])}
    assert positional_heads([*rows, random]) == {("encoder", "trained"): (1, 2), ("encoder", "random"): (0, 1)}


def test_a_head_that_attends_to_the_first_position_depends_on_no_offset():
    found = measured([np.eye(12)[[0] * 12]])
    assert found["first"] == 1 and found["offset"] == -5.5 and found["relative"] < 0.25


def test_even_and_random_heads():
    even = measured([np.full((8, 8), 1 / 8)])
    assert even["entropy"] == pytest.approx(math.log(8)) and even["previous"] == pytest.approx(1 / 8)
    assert even["relative"] == 0  # nothing varies
    draws = np.random.default_rng(1).dirichlet(np.ones(20), (50, 20))
    assert measured(draws)["relative"] < 0.05


def test_the_share_of_variance_is_that_of_a_regression_on_indicators_of_the_offset():
    weights = np.random.default_rng(2).dirichlet(np.ones(6), 6) + shifted(6, -1)
    offsets = (np.arange(6) - np.arange(6)[:, None])[1:5].ravel()
    design = (offsets[:, None] == np.unique(offsets)).astype(float)
    y = weights[1:5].ravel()
    residual = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
    assert measured([weights])["relative"] == pytest.approx(1 - residual.var() / y.var())


@pytest.mark.parametrize(("queries", "positions", "counted"), [(4, 9, [1, 2, 3]), (9, 4, [1, 2]), (5, 5, [1, 2, 3])])
def test_queries_count_that_have_a_previous_and_a_next_position(queries, positions, counted):
    """Of cross-attention too, whose last query may have a next position."""
    weights = np.random.default_rng(3).dirichlet(np.ones(positions), queries)
    found = measured([weights])
    assert found["next"] == pytest.approx(np.mean([weights[q, q + 1] for q in counted]))
    assert found["previous"] == pytest.approx(np.mean([weights[q, q - 1] for q in counted]))
    offsets = [sum(w * (m - q) for m, w in enumerate(weights[q])) for q in counted]
    assert found["offset"] == pytest.approx(np.mean(offsets))


class Words:
    """A tokenizer with a piece for each letter."""

    def encode_batch(self, words):
        return [list(word) for word in words]


def test_the_smallest_bracket_around_a_word():
    within = _within(Words(), TextPair("the big dog sleeps", "", [(0, 4), (0, 3), (1, 2), (3, 4)]))
    assert within.shape == (16, 16)  # 3 + 3 + 3 + 6 letters and the end
    assert within[:9, :9].all() and not within[:9, 9:].any()  # "big" alone is no bracket of two words
    assert within[9:15, :15].all() and not within[15].any()
    one, other = np.zeros((2, 16, 16))
    one[:, 1], other[:, 12] = 1, 1
    share = measured([one, other], within_QM=within)["brackets"]
    assert share == pytest.approx((13 + 5) / (14 + 14))  # a query on its own position alone has no share: 0


def test_a_trained_network_learns_a_head_that_attends_to_the_previous_position():
    """The decoder reads the encoder's output at its own position, and is to say the piece before."""
    torch.manual_seed(0)
    config = ModelConfig(
        encoder="self_attention", decoder="same_position", d_model=16, num_heads=1, d_k=16, d_v=16, dropout=0.0,
        positions="relative", position_clip=2,
    )  # fmt: skip
    model = build_model(config, 12)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(150):
        source = torch.randint(4, 12, (16, 10))
        source[:, -1] = 3
        hidden = model(source, None, torch.full((16, 10), 2))
        loss = F.cross_entropy(model.logits(hidden[:, 1:]).flatten(0, 1), source[:, :-1].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    sentences = [Sentence(torch.randint(4, 12, (9,)).tolist(), [5] * 9) for _ in range(20)]
    (trained,) = roles(model, sentences)
    torch.manual_seed(0)
    (fresh,) = roles(build_model(config, 12), sentences)
    assert (trained["kind"], trained["layer"], trained["head"]) == ("encoder", 1, 1)
    assert trained["previous"] > 0.9 > 0.3 > fresh["previous"]
    assert trained["positional"] > 0.9 > 0.6 > fresh["positional"]
    assert trained["offset"] == pytest.approx(-1, abs=0.3) and trained["relative"] > 0.9 > fresh["relative"]
    assert trained["entropy"] < 0.5 < fresh["entropy"]
