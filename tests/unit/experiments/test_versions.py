"""The numbers of each part of this program's own tasks, for the versions that experiments/tasks/versions.py has now.

If one of these tests fails, numbers have changed: increment the version of that part there and here, and write the new
numbers here. Results of the earlier version are then stale. A change that only rounds differently stays within the
tolerance and needs no version.
"""

import pytest
import torch

from experiments.device import Device
from experiments.evaluation.beam import SearchSettings, beam_search
from experiments.evaluation.likelihood import evaluating, measure_likelihood, pad_sources
from experiments.evaluation.scoring import score_text
from experiments.tasks import versions
from experiments.training import curve
from model.config import ModelConfig
from tests.plain_loop import our_losses
from tests.unit.experiments.test_beam_search import random_model

TOLERANCE = 1e-9
SIZES = ModelConfig(num_layers=1, d_model=8, d_ff=16, num_heads=2, d_k=4, d_v=4, dropout=0.1)
# kinds of sub-layer that draw their own weights
OTHER_LAYERS = {
    "positions": "relative",
    "encoder": "self_attention, convolution(separable=true), lstm, experts(count=4, active=2, gate=noisy_top_k)",
    "decoder": "attentional_lstm",
    "compatibility": "additive",
}
SOURCES = [[4, 5, 6, 7, 3], [8, 4, 3]]


@pytest.mark.parametrize("changes", [{}, OTHER_LAYERS], ids=["paper", "others"])
def test_training(tmp_path, monkeypatch, changes):
    monkeypatch.setattr(curve, "EVERY_STEPS", 1)
    found = our_losses(SIZES.model_copy(update=changes), 4, torch.float64, tmp_path)
    expected = OTHER_LOSSES if changes else LOSSES
    assert {versions.TRAINING: found} == {2: pytest.approx(expected, abs=TOLERANCE)}


def test_decoding():
    model = random_model(6, 12)
    settings = SearchSettings(beam_size=3, length_penalty=0.6, max_extra_length=4)
    with evaluating(model):
        found = beam_search(model, *pad_sources(SOURCES, Device(torch.device("cpu"), "fp32", 1)), [8, 6], settings)
    best = [(list(one[0].ids), one[0].score) for one in found]
    assert versions.DECODING == 1
    assert [ids for ids, _ in best] == [ids for ids, _ in OUTPUTS]
    assert [score for _, score in best] == pytest.approx([score for _, score in OUTPUTS], abs=TOLERANCE)


def test_scoring():
    model = random_model(6, 12)
    likelihood = measure_likelihood(model, SOURCES, [[5, 6, 7], [9]], Device(torch.device("cpu"), "fp32", 1))
    text = score_text(["the small dog saw a bird", "no"], ["the small dog saw the bird", "not now"])
    found = {"nll": likelihood.nll, "scored pieces": likelihood.pieces, **text.metrics}
    shown = {name: found[name] for name in SCORES}  # the paper's BLEU needs a package that may be missing
    assert {versions.SCORING: shown} == {1: pytest.approx(SCORES, abs=TOLERANCE)}


LOSSES = [4.853228979494819, 4.785699249611204, 4.7786213851165495, 4.661230114083811]
OTHER_LOSSES = [4.897734314678595, 4.906535114338739, 4.759184140103549, 4.926074041776474]
OUTPUTS = [([7, 7, 7, 7, 7, 5], -3.7443772651031004), ([7, 7, 7, 7, 5], -2.9926239277902793)]
SCORES = {
    "nll": 38.89245968173705, "scored pieces": 6, "bleu": 44.81526019296195, "chrf": 63.84113648179752,
}  # fmt: skip
