"""Tests of the components of beam search: candidates, length penalty and the set of finished hypotheses."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from experiments.data.encoding.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from experiments.evaluation import beam as candidates
from experiments.evaluation.beam import (
    GROUP,
    MANY_SENTENCES,
    Finished,
    best_candidates,
    best_of_logits,
    length_penalty,
    next_log_probs,
)

NEVER = -math.inf


@given(
    st.sampled_from([1, 2, 3, MANY_SENTENCES]),
    st.integers(1, 5),
    st.sampled_from([4, GROUP - 1, GROUP, 3 * GROUP, 3 * GROUP + 1, 7 * GROUP - 1, 1000]),
    st.integers(1, 10),
    st.integers(0, 2**31),
)
@example(MANY_SENTENCES, 4, 8000, 8, 1)  # too few groups for torch.topk to be quick
@example(MANY_SENTENCES, 5, 7 * GROUP, 1, 1)
@hypothesis_settings(max_examples=80)
def test_two_stage_top_k_is_exact(B: int, K: int, W: int, count: int, seed: int) -> None:
    torch.manual_seed(seed)
    next_BKW = torch.randn(B, K, W, dtype=torch.float64).log_softmax(-1)
    alive_BK = torch.randn(B, K, dtype=torch.float64)
    alive_BK[torch.rand(B, K) < 0.3] = NEVER
    alive_BK[:, 0] = 0.5
    expected, index = (next_BKW + alive_BK[:, :, None]).view(B, -1).topk(min(count, K * W))
    found = best_candidates(alive_BK, next_BKW, count)
    assert torch.equal(found.log_prob_BC, expected)
    real = ~expected.isneginf()
    assert torch.equal(found.token_BC[real], (index % W)[real])
    assert torch.equal(found.parent_BC[real], (index // W)[real])


@given(
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from([5, 2 * GROUP - 1, 2 * GROUP, 3 * GROUP + 7, 1000]),
    st.sampled_from([0.1, 3.0, 500.0]),
    st.integers(0, 2**31),
)
@hypothesis_settings(max_examples=60)
def test_the_best_of_logits_are_the_best_of_their_log_softmax(B: int, K: int, W: int, scale: float, seed: int) -> None:
    torch.manual_seed(seed)
    logits_BKW = scale * torch.randn(B, K, W, dtype=torch.float64)
    logits_BKW[..., [PAD_ID, BOS_ID]] += 2 * scale  # often the most probable: they count in the sum, and never come out
    alive_BK = torch.randn(B, K, dtype=torch.float64)
    expected = best_candidates(alive_BK, next_log_probs(logits_BKW.clone()), 3)
    found = best_of_logits(alive_BK, logits_BKW.clone(), 3)
    torch.testing.assert_close(found.log_prob_BC, expected.log_prob_BC, atol=1e-10, rtol=1e-12)
    real = ~expected.log_prob_BC.isneginf()
    assert torch.equal(found.token_BC[real], expected.token_BC[real])
    assert torch.equal(found.parent_BC[real], expected.parent_BC[real])


def test_a_sentence_with_fewer_continuations_than_columns_asked_for_takes_none_that_is_not_there() -> None:
    torch.manual_seed(0)
    logits_BKW = torch.randn(MANY_SENTENCES, 4, 8000)
    logits_BKW[3, :, 5:] = NEVER  # three pieces that are neither PAD nor BOS, of one beam
    alive_BK = torch.randn(MANY_SENTENCES, 4)
    alive_BK[3, 1:] = NEVER
    alive_BK[5] = NEVER  # a sentence that has ended
    found = best_of_logits(alive_BK, logits_BKW, 8)
    assert (found.log_prob_BC[3] > NEVER).sum() == 5 - 2
    assert (found.log_prob_BC[5] == NEVER).all()
    assert (found.parent_BC < 4).all()
    assert (found.token_BC < 8000).all()


def test_candidates_do_not_depend_on_the_parts_that_a_cache_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    logits_BKW, alive_BK = torch.randn(5, 2, 300), torch.randn(5, 2)
    whole = best_of_logits(alive_BK, logits_BKW.clone(), 4)
    monkeypatch.setattr(candidates, "IN_CACHE", 2 * 600)  # two sentences at a time
    assert all(torch.equal(*pair) for pair in zip(best_of_logits(alive_BK, logits_BKW.clone(), 4), whole, strict=True))


def test_no_continuation_is_more_probable_than_what_it_continues() -> None:
    logits_BKW = torch.full((64, 1, 200), -30.0)
    logits_BKW[:, 0, 77] = torch.linspace(10, 90, 64)  # its probability is 1, up to rounding
    alive_BK = torch.linspace(-90, -1, 64)[:, None]
    found = best_of_logits(alive_BK, logits_BKW, 2)
    assert (found.token_BC[:, 0] == 77).all()
    assert (found.log_prob_BC <= alive_BK).all()


def test_probabilities_are_the_models_own_and_pad_and_bos_are_left_out() -> None:
    logits = torch.tensor([[[5.0, 4.0, 3.0, 2.0, 1.0]]])
    total = sum(math.exp(n) for n in (5, 4, 3, 2, 1))
    found = next_log_probs(logits)[0, 0]
    assert found[PAD_ID] == found[BOS_ID] == NEVER
    assert found[EOS_ID].item() == pytest.approx(math.log(math.exp(3) / total), abs=1e-6)
    assert found[UNK_ID].item() == pytest.approx(math.log(math.exp(2) / total), abs=1e-6)


def test_narrow_logits_are_normalised_in_fp32() -> None:
    assert next_log_probs(torch.zeros(1, 1, 8, dtype=torch.bfloat16)).dtype == torch.float32
    assert next_log_probs(torch.zeros(1, 1, 8, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize(("length", "alpha"), [(1, 0.6), (7, 0.6), (57, 1.0), (9, 0.0)])
def test_length_penalty_is_the_formula(length: int, alpha: float) -> None:
    assert length_penalty(length, alpha) == pytest.approx(math.exp(alpha * (math.log(5 + length) - math.log(6))))


def test_a_hypothesis_of_one_piece_is_not_penalised() -> None:
    assert length_penalty(1, 0.6) == 1


def finished_of(score: list[float], like: torch.Tensor | None = None) -> Finished:
    found = Finished.empty(1, len(score), torch.zeros(0, dtype=torch.float64))
    found.add(torch.tensor([score], dtype=torch.float64), torch.arange(len(score))[None], 1.0)
    return found


def test_the_finished_set_keeps_the_best_of_different_lengths() -> None:
    found = finished_of([-1.0, -2.0])
    found.add(torch.tensor([[-6.0, NEVER, -3.0]], dtype=torch.float64), torch.tensor([[10, 11, 12]]), 2.0)
    assert found.score_BN.tolist() == [[-1.0, -1.5]]
    assert found.log_prob_BN.tolist() == [[-1.0, -3.0]]
    assert found.slot_BN.tolist() == [[0, 12]]
    assert found.worst.tolist() == [-1.5]


def test_of_equal_scores_the_earlier_stays() -> None:
    found = finished_of([-1.0, -2.0])
    found.add(torch.tensor([[-4.0, -4.0]], dtype=torch.float64), torch.tensor([[10, 11]]), 2.0)
    assert found.slot_BN.tolist() == [[0, 1]]


def test_unfinished_are_taken_only_where_nothing_has_finished() -> None:
    found = Finished.empty(3, 2, torch.zeros(0, dtype=torch.float64))
    found.add(torch.tensor([[-1.0], [NEVER], [NEVER]], dtype=torch.float64), torch.tensor([[7], [0], [0]]), 1.0)
    alive_BK = torch.tensor([[-0.1, -0.2, -0.3]] * 3, dtype=torch.float64)
    penalty_B = torch.full((3,), 2.0, dtype=torch.float64)
    found.take_unfinished(torch.tensor([True, True, False]), alive_BK, torch.arange(20, 23), penalty_B)
    assert found.score_BN.tolist() == [[-1.0, NEVER], [-0.05, -0.1], [NEVER, NEVER]]
    assert found.slot_BN[1].tolist() == [20, 21]
