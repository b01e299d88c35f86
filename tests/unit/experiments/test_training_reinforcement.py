"""Tests of expected GLEU: the reward equals its definition, and the sampled gradient that of all sequences."""

from collections.abc import Iterator, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.config.run_config import RunConfig
from experiments.config.training import TrainingConfig
from experiments.data.encoding.tokenizer import BOS_ID, EOS_ID
from experiments.training.loss import Objective
from experiments.training.reinforcement import draw, expected_gleu_loss, gleu
from model.config import ModelConfig
from model.network import build_model
from tests import small_training

PIECES = st.lists(st.integers(4, 7), max_size=7)


def ngrams(ids: Sequence[int]) -> list[tuple[int, ...]]:
    return [tuple(ids[at : at + n]) for n in (1, 2, 3, 4) for at in range(len(ids) - n + 1)]


@settings(max_examples=200)
@given(PIECES, PIECES)
def test_gleu_is_the_smaller_of_precision_and_recall(output: list[int], reference: list[int]) -> None:
    """The reference computes GLEU by counting one n-gram at a time.

    It is symmetrical, from 0 to 1 (Wu et al. 2016, section 5).
    """
    ours, left = ngrams(output), ngrams(reference)
    total, matched = len(left), 0
    for ngram in ours:
        if ngram in left:
            left.remove(ngram)
            matched += 1
    expected = min(matched / len(ours), matched / total) if ours and total else 0.0
    assert gleu(output, reference) == pytest.approx(expected)
    assert gleu(output, reference) == gleu(reference, output)
    assert not output or gleu(output, output) == 1


SOURCE, REFERENCE, W = [4, 3], [4, 5], 6


def small_model() -> torch.nn.Module:
    torch.manual_seed(3)
    config = ModelConfig(num_layers=1, d_model=4, d_ff=4, num_heads=1, d_k=4, d_v=4, dropout=0.0)
    model = build_model(config, W).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 1.5
    return model


def sequences(longest: int) -> Iterator[list[int]]:
    """Return all outputs that end with EOS or at the maximum length."""
    growing: list[list[int]] = [[]]
    for length in range(1, longest + 1):
        longer = [[*ids, piece] for ids in growing for piece in range(W)]
        yield from (ids for ids in longer if ids[-1] == EOS_ID or length == longest)
        growing = [ids for ids in longer if ids[-1] != EOS_ID]


def test_the_drawn_gradient_is_that_of_the_expectation() -> None:
    """Σ_Y P(Y) r(Y) over all sequences of up to 4 pieces (equation 8), differentiated whole."""
    model = small_model()
    source, read = torch.tensor([SOURCE]), torch.tensor([[BOS_ID, *REFERENCE]])
    every = list(sequences(2 * len(SOURCE)))
    width = max(map(len, every))
    pieces = torch.tensor([ids + [0] * (width - len(ids)) for ids in every])
    real = torch.arange(width) < torch.tensor([len(ids) for ids in every])[:, None]
    memory = model.encode(source, None).expand(len(every), -1, -1)
    inputs = torch.cat([torch.full((len(every), 1), BOS_ID), pieces[:, :-1]], 1)
    log_prob = model.logits(model.decode(inputs, memory, None)).log_softmax(-1).gather(-1, pieces[..., None])[..., 0]
    probability = (log_prob * real).sum(1).exp()
    assert probability.sum().item() == pytest.approx(1)
    rewards = torch.tensor([gleu([i for i in ids if i != EOS_ID], REFERENCE) for ids in every], dtype=torch.float64)
    parameters = list(model.parameters())
    exact = torch.autograd.grad(-(probability * rewards).sum(), parameters, allow_unused=True)
    samples = 10_000
    drawn = torch.autograd.grad(expected_gleu_loss(model, source, None, read, samples), parameters, allow_unused=True)
    ours, theirs = (torch.cat([g.flatten() for g in found if g is not None]) for found in (drawn, exact))
    assert torch.cosine_similarity(ours, theirs, dim=0).item() > 0.97
    assert ours.norm().item() == pytest.approx(theirs.norm().item(), rel=0.1)


def test_sequences_are_drawn_by_their_probabilities_and_without_dropout() -> None:
    model = small_model().train()
    pieces, real = draw(model, torch.tensor([SOURCE]), None, 4000, 3)
    assert model.training and pieces.shape == real.shape
    with torch.no_grad():
        memory = model.encode(torch.tensor([SOURCE]), None)
        first = model.logits(model.decode(torch.tensor([[BOS_ID]]), memory, None))[0, 0].softmax(-1)
    found = torch.bincount(pieces[:, 0], minlength=W) / len(pieces)
    assert torch.allclose(found.double(), first, atol=0.04)
    ended = (pieces == EOS_ID).cumsum(1) - (pieces == EOS_ID).long() > 0
    assert torch.equal(real, ~ended)


def test_the_objective_is_the_mixture_of_equation_9() -> None:
    batch = small_training.pairs(1)
    losses = []
    for options in ({}, {"gleu_samples": 3, "likelihood_weight": 0.0}, {"gleu_samples": 3, "likelihood_weight": 0.5}):
        torch.manual_seed(0)
        model = build_model(small_training.SIZES.model_copy(update={"dropout": 0.0}), small_training.PIECES)
        objective = Objective(model, TrainingConfig.from_mapping(options))
        torch.manual_seed(7)
        device = small_training.Device.open(small_training.DeviceSpec(), "fp32")
        losses.append(objective(*objective.inputs(batch, device)))
    (likelihood, nll), (expected, same), (mixed, _) = losses
    assert mixed.item() == pytest.approx(0.5 * likelihood.item() + expected.item(), rel=1e-5)
    assert nll.item() == same.item()


def test_a_training_with_it_repeats_every_bit_and_a_resume_too(tmp_path) -> None:  # type: ignore[no-untyped-def]
    settings = TrainingConfig(train_steps=6, warmup_steps=2, checkpoint_steps=2, gleu_samples=3, learning_rate=0.01)
    whole, _, _ = small_training.run(tmp_path / "whole", settings=settings)
    small_training.run(tmp_path / "first", settings=settings, stop_at=3)
    again, _, _ = small_training.run(tmp_path / "second", settings=settings, earlier=[tmp_path / "first"])
    for one, other in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("training", [{"gleu_samples": 1}, {"gleu_samples": 4, "compile": True}])
def test_what_it_cannot_do_is_refused(training: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="expected GLEU needs 2 samples"):
        RunConfig.from_mapping({"training": training})
    assert RunConfig().unread(["training.likelihood_weight"]) == ["training.likelihood_weight"]
