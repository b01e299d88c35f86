"""An ensemble averages its members' probabilities of the next piece, in a full pass and step by step."""

import itertools
import math

import pytest
import torch

from experiments.data.encoding.tokenizer import BOS_ID, EOS_ID
from experiments.device import Device
from experiments.evaluation.beam import SearchSettings, length_penalty
from experiments.evaluation.likelihood import measure_likelihood
from experiments.evaluation.translate import translate
from model.config import ModelConfig
from model.ensemble import Ensemble
from model.network import build_model
from model.protocol import Network
from tests.lines import random_config

CPU = Device(torch.device("cpu"), "fp32", 1)
SMALL = {"num_layers": 1, "d_ff": 16, "num_heads": 2, "d_k": 4, "d_v": 4}
SOURCES = [[4, 5, 6], [7], [8, 9, 4, 4], [5] * 6]
TARGETS = [[5, 5], [6, 7, 8, 9, 10], [4], [7, 7, 4]]
SEARCH = SearchSettings(beam_size=3, max_extra_length=4)


def member(seed: int, d_model: int = 8, vocab_size: int = 12, **changes: object) -> Network:
    """Return a network whose next pieces have clearly different probabilities."""
    torch.manual_seed(seed)
    model = build_model(ModelConfig(**{**SMALL, "d_model": d_model, **changes}), vocab_size).eval()
    with torch.no_grad():
        model.target_embedding.weight *= 3
    return model


def translations(model: Network, search: SearchSettings = SEARCH) -> list[tuple[int, ...]]:
    return [hypotheses[0].ids for hypotheses in translate(model, SOURCES, search, CPU)]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_copies_of_one_member_are_that_member(count: int) -> None:
    one = member(1)
    many = Ensemble([one] * count)
    assert len(set(translations(one))) > 1
    assert translations(many) == translations(one)
    alone = measure_likelihood(one, SOURCES, TARGETS, CPU).perplexity
    assert measure_likelihood(many, SOURCES, TARGETS, CPU).perplexity == pytest.approx(alone, rel=1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_copies_of_any_architecture_score_as_one(seed: int) -> None:
    one = random_member(seed)
    found, alone = (translate(model, SOURCES, SEARCH, CPU) for model in (Ensemble([one] * 3), one))
    for mine, single in zip(found, alone, strict=True):
        assert mine[0].ids == single[0].ids
        assert mine[0].score == pytest.approx(single[0].score, abs=1e-9)


def test_perplexity_is_that_of_the_mean_probability_of_each_piece() -> None:
    members = [member(1).double(), member(2, d_model=12).double(), member(3).double()]
    total = 0.0
    for source, target in zip(SOURCES, TARGETS, strict=True):
        inputs = torch.tensor([[*source, EOS_ID]]), None, torch.tensor([[BOS_ID, *target]])
        with torch.no_grad():
            mean_TW = sum(one.logits(one(*inputs))[0].softmax(-1) for one in members) / 3
        total -= sum(math.log(mean_TW[t, piece]) for t, piece in enumerate([*target, EOS_ID]))
    found = measure_likelihood(Ensemble(members), SOURCES, TARGETS, CPU)
    assert found.nll == pytest.approx(total, rel=1e-9)
    assert found.perplexity != pytest.approx(measure_likelihood(members[0], SOURCES, TARGETS, CPU).perplexity, rel=1e-3)


@pytest.mark.parametrize("seed", range(12))
def test_a_wide_beam_finds_the_best_of_all_outputs_by_the_mean(seed: int) -> None:
    """Score every output of up to three pieces by a product of means of two networks' softmaxes."""
    members = [random_member(seed, 7), random_member(seed + 100, 7)]
    source, longest = [4, 6], 3
    best, score = max(
        ((ids, _score(members, source, ids, longest)) for ids in _outputs(7, longest)), key=lambda found: found[1]
    )
    search = SearchSettings(beam_size=49, length_penalty=0.6, max_extra_length=0)
    found = translate(Ensemble(members), [source], search, CPU)[0][0]
    assert found.ids == best
    assert found.score == pytest.approx(score, rel=1e-9)


def random_member(seed: int, vocab_size: int = 12) -> Network:
    torch.manual_seed(seed)
    model = build_model(random_config(seed), vocab_size).double().eval()
    with torch.no_grad():
        model.output_weight.mul_(2)
    return model


def _outputs(vocab_size: int, longest: int) -> list[tuple[int, ...]]:
    """Return all outputs of at most `longest` pieces, including EOS. PAD and BOS never occur."""
    pieces = [piece for piece in range(vocab_size) if piece not in (0, BOS_ID, EOS_ID)]
    return [ids for length in range(longest) for ids in itertools.product(pieces, repeat=length)]


@torch.inference_mode()
def _score(members: list[Network], source: list[int], ids: tuple[int, ...], longest: int) -> float:
    inputs = torch.tensor([[*source, EOS_ID]]), None, torch.tensor([[BOS_ID, *ids]])
    mean_TW = torch.stack([one.logits(one(*inputs))[0].softmax(-1) for one in members]).mean(0)
    log_prob = sum(math.log(mean_TW[t, piece]) for t, piece in enumerate([*ids, EOS_ID]))
    return log_prob / length_penalty(len(ids) + 1, 0.6)


def test_members_of_other_vocabularies_are_refused() -> None:
    with pytest.raises(ValueError, match=r"one vocabulary, these have \[12, 13\]"):
        Ensemble([member(1), member(2, vocab_size=13)])
