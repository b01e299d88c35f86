"""bf16 copies of weights, made once per step, are bit-identical to autocast's and need fewer operations."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from experiments.config.training import TrainingConfig
from experiments.training import curve, state
from experiments.training.narrow import NarrowWeights
from model.network import build_model
from tests.small_training import PIECES, SIZES, losses, pairs, run

NETWORKS = [
    {},
    {"num_layers": 3, "layer_groups": 1},
    {"num_layers": 3, "layer_drop": 0.4},
    {"activation": "swiglu", "kv_heads": 1, "attention_gate": True, "bias": False},
    {"encoder": "N * (self_attention, experts(count=2))", "decoder": "N * (self_attention, cross_attention, lstm)"},
    {"positions": "relative", "compatibility": "additive"},
]
MICRO_BATCHES = 3


def batches(step):
    return [pairs(MICRO_BATCHES * step + number) for number in range(MICRO_BATCHES)]


@pytest.mark.parametrize("changes", NETWORKS, ids=str)
def test_the_bits_of_a_training_are_those_of_autocast(tmp_path, monkeypatch, changes):
    monkeypatch.setattr(curve, "EVERY_STEPS", 1)
    options = {
        "sizes": SIZES.model_validate({**SIZES.model_dump(), **changes}),
        "settings": TrainingConfig(train_steps=4, warmup_steps=10),
        "batches": batches,
        "precision": "bf16",
    }
    model, _, events = run(tmp_path / "copies", **options)
    monkeypatch.setattr(state, "NarrowWeights", lambda _: None)
    expected, _, seen = run(tmp_path / "autocast", **options)
    assert losses(events) == losses(seen)
    for (name, found), other in zip(model.named_parameters(), expected.parameters(), strict=True):
        assert torch.equal(found, other), name


class Counted(TorchDispatchMode):
    """A mode that counts operations by name."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.counts[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


def test_no_weight_of_a_projection_is_cast_by_itself(tmp_path, monkeypatch):
    def counted(folder):
        settings = TrainingConfig(train_steps=1)
        with Counted() as operations:
            run(tmp_path / folder, settings=settings, batches=batches, precision="bf16")
        return operations.counts

    with_copies = counted("copies")
    monkeypatch.setattr(state, "NarrowWeights", lambda _: None)
    by_autocast = counted("autocast")
    encoder, decoder = 4, 7  # projections of a layer, each with a bias
    weights = 2 * (encoder + decoder)
    assert by_autocast["_to_copy"] - with_copies["_to_copy"] == 2 * MICRO_BATCHES * weights
    assert sum(by_autocast.values()) > sum(with_copies.values())


def test_the_network_has_its_own_weights_outside_of_the_forward_pass():
    model = build_model(SIZES, PIECES)
    before = dict(model.named_parameters())
    narrow = NarrowWeights(model)
    with pytest.raises(ZeroDivisionError), narrow.used():
        assert {p.dtype for p in model.encoder.layers[0].feed_forward.parameters()} == {torch.bfloat16}
        raise ZeroDivisionError
    assert all(after is before[name] for name, after in model.named_parameters())
